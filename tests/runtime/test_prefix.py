"""Which prefix a request takes: the longest, found without looking at all that are kept."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from draftwood.models.cache import Cache
from draftwood.models.extents import Extent
from draftwood.runtime import prefix
from draftwood.runtime.prefix import MIN_PREFIX, KeptPrefix, PrefixCache, common


@dataclass
class Finished:
    cache: Cache
    prefix: Sequence[int]
    extent: Extent | None


def memory() -> Cache:
    return Cache([(1, 1, torch.float32)], torch.device("cpu"))


def one_by_one(prefixes: PrefixCache, cache: Cache, tokens: Sequence[int]) -> tuple[int, KeptPrefix | None]:
    """The first that shares most, in the order of their last use."""
    found = [(common(tokens, entry.tokens), entry) for entry in prefixes.kept if entry.cache is cache]
    best, entry = max(found, key=lambda each: each[0], default=(0, None))
    return (best, entry) if best >= MIN_PREFIX else (0, None)


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_is_found_as_by_looking_at_each(seed: int) -> None:
    rng, prefixes, caches = random.Random(seed), PrefixCache(), [memory(), memory()]
    stem = rng.choices(range(3), k=40)
    ties = 0
    for _ in range(150):
        cache = rng.choice(caches)
        tokens = [*stem[: rng.randrange(41)], *rng.choices(range(2), k=rng.randrange(30))]
        best, entry = one_by_one(prefixes, cache, tokens)
        ties += sum(best > 0 and common(tokens, other.tokens) == best for other in prefixes.kept) > 1
        assert prefixes._longest(cache, tokens)[:2] == (best, entry)
        extent, length = prefixes.take(cache, tokens, len(tokens) + 1)
        assert length == best
        if rng.random() < 0.8:
            prefixes.leave(Finished(cache, tokens, extent))
        else:
            cache.release(extent)
        if rng.random() < 0.1:
            prefixes.forget()
    assert ties > 10
    prefixes.reset()
    assert not prefixes.kept and not prefixes._sorted and not any(cache.lent for cache in caches)


@pytest.mark.parametrize("system", [0, 100])
def test_thousands_that_are_kept_cost_two_comparisons(system: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not all begin alike."""
    rng, prefixes, cache = random.Random(1), PrefixCache(), memory()
    texts = [[1] * system + rng.choices(range(1000), k=60) for _ in range(5000)]
    for tokens in texts:
        prefixes.leave(Finished(cache, tokens, Extent(0, 192)))
    compared = []

    def counted(tokens: Sequence[int], others: Sequence[int]) -> int:
        compared.append(others)
        return common(tokens, others)

    monkeypatch.setattr(prefix, "common", counted)
    for tokens in rng.sample(texts, 20):
        compared.clear()
        assert prefixes._longest(cache, [*tokens, 7])[0] == len(tokens)
        assert len(compared) == 2
