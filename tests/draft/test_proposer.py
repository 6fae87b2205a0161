"""Proposing: draws follow the warped draft law, which is kept for verification; where the choice is fixed, points."""

from collections import Counter

import pytest
import torch

from draftwood import SamplingParams
from draftwood.core.forest import Forest
from draftwood.draft import Proposer
from draftwood.sampling.distributions import Streams, warp
from draftwood.sampling.penalties import Penalties
from draftwood.verify.coupled import perturb

CPU = torch.device("cpu")


def proposer(params: SamplingParams, seed: int = 0, vocab: int = 4, **given: bool) -> Proposer:
    penalties = Penalties(params, vocab, 1, CPU) if params.edits_logits else None
    return Proposer(params, Streams(seed), vocab, penalties, **given)


def test_q_is_kept_as_it_was_drawn_from() -> None:
    """Warped and penalised: the very tensor that drew is the one that verification reads."""
    params = SamplingParams(temperature=0.7, top_k=2, presence_penalty=1.0)
    logits = torch.tensor([[1.0, 0.9, 0.8, 0.0]], dtype=torch.float64)
    for replacement in (True, False):
        forest = Forest.from_prompt([0])
        (node,) = forest.propose(0, [0], None)  # token 0 is in the output now, and penalised
        proposer(params)(forest, [node], logits, 3, replacement)
        (made,) = forest.proposals[node]
        expected = warp(logits[0] - torch.tensor([1.0, 0, 0, 0]), params)
        assert made.q is not None and made.q.tolist() == pytest.approx(expected.tolist())
        assert made.replacement is replacement
        drawn = [forest.token[child] for child in made.nodes]
        assert set(drawn) <= {1, 2}
        assert len(drawn) == 3 if replacement else sorted(drawn) == [1, 2]


@pytest.mark.parametrize("replacement", [True, False])
def test_draws_follow_q(replacement: bool) -> None:
    """The first draw has law q; later ones too, or q without what was drawn."""
    q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    first: Counter[int] = Counter()
    second: Counter[int] = Counter()
    count = 8000
    for seed in range(count):
        forest = Forest.from_prompt([0])
        proposer(SamplingParams(), seed)(forest, [0], q.log()[None], 2, replacement)
        a, b = (forest.token[node] for node in forest.proposals[0][0].nodes)
        first[a] += 1
        second[b] += 1
        assert replacement or a != b
    for x in range(4):
        assert first[x] / count == pytest.approx(float(q[x]), abs=0.02)
        others = sum(float(q[y] * q[x] / (1 - q[y])) for y in range(4) if y != x)
        assert second[x] / count == pytest.approx(float(q[x]) if replacement else others, abs=0.02)


def test_children_come_back_once() -> None:
    forest = Forest.from_prompt([0])
    logits = torch.tensor([[0.0, -50.0, -50.0, -50.0]])
    children = proposer(SamplingParams())(forest, [0], logits, 3, True)
    assert children == [1]
    assert forest.proposals[0][0].nodes == [1, 1, 1]


def test_greedy_proposes_the_best_as_points() -> None:
    forest = Forest.from_prompt([0])
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]])
    children = proposer(SamplingParams(temperature=0))(forest, [0], logits, 3, False)
    assert [forest.token[child] for child in children] == [1, 2, 3]
    assert all(made.q is None for made in forest.proposals[0])


def test_coupled_proposes_the_best_under_the_targets_noise() -> None:
    """The noise of the child's position; the warp still applies, so excluded tokens are never proposed."""
    params = SamplingParams(top_k=2)
    logits = torch.tensor([[2.0, 1.9, 1.0, 0.0]], dtype=torch.float64)
    firsts = set()
    for seed in range(40):
        forest = Forest.from_prompt([3, 3])
        children = proposer(params, seed, coupled=True)(forest, [0], logits, 4, False)
        tokens = [forest.token[child] for child in children]
        assert sorted(tokens) == [0, 1]
        expected = perturb(warp(logits, params)[0], 2, Streams(seed)).argmax()
        assert tokens[0] == int(expected)
        assert all(made.q is None for made in forest.proposals[0])
        firsts.add(tokens[0])
    assert firsts == {0, 1}


@pytest.mark.parametrize("extra", [-1, 2])
def test_vocabularies_may_be_padded_differently(extra: int) -> None:
    """Draft tokens beyond the target's vocabulary are never proposed; missing ones have probability zero."""
    forest = Forest.from_prompt([0])
    logits = torch.zeros(1, 4 + extra)
    logits[0, -1] = 9.0
    for coupled in (False, True):
        propose = proposer(SamplingParams(), vocab=4, coupled=coupled)
        children = propose(forest, [0], logits, 4, False)
        assert all(forest.token[child] < min(4, 4 + extra) for child in children)
    made = forest.proposals[0][0]
    assert made.q is not None and made.q.shape == (4,) and float(made.q.sum()) == pytest.approx(1)
