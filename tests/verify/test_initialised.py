"""Target-initialised trees: one root is exact, several are biased just as the paper's formula says, by enumeration."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from enumeration import EnumeratedRandomness, ScriptedChoices, law_of, sequences
from tabular import exact_law, total_variation
from torch import Tensor

from draftwood import METHODS, Engine, SamplingParams, TabularModel
from draftwood.core.forest import FINISHED, TRUNK, Forest, advance
from draftwood.core.records import Ranking
from draftwood.depth import Fixed
from draftwood.draft import ModelDrafter
from draftwood.methods import Method, Parts
from draftwood.sampling import distributions
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.verify import Rejection, initialised
from draftwood.verify import tree as tree_verification
from draftwood.verify.initialised import Initialised, longest, successive
from draftwood.verify.tree import resolve

VOCAB = 3
PROMPT = [1, 1]
TARGET = TabularModel.random(VOCAB, seed=31)
DRAFT = TabularModel.random(VOCAB, seed=32)


def law_after(model: TabularModel, prefix: Sequence[int]) -> Tensor:
    weights = torch.tensor(model.law(tuple(prefix)), dtype=torch.float64)
    return weights / weights.sum()


def kept_law(p: Tensor, lengths: Tensor, count: int, replacement: bool = False) -> Tensor:
    """P_out(t) = P(t) P_acc(t+1, ... | t) [V], the law of the kept root (MCSD §3.1, the formula before Figure 1).

    P_acc is made exact: the chance, relative to being drawn alone, that t is among `count` draws from p [V] and that no
    other has a longer accepted path, nor one as long drawn before; lengths[t, l] is the chance that l drafts below t
    are accepted. Sums over V^count draws, so for small vocabularies.
    """
    vocab = p.shape[0]
    below = torch.nn.functional.pad(lengths.cumsum(-1), (1, 0))  # [V, L + 1], P(length < l)
    law = torch.zeros_like(p)
    for draws in itertools.product(range(vocab), repeat=count):
        chance, left = 1.0, 1.0
        for i, token in enumerate(draws):
            if not replacement and token in draws[:i]:
                chance = 0.0
                break
            chance *= float(p[token]) / left if left > 0 else 0.0
            if not replacement:
                left -= float(p[token])
        if chance <= 0:
            continue
        roots = list(dict.fromkeys(draws))
        for i, token in enumerate(roots):
            wins = lengths[token].clone()
            for j, other in enumerate(roots):
                if j != i:
                    wins *= below[other, :-1] if j < i else below[other, 1:]
            law[token] += chance * float(wins.sum())
    return law


def planted(roots: Sequence[int]) -> Forest:
    """A forest whose roots are alternatives for the token after the prompt."""
    forest = Forest(trunk=list(PROMPT), prompt=len(PROMPT))
    forest.roots = [forest.add(TRUNK, token) for token in roots]
    return forest


def grown(forest: Forest, choices: ScriptedChoices, tree: Sequence[int], replacement: bool) -> Tensor:
    """Draft a k-configuration below every root; returns the target's logits of all nodes."""
    layer = list(forest.roots)
    for width in tree:
        children: list[int] = []
        for node in layer:
            q = law_after(DRAFT, forest.sequence(node))
            children += forest.propose(node, sequences(choices, q, width, replacement), q, replacement)
        layer = list(dict.fromkeys(children))
    return torch.stack([law_after(TARGET, forest.sequence(node)).log() for node in range(len(forest))])


class Script:
    """Streams whose numbers are only compared with chances."""

    def __init__(self, choices: ScriptedChoices) -> None:
        self.choices = choices

    def uniform(self, purpose: str) -> "Script":
        return self

    def __lt__(self, chance: float) -> bool:
        return self.choices.coin(chance)


