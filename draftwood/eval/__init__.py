"""Measurements of methods on tasks: quality, speed and energy."""
