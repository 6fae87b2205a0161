"""Masks of drafted trees: built for each round against sliced from a template (MCSD §3.2)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch

from draftwood.core.forest import TRUNK, Forest
from draftwood.core.topology import ancestor_mask, template
from draftwood.eval.experiments.bench import Bench
from draftwood.eval.experiments.experiment import Kind, Rows
from draftwood.models.tabular import TabularModel
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session


class Masks(Kind):
    """Trees by their children per layer, behind `trunk` cached tokens."""

    trees: dict[str, list[int]]
    trunk: int = 512
    repeats: int = 200

    def measure(self, bench: Bench) -> dict[str, Rows]:
        each = bench.track(self.trees.items(), "masks")
        return {"masks": [{"tree": name, **self.compare(widths)} for name, widths in each]}

    def compare(self, widths: Sequence[int]) -> dict[str, Any]:
        """Microseconds for a round: the tree's own mask, and the whole mask of a forward with the trunk."""
        full, layers = template(tuple(widths)), len(widths)
        forest = Forest(trunk=[1] * self.trunk, prompt=self.trunk)
        for token, parent in enumerate(full.parents.tolist()):
            forest.add(parent, token)
        forest.roots = [node for node in range(len(forest)) if forest.parent[node] == TRUNK]
        count = len(forest)
        model = TabularModel.random(count, seed=0)
        session = Session(model, model.new_cache(self.trunk + count + 8))
        execute([Run(session, forest, [TRUNK - self.trunk])])  # the trunk is cached
        run = Run(session, forest, range(count))
        segment = session.job(run, session.rows(run), 0, 1).segment
        nodes, slots, span = list(range(count)), list(segment.slots), segment.span
        visible = torch.zeros(span, dtype=torch.bool)
        visible[session._trunk_slot] = True
        tree = torch.from_numpy(full.mask.copy())

        def whole() -> torch.Tensor:
            mask = visible.repeat(count, 1)
            mask[:, slots[0] :] = tree[:count, :count]
            return mask

        def built() -> torch.Tensor:
            return session._general_mask(forest, nodes, slots, span, session._trunk_slot)

        if not torch.equal(whole(), built().cpu()):
            raise AssertionError("the sliced mask is another than the one that is built")
        if not np.array_equal(full.sliced(layers), ancestor_mask(forest.parent)):
            raise AssertionError("the tree's sliced mask is another than the one that is built")
        work: dict[str, Callable[[], object]] = {
            "tree_built": lambda: ancestor_mask(forest.parent),
            "tree_sliced": lambda: full.sliced(layers),
            "tree_checked": lambda: full.fits(forest.parent),
            "whole_built": built,
            "whole_sliced": whole,
        }
        found = {f"{name}_us": 1e6 * seconds(each, self.repeats) for name, each in work.items()}
        session.close()
        return {"rows": count, "trunk": self.trunk, **found}


def seconds(function: Callable[[], object], repeats: int) -> float:
    """Median time of a call."""
    times = []
    for _ in range(repeats):
        began = perf_counter()
        function()
        times.append(perf_counter() - began)
    return statistics.median(times)
