"""Experiments: a YAML file each in experiments/, kinds of measurement in kinds/, what was measured in results/."""
