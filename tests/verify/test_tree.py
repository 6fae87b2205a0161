"""Token-level verification is exact: the law of the emitted token equals p, by enumeration of all draws and coins."""

import itertools

import pytest
import torch
from enumeration import ScriptedChoices, emitted, law_of, random_law, sequences
from torch import Tensor

from draftwood.core.forest import Forest, Proposal
from draftwood.sampling import distributions
from draftwood.sampling.distributions import Distributions, Streams, warp
from draftwood.sampling.params import SamplingParams
from draftwood.verify import Rejection, Traversal, tree
from draftwood.verify.tree import acceptance, residual, resolve, without

EXACT = 1e-12
SEEDS = range(6)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize(("vocab", "count"), [(2, 3), (3, 1), (3, 4), (4, 3), (5, 2)])
def test_draws_from_one_model(vocab: int, count: int, replacement: bool, seed: int) -> None:
    p, q = random_law(vocab, seed), random_law(vocab, 100 + seed)
    assert distance(emitted(p, [(q, count, replacement)]), p) < EXACT


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("replacement", [True, False])
def test_supports_that_differ(replacement: bool, seed: int) -> None:
    """q with fewer tokens than draws, p with zeros where q has none, and the other way round."""
    for p_zeros, q_zeros in itertools.product(range(3), range(3)):
        p, q = random_law(4, seed, p_zeros), random_law(4, 100 + seed, q_zeros)
        assert distance(emitted(p, [(q, 4 - q_zeros + 1, replacement)]), p) < EXACT


@pytest.mark.parametrize("replacement", [True, False])
def test_equal_laws_leave_no_residual(replacement: bool) -> None:
    """p == q: 0/0 in the residual; the first draw is always accepted."""
    for seed in SEEDS:
        p = random_law(4, seed)
        assert distance(emitted(p, [(p.clone(), 2, replacement)]), p) < EXACT
    assert distance(residual(p, p, 0), p) == 0
    assert without(torch.tensor([0.0, 1.0], dtype=torch.float64), 1) is None


def test_disjoint_supports() -> None:
    p = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64)
    q = torch.tensor([0.0, 0.0, 0.3, 0.7], dtype=torch.float64)
    for replacement in (True, False):
        assert distance(emitted(p, [(q, 3, replacement)]), p) < EXACT


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("replacement", [(True, True), (False, True), (True, False), (False, False)])
def test_several_draft_models(replacement: tuple[bool, bool], seed: int) -> None:
    """Each draw is compared with the law of the model that drew it; equal tokens of two models are one node."""
    p, a, b = random_law(3, seed), random_law(3, 100 + seed), random_law(3, 200 + seed, zeros=seed % 2)
    assert distance(emitted(p, [(a, 2, replacement[0]), (b, 2, replacement[1])]), p) < EXACT
    c = random_law(3, 300 + seed)
    assert distance(emitted(p, [(a, 1, True), (b, 1, True), (c, 2, replacement[0])]), p) < EXACT


@pytest.mark.parametrize("seed", SEEDS)
def test_point_masses(seed: int) -> None:
    """Deterministic proposals alone, repeated, covering everything, and mixed with draws in any order."""
    p, q = random_law(4, seed, zeros=seed % 2), random_law(4, 100 + seed)
    for points in ([2], [0, 3], [1, 1], [3, 2, 1, 0]):
        proposals = [(None, 0, True)]
        assert distance(emitted(p, proposals, [points]), p) < EXACT
        assert distance(emitted(p, [(None, 0, True), (q, 2, False)], [points]), p) < EXACT
        assert distance(emitted(p, [(q, 2, True), (None, 0, True)], [points]), p) < EXACT


@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_is_the_same_rule(seed: int) -> None:
    """One-hot p: exactly the argmax is accepted, whatever is drawn."""
    q = random_law(4, 100 + seed)
    p = warp(random_law(4, seed).log(), SamplingParams(temperature=0))
    for drafts in ([(q, 3, True)], [(q, 3, False)], [(None, 0, True)]):
        assert distance(emitted(p, drafts, [[0, 1]]), p) < EXACT


