"""The sparse joint of beam and token: equal to Eq. 1 written out, finished beams, restriction, alignment."""

import math
from typing import Literal

import numpy as np
import pytest
import torch
from beam_enumeration import joint_by, of_weights, random_joint
from enumeration import slow_warp
from torch import Tensor

from draftwood.core.forest import FINISHED
from draftwood.core.records import Outcome
from draftwood.errors import NonFiniteError
from draftwood.sampling.distributions import FEW, Streams
from draftwood.sampling.params import SamplingParams
from draftwood.sampling.row_shares import RowShares
from draftwood.sampling.rows import as_rows, leading
from draftwood.verify.joint import Joint, Seeded, align, few_within, joint_of_likeliest, within
from draftwood.verify.width import ResidualChain

PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.7, top_k=4),
    SamplingParams(top_p=0.7),
    SamplingParams(top_k=6, top_p=0.8, min_p=0.1),
    SamplingParams(temperature=0),
]


def written_out(
    scores: Tensor, logits: Tensor, params: SamplingParams, mode: str, finished: list[bool]
) -> dict[Outcome, float]:
    rows = iter(logits.tolist())
    names: list[Outcome] = []
    values: list[float] = []
    total = math.fsum(math.exp(s) for s in scores.tolist())
    for beam, (score, done) in enumerate(zip(scores.tolist(), finished, strict=True)):
        if done:
            names.append((beam, FINISHED))
            values.append(score if mode == "joint" else math.exp(score) / total)
            continue
        row = next(rows)
        names += [(beam, token) for token in range(len(row))]
        if mode == "token":
            values += [math.exp(score) / total * x for x in slow_warp(row, params)]
        else:
            norm = math.log(math.fsum(math.exp(x) for x in row))
            values += [score + x - norm for x in row]
    if mode == "joint":
        values = slow_warp(values, params)
    return {name: value for name, value in zip(names, values, strict=True) if value > 0}


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("mode", ["joint", "token"])
@pytest.mark.parametrize("finished", [[False] * 3, [False, True, False], [True, True, False]])
def test_joint_equals_equation_1(params: SamplingParams, mode: Literal["joint", "token"], finished: list[bool]) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = -torch.rand(3, dtype=torch.float64, generator=generator)
    logits = torch.randn(3 - sum(finished), 5, dtype=torch.float64, generator=generator)
    joint = joint_by(scores, logits.log_softmax(-1), params, mode, finished)
    wanted = written_out(scores, logits, params, mode, finished)
    assert joint.table() == pytest.approx(wanted, abs=1e-12)
    assert bool((np.diff(joint.support.all_keys()) > 0).all())
    assert [joint.support.place(joint.support.name(place)) for place in range(len(joint))] == list(range(len(joint)))
    assert joint.support.place((7, 0)) is None


@pytest.mark.parametrize("finished", [[False, False, False], [False, True, False]])
def test_labels_in_any_order(finished: list[bool]) -> None:
    """Labels rename beams and nothing else."""
    plain = random_joint(3, 4, 1, finished=finished)
    named = random_joint(3, 4, 1, finished=finished, labels=[9, 2, 5])
    wanted = {((9, 2, 5)[b], t): v for (b, t), v in plain.table().items()}
    assert named.table() == pytest.approx(wanted, abs=1e-15)
    assert list(named.table()) == sorted(named.table())


def test_restriction_renormalises() -> None:
    joint = of_weights({(0, 0): 0.2, (1, 1): 0.3, (2, FINISHED): 0.5}, 3)
    rest = joint.restrict([0, 2])
    assert list(rest.table()) == [(0, 0), (2, FINISHED)]
    assert rest.prob.tolist() == pytest.approx([2 / 7, 5 / 7])
    assert joint.restrict([0, 1, 2]) is joint
    assert len(joint.restrict([7])) == 0


def test_alignment_is_the_union() -> None:
    p, q = of_weights({(0, 0): 0.4, (1, 1): 0.6}, 2), of_weights({(0, 1): 0.5, (1, 1): 0.5}, 2)
    support, a, b = align(p, q)
    assert [support.name(place) for place in range(len(support))] == [(0, 0), (0, 1), (1, 1)]
    assert a.tolist() == [0.4, 0.0, 0.6] and b.tolist() == [0.0, 0.5, 0.5]


