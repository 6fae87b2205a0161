"""What an engine's requests hold of its memory."""

from draftwood import Engine


def lent(engine: Engine) -> list[int]:
    """Slots of each cache that requests hold, without what finished ones left to others."""
    engine.reset_prefix_cache()
    return [cache.lent for cache in engine.builder.caches.values()]
