"""Scores of answers by the published rules of each data set. Pure functions of texts and rows."""
