"""Sliced masks equal masks built for the round's own tree."""

from typing import Any

import numpy as np
import pytest
import torch

from draftwood import Engine, TabularModel
from draftwood.core.forest import TRUNK, Forest
from draftwood.core.topology import ancestor_mask, fork, template
from draftwood.runtime.session import Session


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


def test_sessions_slice_the_same_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mask of a request is the same with templates and without, where draws coincide and sequences end too."""
    masks: list[torch.Tensor] = []
    general = Session._general_mask
    sliced = 0

    def watched(self: Session, forest: Forest, *rest: Any) -> torch.Tensor:
        nonlocal sliced
        mask = general(self, forest, *rest)
        if forest.template is not None:
            sliced += forest.template.fits(forest.parent)
            kept, forest.template = forest.template, None
            assert torch.equal(mask, general(self, forest, *rest))
            forest.template = kept
        masks.append(mask)
        return mask

    monkeypatch.setattr(Session, "_general_mask", watched)
    engine = Engine(
        TabularModel.random(6, seed=1), [TabularModel.random(6, seed=1, sharpness=0.7)], end_tokens=frozenset({5})
    )
    for method in ({"tree": [3, 2, 1]}, {"tree": [3, 2, 1], "replacement": True}, {"initial": 2, "tree": [2, 1]}):
        engine.generate([1, 2, 3], {"name": "mcsd", **method}, max_new_tokens=30, seed=3)
    assert 0 < sliced < len(masks)