def verified(choices: ScriptedChoices, roots: Sequence[int], tree: Sequence[int], replacement: bool) -> tuple[int, int]:
    """(kept root's token, accepted drafts); what comes after them is left out."""
    forest = planted(roots)
    logits = grown(forest, choices, tree, replacement)
    verdict = Initialised(1)(forest, Distributions(forest, logits, SamplingParams()), Script(choices))  # type: ignore[arg-type]
    return forest.token[forest.path(verdict.parent[0])[0]], verdict.accepted


@pytest.fixture
def no_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next roots do not matter: they are not drawn."""
    monkeypatch.setattr(initialised, "draw", lambda rest, script: int(rest.argmax()))


def lengths_of(tree: Sequence[int], replacement: bool) -> Tensor:
    """[V, L + 1]: the law of the accepted length below each root alone."""
    table = torch.zeros(VOCAB, len(tree) + 1, dtype=torch.float64)
    for token in range(VOCAB):
        law = law_of(lambda choices, token=token: verified(choices, [token], tree, replacement)[1])
        for length, chance in law.items():
            table[token, length] = chance
    return table


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("tree", "replacement", "count", "distinct"),
    [
        ((1,), True, 2, False),
        ((1,), True, 2, True),
        ((2,), False, 2, True),
        ((2,), True, 2, False),
        ((1, 1), True, 2, True),
        ((1,), True, 3, False),
        ((1,), True, 1, True),
    ],
)
def test_the_bias_is_the_papers_formula(
    tree: tuple[int, ...], replacement: bool, count: int, distinct: bool, no_next: None
) -> None:
    """P_out(t) = P(t) P_acc(... | t): the kept root's law, all draws and coins enumerated."""
    p = law_after(TARGET, PROMPT)

    def experiment(choices: ScriptedChoices) -> int:
        roots = list(dict.fromkeys(sequences(choices, p, count, not distinct)))
        return verified(choices, roots, tree, replacement)[0]

    law = law_of(experiment)
    predicted = kept_law(p, lengths_of(tree, replacement), count, not distinct)
    assert float(predicted.sum()) == pytest.approx(1, abs=1e-12)
    assert all(abs(law.get(t, 0.0) - float(predicted[t])) < 1e-12 for t in range(VOCAB))
    bias = 0.5 * float((predicted - p).abs().sum())
    assert bias < 1e-12 if count == 1 else bias > 0.005


def test_two_independent_roots_written_out(no_next: None) -> None:
    """P_acc(t) = P(t) + sum_s P(s) (P(L_t >= L_s) + P(L_t > L_s)) for two draws with replacement."""
    p, lengths = law_after(TARGET, PROMPT), lengths_of((1,), True)
    for t in range(VOCAB):
        chance = float(p[t])
        for s in set(range(VOCAB)) - {t}:
            for a in range(2):
                for b in range(2):
                    chance += float(p[s] * lengths[t, a] * lengths[s, b]) * ((a >= b) + (a > b))
        assert float(kept_law(p, lengths, 2, True)[t]) == pytest.approx(float(p[t]) * chance, abs=1e-14)


def test_equal_lengths_leave_no_bias() -> None:
    """Where all roots fare alike, ties to the first drawn, the law is the target's."""
    p = law_after(TARGET, PROMPT)
    for replacement in (True, False):
        sure = torch.tensor([[0.0, 1.0]] * VOCAB, dtype=torch.float64)
        assert float((kept_law(p, sure, 3, replacement) - p).abs().max()) < 1e-12


def test_one_root_gives_rejections_verdict() -> None:
    for seed in range(30):
        forest = planted([2])
        logits = grown(forest, ScriptedChoices([seed % 3, 0, seed % 2]), (2, 1), False)
        params = SamplingParams(temperature=0.8, top_k=2 if seed % 2 else 0)
        target = Distributions(forest, logits, params)
        assert Initialised(1)(forest, target, Streams(seed)) == Rejection()(forest, target, Streams(seed))


