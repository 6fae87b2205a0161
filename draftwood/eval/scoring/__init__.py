"""How right an answer is, by the published rules of each data set. Pure functions of texts and rows."""
