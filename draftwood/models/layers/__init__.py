"""Layers of decoders: a mixer, which reads other positions, and a feed-forward, which reads its own."""
