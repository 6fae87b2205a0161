"""Files of weights, in every format, and what their configurations mean."""
