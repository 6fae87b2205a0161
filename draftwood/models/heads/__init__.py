"""Trained parts that draft from a target's own hidden states: exits, heads, EAGLE, skipped layers."""
