"""The command line. Knows flags, terminals and exit codes; nothing below imports it."""
