"""Models that compute next-token logits: decoders from checkpoints, tables of probabilities; their caches and
tokenizers.

Models know tokens, positions and slots of caches. They do not know draft trees, sampling and requests.
"""
