"""Traversal verification: whatever is drafted, what is emitted follows the target, by exact enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from enumeration import ScriptedChoices, law_of, sequences
from torch import Tensor

from draftwood import SamplingParams
from draftwood.core.forest import Forest
from draftwood.depth.rules import UNCAPPED
from draftwood.sampling import distributions
from draftwood.sampling.distributions import Distributions, warp
from draftwood.verify import Rejection, Traversal, Verifier, traversal, tree

EXACT = 1e-12
LENGTH = 3  # tokens of which the law is compared; a round that gives fewer is continued from p
END = 0

Law = Callable[[tuple[int, ...]], Tensor]
Draft = Callable[[ScriptedChoices, Forest], None]


@cache
def table(seed: int, vocab: int, prefix: tuple[int, ...], sharp: float) -> Tensor:
    number = seed + sum((token + 1) * 10**i for i, token in enumerate(prefix))
    weights = torch.empty(vocab, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(number))
    weights = weights**sharp
    return weights / weights.sum()


def law(seed: int, vocab: int, sharp: float = 1.5) -> Law:
    return lambda prefix: table(seed, vocab, prefix, sharp)


def path_of(forest: Forest, node: int) -> tuple[int, ...]:
    return tuple(forest.sequence(node)[1:])


def drafts(
    models: Sequence[Law],
    widths: Sequence[int],
    replacement: bool,
    deeper: Callable[[Forest, Sequence[int]], bool] = lambda forest, layer: True,
    points: bool = False,
) -> Draft:
    """Each model grows its own tree, as `ModelDrafter` does; with `points` every node also gets the token 1."""

    def draft(choices: ScriptedChoices, forest: Forest) -> None:
        frontiers = [forest.roots for _ in models]
        shown: Sequence[int] = forest.roots
        for width in widths:
            if not deeper(forest, shown):
                break
            shown = []
            for i, q in enumerate(models):
                grown: list[int] = []
                for node in frontiers[i]:
                    if node not in forest.finished:
                        row = q(path_of(forest, node))
                        grown += forest.propose(node, sequences(choices, row, width, replacement), row, replacement)
                        if points:
                            grown += forest.propose(node, [1], None)
                frontiers[i] = list(dict.fromkeys(grown))
                shown = [*shown, *frontiers[i]]

    return draft


class Script:
    """Stands in for the streams: comparing a number with a chance is a coin of the enumeration."""

    def __init__(self, choices: ScriptedChoices) -> None:
        self.choices = choices

    def uniform(self, purpose: str) -> Script:
        assert purpose == "accept"
        return self

    def __lt__(self, chance: float) -> bool:
        return self.choices.coin(chance)


@pytest.fixture(autouse=True)
def scripted_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tree, distributions):
        monkeypatch.setattr(module, "draw", lambda rest, script: script.choices.choose(rest.tolist()))


def outcome(choices: ScriptedChoices, p: Law, draft: Draft, verify: Verifier, end: frozenset[int]) -> tuple[int, ...]:
    """The tokens of one round."""
    forest = Forest.from_prompt([1], end=end)
    draft(choices, forest)
    logits = torch.stack([p(path_of(forest, node)).log() for node in range(len(forest))])
    found = verify(forest, Distributions(forest, logits, SamplingParams()), Script(choices))  # type: ignore[arg-type]
    return *path_of(forest, found.parent[0]), found.token[0]


def off(p: Law, vocab: int, draft: Draft, verify: Verifier, end: frozenset[int] = frozenset()) -> float:
    """Largest difference between the law of `LENGTH` tokens and the target's; a text ends behind an end token."""

    def experiment(choices: ScriptedChoices) -> tuple[int, ...]:
        tokens = outcome(choices, p, draft, verify, end)
        while len(tokens) < LENGTH:
            tokens = (*tokens, choices.choose(p(tokens).tolist()))
        return cut(tokens)

    def cut(tokens: tuple[int, ...]) -> tuple[int, ...]:
        ends = next((i for i, token in enumerate(tokens) if token in end), LENGTH - 1)
        return tokens[: min(ends, LENGTH - 1) + 1]

    found, wanted = law_of(experiment), dict[tuple[int, ...], float]()
    for tokens in itertools.product(range(vocab), repeat=LENGTH):
        chance = 1.0
        for i, token in enumerate(tokens):
            chance *= float(p(tokens[:i])[token])
        wanted[cut(tokens)] = wanted.get(cut(tokens), 0.0) + chance
    return max(abs(found.get(one, 0.0) - wanted.get(one, 0.0)) for one in found.keys() | wanted.keys())


