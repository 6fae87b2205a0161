"""K-SEQ is exact for any draws; the bound alpha*(n) is what optimal transport reaches; greedy drafts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from enumeration import emitted, law_of, random_law, sequences
from torch import Tensor

from draftwood import METHODS, ConfigurationError, Method
from draftwood.core.forest import Forest, Proposal
from draftwood.draft.base import Proposer
from draftwood.methods.sequences import OneHypothesis
from draftwood.sampling.distributions import Streams
from draftwood.sampling.params import SamplingParams
from draftwood.verify.bound import best_acceptance
from draftwood.verify.kseq import balance, resolve_together
from draftwood.verify.tree import Resolve, acceptance, resolve

EXACT = 1e-12


def off(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def accepted(p: Tensor, q: Tensor, count: int, rule: Resolve, replacement: bool = True) -> float:
    """The chance that one of the draws is accepted."""

    def experiment(choices: Any) -> bool:
        tokens = sequences(choices, q, count, replacement)
        child, _ = rule(
            p,
            [Proposal(q, list(range(len(tokens))), replacement)],
            tokens,
            lambda a, b: choices.coin(acceptance(a, b)),
        )
        return child is not None

    return law_of(experiment).get(True, 0.0)


@pytest.mark.some(11)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("vocab", "count"), [(2, 3), (3, 2), (3, 4), (4, 3), (3, 1)])
def test_the_token_follows_the_target(vocab: int, count: int, seed: int) -> None:
    for p_zeros, q_zeros in itertools.product(range(2), range(2)):
        p, q = random_law(vocab, seed, p_zeros), random_law(vocab, 100 + seed, q_zeros)
        assert off(emitted(p, [(q, count, True)], rule=resolve_together), p) < EXACT
        assert off(emitted(p, [(q, count, False)], rule=resolve_together), p) < EXACT  # one after the other
    other = random_law(vocab, 200 + seed)
    assert off(emitted(p, [(q, 2, True), (other, 2, True)], rule=resolve_together), p) < EXACT
    assert off(emitted(p, [(None, 0, True), (q, 2, True)], [[1]], rule=resolve_together), p) < EXACT
    assert off(emitted(p, [(p, count, True)], rule=resolve_together), p) < EXACT


def test_rho_balances_what_is_accepted_and_what_there_is() -> None:
    p, q = random_law(5, 1), random_law(5, 2)
    shared, beta = balance(p, q, 3)
    rho = float((p / shared)[shared < q - 1e-9][0])
    assert 1 <= rho <= 3 and 1 - (1 - beta) ** 3 == pytest.approx(rho * beta, abs=1e-8)
    assert accepted(p, q, 3, resolve_together) == pytest.approx(1 - (1 - beta) ** 3)
    assert float(balance(p, q, 1)[0].sum()) == pytest.approx(float(torch.minimum(p, q).sum()))


def transport(p: Tensor, q: Tensor, count: int) -> float:
    """The largest chance that the emitted token is among n independent draws: optimal transport, as a minimal cut."""
    sets = [list(each) for size in range(len(p) + 1) for each in itertools.combinations(range(len(p)), size)]
    return min(float(p[some].sum()) + 1 - float(q[some].sum()) ** count for some in sets)


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_is_optimal_transport(seed: int) -> None:
    for vocab, count in ((3, 1), (3, 2), (4, 2), (3, 3)):
        p, q = random_law(vocab, seed), random_law(vocab, 100 + seed, seed % 2)
        bound = best_acceptance(p, q, count)
        assert bound == pytest.approx(transport(p, q, count), abs=1e-9)
        for rule in (resolve, resolve_together):
            assert (1 - math.exp(-1)) * bound - EXACT <= accepted(p, q, count, rule) <= bound + EXACT
    assert best_acceptance(p, q, 1) == pytest.approx(float(torch.minimum(p, q).sum()))
    assert best_acceptance(p, p, 2) == 1.0


def greedy_drafts(q: Tensor, count: int, seed: int = 0) -> list[Proposal]:
    forest = Forest.from_prompt([0])
    propose = Proposer(SamplingParams(), Streams(seed), len(q))
    assert propose(forest, [0], q.log()[None], count, False, count - 1) == list(range(1, len(forest)))
    tokens = [forest.token[node] for proposal in forest.proposals[0] for node in proposal.nodes]
    assert len(set(tokens)) == len(tokens)
    return [Proposal(p.q, [forest.token[node] for node in p.nodes], p.replacement) for p in forest.proposals[0]]


def test_greedy_drafts_are_the_best_and_one_of_the_rest() -> None:
    q = torch.tensor([0.1, 0.5, 0.1, 0.3], dtype=torch.float64)
    seen = set()
    for seed in range(30):
        drawn, fixed = greedy_drafts(q, 3, seed)
        assert fixed.q is None and fixed.nodes == [1, 3]
        assert drawn.q is not None and drawn.q.tolist() == [0.5, 0.0, 0.5, 0.0]
        seen.update(drawn.nodes)
    assert seen == {0, 2}
    (only,) = greedy_drafts(torch.tensor([0.4, 0.6, 0.0], dtype=torch.float64), 3)  # nothing is left to draw from
    assert only.q is None and sorted(only.nodes) == [0, 1]


def test_greedy_drafts_accept_what_the_paper_says() -> None:
    """x with min(1, p/q'), else y ~ norm(max(0, p - q')), where y may be a fixed draft."""
    for seed in range(5):
        p, q = random_law(5, seed), random_law(5, 100 + seed)
        top = q.topk(2).indices
        rest = q.index_fill(0, top, 0.0)
        rest = rest / rest.sum()

        def experiment(choices: Any, p: Tensor = p, top: Tensor = top, rest: Tensor = rest) -> bool:
            proposals = [Proposal(rest, [0]), Proposal(None, [1, 2])]
            tokens = [choices.choose(rest.tolist()), *top.tolist()]
            child, _ = resolve(p, proposals, tokens, lambda a, b: choices.coin(acceptance(a, b)))
            return child is not None

        wanted = float(torch.minimum(p, rest).sum() + p[top].sum())
        assert law_of(experiment)[True] == pytest.approx(wanted, abs=EXACT)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"verify": "kseq"}, "judges independent draws; set replacement=true"),
        ({"verify": "kseq", "replacement": True, "draws": "greedy"}, "and draws=sampled"),
        ({"draws": "greedy", "replacement": True}, "replacement=false"),
        ({"draws": "greedy", "verify": "coupled"}, "verify=traversal or rejection"),
        ({"initial": 2, "verify": "traversal"}, "use initial 1, or verify=longest-root or longest"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Method.parse({"name": "mcsd", **options})


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if issubclass(kind, OneHypothesis)])
def test_every_method_takes_a_rule_or_says_why_not(name: str) -> None:
    copies = (
        "lookup with drafts=copied draws none; use rejection"
        if name == "lookup"
        else f"{name} draws none; use rejection"
    )
    reasons = {"traversal": copies, "kseq": "mcsd with replacement=true have; use one"}
    for rule, why in reasons.items():
        options = {"replacement": True} if name == "mcsd" else {}
        try:
            assert Method.parse({"name": name, "verify": rule, **options}).verifier().name == rule
            assert (name in ("specinfer", "mcsd")) >= (rule == "kseq")
        except ConfigurationError as refused:
            assert str(refused).startswith(f"method {name}: ") and why in str(refused)
            assert rule == "kseq" or name in ("autoregressive", "lookup")
