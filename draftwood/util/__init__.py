"""Reading and writing of files and settings, and plots: what knows nothing of decoding."""