def mean_tokens(p: Law, draft: Draft, verify: Verifier) -> float:
    """Expected tokens of a round."""
    return sum(n * chance for n, chance in law_of(lambda c: len(outcome(c, p, draft, verify, frozenset()))).items())


SHAPES = [(2, (1, 1)), (2, (1, 1, 1)), (3, (1, 1)), (2, (2, 1)), (3, (2, 1)), (2, (1, 2)), (2, (2, 2)), (3, (3,))]


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize(("vocab", "widths"), SHAPES, ids=str)
def test_chains_and_trees(vocab: int, widths: tuple[int, ...], replacement: bool) -> None:
    for seed in (7, 8):
        draft = drafts([law(5000 + seed, vocab)], widths, replacement)
        assert off(law(seed, vocab), vocab, draft, Traversal()) < EXACT


def test_several_draft_models() -> None:
    """Models that draw the same token share a node with drafts of both below it: each keeps its own law."""
    models = [law(5001, 2), law(6001, 2)]
    assert off(law(7, 2), 2, drafts(models, (1, 1), True), Traversal()) < EXACT
    assert off(law(8, 2), 2, drafts(models, (2,), False), Traversal()) < EXACT
    assert off(law(9, 3), 3, drafts([law(5002, 3), law(6002, 3)], (1, 1), True), Traversal()) < EXACT


def test_fixed_drafts_beside_drawn_ones() -> None:
    assert off(law(7, 3), 3, drafts([law(5001, 3)], (1, 1), True, points=True), Traversal()) < EXACT
    assert off(law(7, 2), 2, drafts([law(5001, 2)], (2, 1), False, points=True), Traversal()) < EXACT


@pytest.mark.parametrize("widths", [(1, 1, 1), (2, 1), (2, 2)])
def test_a_controller_that_looks_at_every_draw_before_the_next(widths: tuple[int, ...]) -> None:
    """Whether to go on below a node may depend on its siblings, which a later draw of the same node decides."""

    def even(forest: Forest, layer: Sequence[int]) -> bool:
        return sum(forest.token[node] for node in layer) % 2 == 1  # the root's token is 1

    draft = drafts([law(5003, 2)], widths, True, even)
    assert off(law(7, 2), 2, draft, Traversal()) < EXACT


@pytest.mark.parametrize("replacement", [True, False])
def test_texts_that_end(replacement: bool) -> None:
    """Nothing hangs below an end token, which is as good a draft as any."""
    end = frozenset({END})
    for widths in ((1, 1, 1), (2, 1)):
        assert off(law(7, 3), 3, drafts([law(5004, 3)], widths, replacement), Traversal(), end) < EXACT


