"""Sliced masks equal masks built for the round's own tree."""

import random

import numpy as np
import pytest

from draftwood.draft.template import ancestor_mask, fork, template
from draftwood.forest import TRUNK, plant


@pytest.mark.parametrize("widths", [(16, 1, 1, 1, 1), (1, 4, 2, 2, 1), (2, 4, 3, 1, 1), (3,), (1, 1, 1)])
def test_every_slice_is_the_mask_built_for_it(widths: tuple[int, ...]) -> None:
    full = template(widths)
    for layers in range(len(widths) + 1):
        parents: list[int] = []
        layer = [TRUNK]
        for width in widths[:layers]:
            first = len(parents)
            parents += [node for node in layer for _ in range(width)]
            layer = list(range(first, len(parents)))
        assert full.fits(parents)
        sliced = full.sliced(layers)
        built = np.array([[b in ancestors(parents, a) for b in range(len(parents))] for a in range(len(parents))])
        assert sliced.shape == (len(parents), len(parents))
        assert np.array_equal(sliced, built.reshape(sliced.shape))
        assert np.array_equal(sliced, ancestor_mask(parents))
        assert sliced.size == 0 or np.shares_memory(sliced, full.mask)


def ancestors(parents: list[int], node: int) -> set[int]:
    found = set()
    while node != TRUNK:
        found.add(node)
        node = parents[node]
    return found


def test_figure_2() -> None:
    """W = 3, D = 3: blocks of 3x3, 6x6 and 9x9; each node sees its own chain."""
    full = fork(3, 3)
    assert [full.sliced(d).shape[0] for d in (1, 2, 3)] == [3, 6, 9]
    assert np.array_equal(full.mask, np.tril(np.kron(np.ones((3, 3)), np.eye(3))).astype(bool))
    assert fork(3, 3) is full
    with pytest.raises(ValueError, match="read-only"):
        full.mask[0, 0] = False


def test_thinner_forests_find_their_places() -> None:
    """Equal draws are one node and ended sequences have no children: rows and columns are picked instead."""
    rng = random.Random(3)
    widths = (1, 3, 2, 2)
    full = template(widths)
    for _ in range(40):
        forest = plant([0])
        layer = list(forest.roots)
        for width in widths[1:]:
            children = [
                forest.add(node, rng.randrange(4)) for node in layer for _ in range(width) if rng.random() < 0.9
            ]
            layer = list(dict.fromkeys(children))
        places = full.places(forest.parent)
        assert places is not None
        assert np.array_equal(full.mask[np.ix_(places, places)], ancestor_mask(forest.parent))
        assert full.fits(forest.parent) == (places == list(range(len(places))))
    assert full.places([TRUNK, TRUNK]) is None
    assert full.places([TRUNK, 0, 0, 0, 0]) is None
    assert full.places([TRUNK, 0, 1, 2, 3]) is None
