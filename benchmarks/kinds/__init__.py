"""Kinds of measurement, one module each."""