def test_the_lossless_fork_draws_its_roots_from_the_draft() -> None:
    """W chains, roots verified one after the other with residuals: exact; drawn from the target, the first one wins."""
    p = law_after(TARGET, PROMPT)

    def experiment(choices: ScriptedChoices) -> tuple[int, int]:
        forest = Forest.from_prompt(PROMPT)
        logits = grown(forest, choices, (2, 1), False)
        verdict = Rejection()(forest, Distributions(forest, logits, SamplingParams()), Script(choices))  # type: ignore[arg-type]
        tokens = [*forest.sequence(verdict.parent[0])[forest.prompt :], verdict.token[0]]
        if len(tokens) < 2:
            tokens.append(choices.choose(law_after(TARGET, [*PROMPT, *tokens]).tolist()))
        return tokens[0], tokens[1]

    with pytest.MonkeyPatch.context() as patch:
        for module in (tree_verification, distributions):
            patch.setattr(module, "draw", lambda rest, script: script.choices.choose(rest.tolist()))
        law = law_of(experiment)
    for (x, y), chance in law.items():
        assert chance == pytest.approx(float(p[x] * law_after(TARGET, [*PROMPT, x])[y]), abs=1e-12)
    forest = Forest.from_prompt(PROMPT)
    first, *_ = forest.propose(0, [2, 0, 1], p)
    assert resolve(p, forest.proposals[0], forest.token, lambda p, q: p / q > 0.999)[0] == first


def test_verdict_names_path_and_next_roots() -> None:
    """The second root's path is longer; what it passed and both new roots have entries; `advance` emits all of it."""
    forest = planted([0, 2])
    (a,) = forest.propose(1, [1], None)
    forest.propose(0, [0], None)
    logits = torch.full((4, VOCAB), -torch.inf, dtype=torch.float64)
    logits[0, 1] = logits[1, 1] = logits[3, 0] = 0.0
    logits[a] = torch.tensor([0.25, 0.0, 0.75], dtype=torch.float64).log()
    verdict = Initialised(2)(forest, Distributions(forest, logits, SamplingParams()), Streams(0))
    assert verdict.parent == [a, a] and sorted(verdict.token) == [0, 2]
    assert (verdict.kind, verdict.accepted, verdict.attempted) == (["bonus", "bonus"], 1, 1)
    assert verdict.warped.keys() == {(1, 1), (a, 0), (a, 2)}
    trunk, kept, following = advance(forest, verdict)
    assert (trunk, kept, following.trunk) == ([1, a], [], [*PROMPT, 2, 1])
    assert [following.token[root] for root in following.roots] == verdict.token


def test_an_ended_root_wins_only_a_tie() -> None:
    for roots, kept in (([0, 2], 0), ([2, 0], 2)):
        forest = Forest(trunk=list(PROMPT), prompt=len(PROMPT), end=frozenset({0}))
        forest.roots = [forest.add(TRUNK, token) for token in sorted(roots, key=bool)]
        forest.roots.sort(key=lambda node: roots.index(forest.token[node]))
        forest.fresh = 1
        verdict = Initialised(2)(forest, Distributions(forest, torch.zeros(1, VOCAB), SamplingParams()), Streams(3))
        assert forest.token[verdict.parent[0]] == kept
        assert (verdict.token == [FINISHED]) == (kept == 0)


def test_pure_rules() -> None:
    assert longest([1, 2, 2]) == 1 and longest([0, 0]) == 0
    order = iter([2, 0, 1])
    assert successive(torch.ones(3) / 3, 5, False, lambda left: next(order)) == [2, 0, 1]
    assert successive(torch.ones(3) / 3, 3, True, lambda left: 1) == [1]
    with pytest.raises(ValueError, match="at least one token"):
        Initialised(0)
    assert Initialised(1).lossless and not Initialised(2).lossless and "lossy" in Initialised(2).name


# -- through the engine ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FromSecond(Fixed):
    """As the paper: the first round is a plain target forward."""

    rounds: int = 0

    def start(self, streams: Streams, load: Any = None) -> None:
        self.rounds += 1

    def deeper(self, growth: Any) -> bool:
        return self.rounds > 1 and growth.depth < self.most