def test_supports_that_differ_and_laws_that_agree() -> None:
    def without_last(prefix: tuple[int, ...]) -> Tensor:
        row = table(5005, 3, prefix, 1.5).clone()
        row[len(prefix) % 3] = 0.0
        return row / row.sum()

    for p, q in ((law(7, 3), without_last), (without_last, law(7, 3)), (law(7, 3), law(7, 3))):
        for widths, replacement in (((3,), True), ((3,), False), ((1, 1), True)):
            assert off(p, 3, drafts([q], widths, replacement), Traversal()) < EXACT


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize(("vocab", "widths"), SHAPES, ids=str)
def test_more_tokens_than_rejection(vocab: int, widths: tuple[int, ...], replacement: bool) -> None:
    """Never fewer on a chain (Sun et al., Theorem 2), and more on the trees here; as many on one layer."""
    gains = []
    for seed in range(7, 10):
        p, draft = law(seed, vocab), drafts([law(5000 + seed, vocab)], widths, replacement)
        gains.append(mean_tokens(p, draft, Traversal()) - mean_tokens(p, draft, Rejection()))
    whole = vocab == widths[-1] and not replacement  # all tokens are drafted: rejection accepts one of them, too
    if len(widths) == 1 or whole:
        assert max(map(abs, gains)) < EXACT
    else:
        assert min(gains) > -EXACT and max(gains) > 0.001


def test_a_chain_of_several_models_gains_too() -> None:
    draft = drafts([law(5001, 2), law(6001, 2)], (1, 1), True)
    p = law(7, 2)
    assert mean_tokens(p, draft, Traversal()) > mean_tokens(p, draft, Rejection())


def test_only_visited_rows_are_warped() -> None:
    """A path that the target cannot take is left at once: nothing below it is looked at."""
    forest = Forest.from_prompt([0])
    q = torch.full((3,), 1 / 3, dtype=torch.float64)
    a, b = forest.propose(0, [1, 2], q, False)
    forest.propose(a, [1], q)
    forest.propose(b, [1], q)
    p = torch.tensor([[0.0, 0.0, 1.0]] * len(forest), dtype=torch.float64)
    asked: list[int] = []

    def row(node: int) -> Tensor:
        asked.append(node)
        return p[node]

    found = traversal.traverse(forest, 0, row, lambda node, chance: chance >= 1)
    assert found is not None and found[0] == [0, b] and (found[1] > 0).tolist() == [False, False, True]
    assert list(dict.fromkeys(asked)) == [0, b]


def test_a_chain_without_a_cap_is_deeper_than_the_stack() -> None:
    forest, q = Forest.from_prompt([0]), torch.tensor([0.5, 0.5], dtype=torch.float64)
    end = 0
    for _ in range(UNCAPPED):
        (end,) = forest.propose(end, [1], q)
    ending = traversal.traverse(forest, 0, lambda node: q, lambda node, chance: chance >= 1)
    assert ending is not None and ending[0] == [*range(UNCAPPED + 1)]
    assert traversal.traverse(forest, 0, lambda node: q, lambda node, chance: False) is None


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.7}, {"top_p": 0.8}, {"top_k": 9, "min_p": 0.1}], ids=str)
@pytest.mark.parametrize("vocab", [300, 20_000])
def test_rows_of_a_path_have_the_bits_of_single_ones(
    vocab: int, params: dict[str, float], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    forest, sampling = Forest.from_prompt([0]), SamplingParams(**params)
    q = torch.full((vocab,), 1 / vocab)
    a, _, _ = forest.propose(0, [1, 2, 3], q)
    (b,) = forest.propose(a, [1], q)
    forest.propose(b, [1], q)
    assert traversal.first_path(forest) == [0, a, b]
    logits = 3 * torch.randn(len(forest), vocab, generator=torch.Generator().manual_seed(1))
    target = Distributions(forest, logits, sampling)
    target.prepare([0, a, b])
    edited: list[int] = []
    lazy = Distributions(forest, logits, sampling, lambda rows, forest, nodes: (edited.extend(nodes), rows)[1])
    lazy.prepare([0, a, b])  # waits: a grammar may refuse to go on behind a draft that nobody visits
    assert not edited
    for node in range(len(forest)):
        assert torch.equal(target.probs(node), warp(logits[node], sampling))
        assert torch.equal(target.probs(node), lazy.probs(node))
    assert edited == list(range(len(forest)))
