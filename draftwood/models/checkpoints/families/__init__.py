"""Model families: how each one's config.json becomes a DecoderConfig and what its tensors are called."""
