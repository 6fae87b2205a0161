"""Masks of drafted trees: built per round against sliced from a template (MCSD §3.2); needs no checkpoint.

python benchmarks/masks.py
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import record
import torch

from draftwood import TabularModel
from draftwood.core.forest import TRUNK, Forest
from draftwood.core.topology import ancestor_mask, template
from draftwood.runtime.session import Run, Session

TREES = {"fork W=16 D=5": (16, 1, 1, 1, 1), "2,4,3,1,1": (2, 4, 3, 1, 1), "1,4,2,2,1": (1, 4, 2, 2, 1)}


def seconds(function: Callable[[], object], repeats: int = 200) -> float:
    """Median time of a call."""
    times = []
    for _ in range(repeats):
        began = perf_counter()
        function()
        times.append(perf_counter() - began)
    return statistics.median(times)


def drafted(widths: Sequence[int], trunk: int) -> Forest:
    """A full tree of distinct tokens behind a trunk."""
    full = template(tuple(widths))
    forest = Forest(trunk=[1] * trunk, prompt=trunk)
    for token, parent in enumerate(full.parents.tolist()):
        forest.add(parent, token)
    forest.roots = [node for node in range(len(forest)) if forest.parent[node] == TRUNK]
    return forest


def compare(widths: Sequence[int], trunk: int = 512) -> dict[str, Any]:
    """Seconds per round: the tree's own mask built or sliced, and the whole mask of a forward with the trunk."""
    forest = drafted(widths, trunk)
    count = len(forest)
    model = TabularModel.random(count, seed=0)
    session = Session(model, model.new_cache(1, trunk + count + 8))
    session.store(session.prepare(Run(session, forest, [TRUNK - trunk])), None)  # the trunk is cached
    job = session.prepare(Run(session, forest, range(count)))
    nodes, slots, span = list(range(count)), job.slots, job.span
    full, layers = template(tuple(widths)), len(widths)
    visible = torch.zeros(span, dtype=torch.bool)
    visible[session._trunk_slot] = True
    tree = torch.from_numpy(full.mask.copy())

    def whole() -> torch.Tensor:
        mask = visible.repeat(count, 1)
        mask[:, slots[0] :] = tree[:count, :count]
        return mask

    built = session._general_mask(forest, nodes, slots, span, session._trunk_slot)
    assert torch.equal(whole(), built.cpu()) and np.array_equal(full.sliced(layers), ancestor_mask(forest.parent))
    result = {
        "rows": count,
        "trunk": trunk,
        "tree_built": seconds(lambda: ancestor_mask(forest.parent)),
        "tree_sliced": seconds(lambda: full.sliced(layers)),
        "tree_checked": seconds(lambda: full.fits(forest.parent)),
        "whole_built": seconds(lambda: session._general_mask(forest, nodes, slots, span, session._trunk_slot)),
        "whole_sliced": seconds(whole),
    }
    session.close()
    return result


def main() -> None:
    args = record.arguments(__doc__ or "").parse_args()
    torch.set_num_threads(args.threads)
    results = {name: compare(widths) for name, widths in TREES.items()}
    for name, row in results.items():
        print(f"{name}: {row['rows']} rows")
        for what in ("tree_built", "tree_sliced", "tree_checked", "whole_built", "whole_sliced"):
            print(f"  {what:13} {row[what] * 1e6:8.1f} µs")
        print(f"  sliced / built: {row['tree_sliced'] / row['tree_built']:.2%}")
    if args.name:
        print(record.write(args.name, {"environment": record.environment("bool"), "masks": results}))


if __name__ == "__main__":
    main()
