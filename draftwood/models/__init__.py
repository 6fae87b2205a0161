"""What computes next-token logits: decoders from checkpoints, tabular functions, their caches and tokenizers.

Models know tokens, positions and slots; they refuse to know forests, sampling and requests.
"""
