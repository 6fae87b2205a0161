"""The masks that segments derive are the slots that their rows see."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
import torch

from draftwood.models.base import Segment
from draftwood.models.cache import SPAN_MULTIPLE
from draftwood.models.extents import Extent
from draftwood.models.flat import visibility

EXTENT = Extent(0, 64)


def seen(segment: Segment) -> torch.Tensor:
    """[n, span] by definition."""
    mask = torch.zeros(len(segment), segment.span, dtype=torch.bool)
    for row in range(len(segment)):
        mask[row, segment.visible(row)] = True
    return mask


def tree(rng: random.Random, shuffled: bool) -> Segment:
    """Rows of the end of a trunk and of a random tree on it; some of its nodes were computed before."""
    slots = list(range(40))
    if shuffled:
        rng.shuffle(slots)
    trunk, rows = rng.randrange(1, 20), rng.randrange(4)
    rows = min(rows, trunk)
    written, counts, paths = slots[trunk - rows : trunk], list(range(trunk - rows + 1, trunk + 1)), [()] * rows
    nodes: list[tuple[int, ...]] = [()]
    for slot in slots[trunk : trunk + rng.randrange(1, 12)]:
        nodes.append((*rng.choice(nodes), slot))
    for path in nodes[rng.randrange(1, len(nodes)) :]:
        written, counts, paths = [*written, path[-1]], [*counts, trunk], [*paths, path]
    return Segment(EXTENT, written, array("i", slots[:trunk] + [99] * 3), counts, paths)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_masks_are_the_slots_that_rows_see(seed: int, shuffled: bool) -> None:
    rng = random.Random(f"{seed} {shuffled}")
    segments = [tree(rng, shuffled) for _ in range(3)]
    for segment in segments:
        mask, expected = segment.mask(segment.span), seen(segment)
        assert bool(expected.all()) if mask is None else torch.equal(torch.from_numpy(mask), expected)
    rows = max(map(len, segments)) + 2
    together = visibility(segments, rows, torch.device("cpu"))
    assert together.shape[:2] == (3, rows) and together.shape[2] % SPAN_MULTIPLE == 0
    for segment, part in zip(segments, together, strict=True):
        expected = seen(segment)
        assert torch.equal(part[: len(segment), : segment.span], expected) and not part[:, segment.span :].any()
        assert (part[len(segment) :, : segment.span] == expected[-1]).all()  # rows that repeat the last one


@pytest.mark.parametrize(("first", "count"), [(0, 1), (7, 1), (0, 5), (7, 5)])
def test_causal_rows(first: int, count: int) -> None:
    segment = Segment.causal(EXTENT, first, count)
    assert list(segment.slots) == [*range(first, first + count)] and segment.span == first + count
    assert [segment.visible(row) for row in range(count)] == [[*range(first + row + 1)] for row in range(count)]
    mask = segment.mask(segment.span)
    assert mask is None if count == 1 else np.array_equal(mask, seen(segment))