def test_acceptance_chance_is_p_over_q() -> None:
    """Spec §9.1: DSBD prints q/p'; the chance is min(1, p'(x)/q(x))."""
    assert acceptance(0.2, 0.8) == 0.25
    assert acceptance(0.8, 0.2) == 1.0
    assert acceptance(0.0, 0.5) == 0.0


# -- wrong variants fail the same check (the ratio the wrong way round: test_spec_errors.py) -------------------------


def test_without_replacement_needs_its_own_rule() -> None:
    """Drawing without replacement and verifying as if with it is biased, and so is the reverse."""
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    q = torch.tensor([0.4, 0.3, 0.1, 0.2], dtype=torch.float64)
    assert distance(emitted(p, [(q, 3, False)], claimed=[(q, True)]), p) > 0.01
    assert distance(emitted(p, [(q, 3, True)], claimed=[(q, False)]), p) > 0.01


def test_q_must_be_the_law_of_the_model_that_drew() -> None:
    p, a, b = random_law(3, 4), random_law(3, 104), random_law(3, 204)
    assert distance(emitted(p, [(a, 1, True), (b, 1, True)], claimed=[(b, True), (a, True)]), p) > 0.01


def test_point_mass_rule_is_exact_for_any_draws() -> None:
    """Tokens chosen without looking at p may be called point masses: exact, though fewer are accepted."""
    p, q = random_law(3, 4), random_law(3, 104)
    for replacement in (True, False):
        assert distance(emitted(p, [(q, 2, replacement)], claimed=[(None, True)]), p) < EXACT


def test_q_must_be_warped_like_the_draws() -> None:
    """Draws follow T∘q: giving the verifier q before top-k is biased, q after top-k is exact."""
    params = SamplingParams(top_k=2)
    p, q = warp(random_law(4, 5).log(), params), random_law(4, 105)
    warped = warp(q.log(), params)
    assert distance(emitted(p, [(warped, 2, True)]), p) < EXACT
    assert distance(emitted(p, [(warped, 2, True)], claimed=[(q, True)]), p) > 0.01


@pytest.mark.parametrize("seed", SEEDS)
def test_shared_noise_is_biased(seed: int) -> None:
    """Accepting with the number that drew the draft is biased; exact integration over the one shared uniform number."""
    p, q = random_law(3, seed), random_law(3, 100 + seed)
    low = 0.0
    law = torch.zeros(3, dtype=torch.float64)
    for x in range(3):  # the uniform number lies in [low, low + q(x)) when x is drawn
        width = float(q[x])
        accepted = min(max(acceptance(float(p[x]), width) - low, 0.0), width)
        law[x] += accepted
        law += (width - accepted) * residual(p, q, x)
        low += width
    assert abs(float(law.sum()) - 1) < EXACT
    assert distance(law, p) > 0.01


# -- whole trees -----------------------------------------------------------------------------------------------------


class Script:
    """Stands in for the streams of `Rejection`: comparing a number with a chance is a coin of the enumeration."""

    def __init__(self, choices: ScriptedChoices) -> None:
        self.choices = choices

    def uniform(self, purpose: str) -> "Script":
        assert purpose == "accept"
        return self

    def __lt__(self, chance: float) -> bool:
        return self.choices.coin(chance)


