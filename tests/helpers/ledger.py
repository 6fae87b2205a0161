"""The memory of an engine that its requests hold."""

from draftwood import Engine


def lent(engine: Engine) -> list[int]:
    """Slots of each cache that requests hold, without what finished ones left to others."""
    engine.reset_prefix_cache()
    return [cache.lent for cache in engine.builder.caches.values()]
