"""Exact laws of beam layers: every draw, coin and completion of a layer replayed once with its probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from enumeration import Law, ScriptedChoices, law_of
from torch import Tensor

from draftwood.certify.enumeration import Scripted
from draftwood.core.records import BeamLayer, Outcome
from draftwood.sampling.params import SamplingParams
from draftwood.sampling.rows import as_rows
from draftwood.verify.beam import verify_layer
from draftwood.verify.joint import Joint, Support, joint_of
from draftwood.verify.width import WidthRule

Beams = tuple[Outcome, ...]


def joint_by(
    scores: Tensor,
    log_p: Tensor,
    params: SamplingParams,
    mode: Literal["joint", "token"] = "joint",
    finished: Sequence[bool] | None = None,
    labels: Sequence[int] | None = None,
) -> Joint:
    """`joint_of` the log-probabilities [live, V] of the beams that have not finished."""
    live = iter(as_rows(log_p))
    rows = [None if over else next(live) for over in finished or [False] * len(scores)]
    return joint_of(scores.tolist(), rows, params, mode, labels)


def random_joint(
    beams: int,
    vocab: int,
    seed: int,
    params: SamplingParams | None = None,
    finished: Sequence[bool] | None = None,
    mode: Literal["joint", "token"] = "joint",
    labels: Sequence[int] | None = None,
) -> Joint:
    """p_beam of random scores and logits in float64."""
    generator = torch.Generator().manual_seed(seed)
    scores = -torch.empty(beams, dtype=torch.float64).exponential_(generator=generator)
    live = beams - sum(finished or ())
    logits = 1.5 * torch.randn(live, vocab, dtype=torch.float64, generator=generator)
    return joint_by(scores, logits.log_softmax(-1), params or SamplingParams(), mode, finished, labels)


def of_weights(weights: dict[Outcome, float], vocab: int) -> Joint:
    """A joint with the given probabilities."""
    total = math.fsum(weights.values())
    named = sorted((beam * (vocab + 1) + token + 1, w / total) for (beam, token), w in weights.items() if w > 0)
    support = Support(vocab, np.array([k for k, _ in named]))
    return Joint(support, torch.tensor([w for _, w in named], dtype=torch.float64))


def reference(p: Joint, width: int, replacement: bool) -> Law[Beams]:
    """Law of `width` beams sampled from p, written out with plain numbers."""
    law: Law[Beams] = {(): 1.0}
    table = p.table()
    for _ in range(width if replacement else min(width, len(table))):
        grown: Law[Beams] = {}
        for drawn, weight in law.items():
            left = 1.0 if replacement else math.fsum(v for x, v in table.items() if x not in drawn)
            for x, v in table.items():
                if replacement or x not in drawn:
                    grown[(*drawn, x)] = weight * v / left
        law = grown
    return law


LayerRule = Callable[..., BeamLayer]


def layer_law(
    p: Joint,
    q: Joint,
    drafted: int,
    rule: WidthRule,
    parents: Sequence[int],
    replacement: bool = True,
    verify: LayerRule = verify_layer,
) -> Law[Beams]:
    """Law of a layer's beams in order, over all drafts from q and all coins; widths may differ among outcomes."""

    def experiment(choices: ScriptedChoices) -> Beams:
        scripted = Scripted(choices)
        draws = q.draws(drafted, scripted, replacement)
        return tuple(verify(draws, q, p, parents, rule, scripted, replacement).beams)

    return law_of(experiment)


def excess(law: Law[Beams], p: Joint, replacement: bool) -> float:
    """Total variation between `law` and the reference given each width that occurs."""
    widths: dict[int, float] = {}
    for beams, weight in law.items():
        widths[len(beams)] = widths.get(len(beams), 0.0) + weight
    assert abs(math.fsum(widths.values()) - 1) < 1e-12
    total = 0.0
    for width, chance in widths.items():
        wanted = reference(p, width, replacement)
        found = {beams: weight for beams, weight in law.items() if len(beams) == width}
        total += math.fsum(abs(found.get(b, 0.0) - chance * wanted.get(b, 0.0)) for b in {*wanted, *found}) / 2
    return total
