"""What claims about decoding are worth: measured, certified and predicted."""
