"""Experiments: one YAML file each (bench/*.yaml), one runner, one form of results, one generator of tables."""
