"""The engine: requests in, decoded text out; THE loop that every method runs through."""
