"""The papers' tables and figures, measured again: a script a paper, started with `python -m benchmarks.papers`."""