def test_dead_beam_and_nan() -> None:
    """A beam of likelihood 0 has no outcomes; NaN logits are an error."""
    logits = torch.zeros(2, 3, dtype=torch.float64)
    joint = joint_by(torch.tensor([0.0, -math.inf], dtype=torch.float64), logits.log_softmax(-1), SamplingParams())
    assert list(joint.table()) == [(0, 0), (0, 1), (0, 2)]
    logits[0, 0] = math.nan
    with pytest.raises(NonFiniteError):
        joint_by(torch.zeros(2, dtype=torch.float64), logits.log_softmax(-1), SamplingParams())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probabilities_are_float64_and_normalised(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    joint = joint_by(torch.tensor([0.0, -1.0, -2.0]), logits.log_softmax(-1), SamplingParams(top_k=10))
    assert joint.prob.dtype == torch.float64
    assert abs(float(joint.prob.sum()) - 1) < 1e-12


@pytest.mark.parametrize("mode", ["joint", "token"])
@pytest.mark.parametrize("finished", [[False] * 3, [False, True, False]])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.7)], ids=str)
def test_grids_of_large_vocabularies(
    monkeypatch: pytest.MonkeyPatch, params: SamplingParams, finished: list[bool], mode: Literal["joint", "token"]
) -> None:
    """Nothing but the keys and the last digits differs where all outcomes of many are kept, zeros among them."""
    vocab, labels = 3000, [4, 9, 5]
    generator = torch.Generator().manual_seed(5)
    scores = torch.tensor([0.0, -1.0, -2.0])

    def both(labels: list[int], finished: list[bool]) -> tuple[Joint, Joint]:
        live = len(finished) - sum(finished)
        logits = 3 * torch.randn(live, vocab, generator=generator)
        logits[:, 7:11] = -math.inf
        log_p, count = logits.log_softmax(-1), len(labels)
        grid = joint_by(scores[:count], log_p, params, mode, finished, labels)
        with monkeypatch.context() as patch:
            patch.setattr("draftwood.verify.joint.SMALL", 1 << 60)
            return grid, joint_by(scores[:count].double(), log_p.double(), params, mode, finished, labels)

    p, p_keys = both(labels, finished)
    q, q_keys = both(labels[:2], finished[:2])
    assert p.support.keys is None and (p.prob.dtype, p_keys.prob.dtype) == (torch.float32, torch.float64)
    assert p.possible == p_keys.possible < len(p)
    some = [*list(p_keys.table())[::97], (4, 8), (9, FINISHED), (6, 0)]
    assert p.probs(some) == pytest.approx(p_keys.probs(some), rel=1e-5)
    for one, other in (
        (p, p_keys),
        (p.restrict([5, 4]), p_keys.restrict([4, 5])),
        (p.restrict([9]), p_keys.restrict([9])),
    ):
        assert one.probs(some) == pytest.approx(other.probs(some), rel=1e-5)
        draws = [joint.draws(40, Seeded(Streams(3), "draft"), False) for joint in (one, other)]
        assert draws[0] == draws[1]
    chain, wanted = (ResidualChain(*align(*pair)[1:]) for pair in ((p, q), (p_keys, q_keys)))
    assert chain.alphas(4) == pytest.approx(wanted.alphas(4), abs=1e-6)
    assert align(p, p)[0] is p.support


@pytest.mark.parametrize("sharp", [1.0, 30.0])
def test_residuals_where_few_were_drafted(sharp: float) -> None:
    """Those of all outcomes, in float64: p at the drafts and what is left of it elsewhere say as much."""
    generator = torch.Generator().manual_seed(7)
    log_p = (sharp * torch.randn(2, 3000, generator=generator)).log_softmax(-1)
    p = joint_by(torch.tensor([0.0, -1.0]), log_p, SamplingParams())
    rows = leading(as_rows((0.7 * log_p).log_softmax(-1)), 6)
    q = joint_of_likeliest([-0.3, 0.0], [rows[1], rows[0]], [1, 0], 3000, SamplingParams())
    assert p.support.keys is None and len(q) == 12 and float(q.prob.sum()) == pytest.approx(1, abs=1e-12)
    assert q.restrict([1, 0]) is q and {beam for beam, _ in q.restrict([1]).table()} == {1}
    places, inside = within(q, p.support)
    found = few_within(q, p.support)
    assert found is not None and len(p) > FEW and few_within(p, p.support) is None
    assert [*found] == [p.support.name(int(place)) for place in places]
    listed = [[pair[one] for pair in found.values()] for one in (1, 0)]
    whole = ResidualChain(p.prob.double(), align(p, q)[2])
    for shares, at in ((p.prob, (inside, places)), (p.prob, listed), (p.shares, listed)):
        few = ResidualChain(shares, *at)
        assert few.alphas(5) == pytest.approx(whole.alphas(5), abs=2e-6)
        for rejections in range(4):
            rest = few.residual(rejections)
            if isinstance(rest, RowShares):  # of any sum
                rest = rest.dense() / rest.dense().sum()
            assert float(rest.sum()) == pytest.approx(1, abs=1e-5)
            torch.testing.assert_close(rest.double(), whole.residual(rejections), atol=2e-6, rtol=1e-4)