class _Initialised(Method):
    name: ClassVar[str] = "initialised-test"
    draft_models: ClassVar[tuple[int, int]] = (1, 1)
    initial: int = 1
    tree: tuple[int, ...] = (1,)

    def verifier(self) -> Any:
        return Initialised(self.initial)

    def build(self, drafts: list[Any], target: Any) -> Parts:
        return Parts(
            ModelDrafter(drafts, self.tree or (1,), False), self.verifier(), FromSecond(len(self.tree)), Ranking()
        )


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setitem(METHODS, "initialised-test", _Initialised)
    return Engine(TARGET, [DRAFT], end_tokens=frozenset({0}))


def engine_law(engine: Engine, patch: pytest.MonkeyPatch, length: int, **options: Any) -> dict[tuple[int, ...], float]:
    randomness = EnumeratedRandomness(patch)
    patch.setattr(initialised, "draw", lambda rest, u: randomness.choices.choose(rest.tolist()))
    method = {"name": "initialised-test", **options}
    return randomness.law_of(lambda: tuple(engine.generate(PROMPT, method, max_new_tokens=length).tokens))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("initial", "tree", "length"), [(1, (2, 1), 4), (1, (1, 1), 4), (2, (), 4), (3, (), 3)], ids=str
)
def test_exact_through_the_loop(
    initial: int, tree: tuple[int, ...], length: int, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One root, and several without drafts, where ties go to the first drawn: ends and the last token included."""
    law = engine_law(engine, monkeypatch, length, initial=initial, tree=tree)
    plain = exact_law(TARGET, PROMPT, SamplingParams(), length, {0})
    assert law.keys() == plain.keys()
    assert all(abs(law[output] - chance) < 1e-12 for output, chance in plain.items())


def test_bias_through_the_loop(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token of a whole generation follows the formula; an ended root has no drafts."""
    law = engine_law(engine, monkeypatch, 3, initial=2, tree=(1,))
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(initialised, "draw", lambda rest, script: int(rest.argmax()))
        lengths = lengths_of((1,), True)
    lengths[0] = torch.tensor([1.0, 0.0])
    p = law_after(TARGET, PROMPT)
    predicted = kept_law(p, lengths, 2)
    for token in range(VOCAB):
        seen = sum(chance for output, chance in law.items() if output[0] == token)
        assert seen == pytest.approx(float(predicted[token]), abs=1e-12)
    assert total_variation(law, exact_law(TARGET, PROMPT, SamplingParams(), 3, {0})) > 0.01


def test_greedy_is_plain_greedy(engine: Engine) -> None:
    params = SamplingParams(temperature=0)
    for prompt in ([1, 2], [2, 2, 1], [1]):
        plain = engine.generate(prompt, "autoregressive", params, max_new_tokens=12)
        for initial, tree in ((1, (2, 1)), (3, (2, 2)), (2, (1, 1, 1))):
            method = {"name": "initialised-test", "initial": initial, "tree": tree}
            result = engine.generate(prompt, method, params, max_new_tokens=12)
            assert (result.tokens, result.finish_reason) == (plain.tokens, plain.finish_reason)


def test_lossy_generations_are_well_formed(engine: Engine) -> None:
    """Random requests: lengths, ends and what is said of each token agree."""
    for seed in range(60):
        method = {"name": "initialised-test", "initial": 1 + seed % 3, "tree": (2, 1)}
        params = SamplingParams(temperature=0.7, presence_penalty=0.3)
        result = engine.generate(PROMPT, method, params, max_new_tokens=1 + seed % 9, seed=seed)
        assert 1 <= len(result.tokens) <= 1 + seed % 9
        assert 0 not in result.tokens[:-1]
        assert (result.finish_reason == "length") == (result.tokens[-1] != 0)
        for i, (token, logprob) in enumerate(zip(result.tokens, result.logprobs, strict=True)):
            expected = float(law_after(TARGET, [*PROMPT, *result.tokens[:i]])[token].log())
            assert logprob == pytest.approx(expected, abs=1e-9)
