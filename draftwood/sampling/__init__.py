"""From logits to tokens: parameters, distributions, random streams, penalties, grammars. Knows no models."""