@pytest.mark.parametrize(
    ("vocab", "widths", "replacement"),
    [
        (2, (2, 2), True),
        (2, (3, 2), True),
        (3, (2, 1), True),
        (2, (2, 2), False),
        (3, (2, 1), False),
        (3, (1, 1), True),
    ],
)
def test_whole_tree_law(
    vocab: int, widths: tuple[int, int], replacement: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers drafted and walked by `Rejection`: the first two emitted tokens follow p(x1) p(x2 | x1)."""
    for module in (tree, distributions):
        monkeypatch.setattr(module, "draw", lambda rest, script: script.choices.choose(rest.tolist()))
    params = SamplingParams()

    def p(prefix: tuple[int, ...]) -> Tensor:
        return random_law(vocab, 7 + sum((t + 1) * 10**i for i, t in enumerate(prefix)))

    def q(prefix: tuple[int, ...]) -> Tensor:
        return random_law(vocab, 5000 + sum((t + 1) * 10**i for i, t in enumerate(prefix)))

    def experiment(choices: ScriptedChoices) -> tuple[int, int]:
        forest = Forest.from_prompt([0])
        layer = forest.roots
        for width in widths:
            children: list[int] = []
            for node in layer:
                law = q(tuple(forest.sequence(node)[1:]))
                children += forest.propose(node, sequences(choices, law, width, replacement), law, replacement)
            layer = list(dict.fromkeys(children))
        logits = torch.stack([p(tuple(forest.sequence(node)[1:])).log() for node in range(len(forest))])
        verdict = Rejection()(forest, Distributions(forest, logits, params), Script(choices))  # type: ignore[arg-type]
        tokens = [*forest.sequence(verdict.parent[0])[1:], verdict.token[0]]
        assert len(tokens) == len(verdict.warped)
        while len(tokens) < 2:  # the next round goes on from p
            tokens.append(choices.choose(p(tuple(tokens)).tolist()))
        return tokens[0], tokens[1]

    law = law_of(experiment)
    for x, y in itertools.product(range(vocab), repeat=2):
        assert abs(law.get((x, y), 0.0) - float(p(())[x] * p((x,))[y])) < EXACT


def test_verdict_names_the_accepted_path() -> None:
    """Accepted drafts are the ancestors of the verdict's parent; `warped` belongs to them and to the next root."""
    forest = Forest.from_prompt([0])
    a, b = forest.propose(0, [1, 2], None)
    (c,) = forest.propose(b, [1], None)
    logits = torch.full((4, 3), -torch.inf, dtype=torch.float64)
    logits[0, 2] = logits[b, 1] = 0.0
    logits[c] = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).log()
    verdict = Rejection()(forest, Distributions(forest, logits, SamplingParams()), Streams(0))
    assert verdict.parent == [c]
    assert forest.path(c) == [0, b, c] and a not in forest.path(c)
    assert list(verdict.warped) == [(0, 2), (b, 1), (c, verdict.token[0])]
    assert list(verdict.warped.values()) == pytest.approx([0.0, 0.0, -0.6931471805599453])
    assert (verdict.kind, verdict.accepted, verdict.attempted) == (["bonus"], 2, 2)


def test_exhausted_support_is_not_accepted() -> None:
    """A draw after the support of q is exhausted cannot exist and is not even tossed for."""
    p = torch.tensor([0.0, 1.0], dtype=torch.float64)
    q = torch.tensor([1.0, 0.0], dtype=torch.float64)
    chances: list[float] = []

    def reject(p_x: float, q_x: float) -> bool:
        chances.append(acceptance(p_x, q_x))
        return False

    child, rest = resolve(p, [Proposal(q, [0, 1], False)], [0, 1], reject)
    assert child is None and chances == [0.0]
    assert rest.tolist() == [0.0, 1.0]


def test_a_round_without_drafts_draws_the_token_of_plain_decoding_whatever_verifies() -> None:
    forest, logits = Forest.from_prompt([0]), random_law(50, 2).log()[None].float()
    tokens: list[list[int]] = []
    for rule in (Traversal(), Rejection()):
        streams = Streams(5)
        tokens.append([])
        for position in range(20):
            streams.at(position)
            target = Distributions(forest, logits, SamplingParams(temperature=1.0))
            tokens[-1] += rule(forest, target, streams).token
    assert tokens[0] == tokens[1]
    assert len(set(tokens[0])) > 5
