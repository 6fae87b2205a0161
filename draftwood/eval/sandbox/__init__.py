"""Runs what a model wrote, queries and programs, where it can reach nothing and nobody, for a limited time."""
