"""MCSD's released rule: its law is that of the authors' procedure, written down again here with all coins enumerated;
it is biased for every number of initial tokens, by as much as docs/exactness.md says."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from enumeration import EnumeratedRandomness, ScriptedChoices, law_of, sequences
from tabular import exact_law, total_variation
from test_initialised import DRAFT, PROMPT, TARGET, VOCAB, Script, grown, law_after, planted
from torch import Tensor

from draftwood import Engine, Method, SamplingParams
from draftwood.core.forest import FINISHED, TRUNK, Forest
from draftwood.errors import ConfigurationError
from draftwood.explain.judging import VerdictRecorder
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.verify import LongestPath, longest

Law = dict[tuple[int, ...], float]


def as_released(forest: Forest, roots: Sequence[int], tree: Sequence[int], p: Sequence[Tensor]) -> Law:
    """The law of (kept tokens ..., next token) by the authors' matrices: one coin for each draft, a row for each depth,
    a column for each leaf, products down the columns, the first of the longest columns."""
    layers = [list(roots)]
    for _ in tree:
        layers.append([child for node in layers[-1] for child in forest.proposals[node][0].nodes])
    drafts = [node for layer in layers[1:] for node in layer]
    columns = [forest.path(leaf) for leaf in layers[-1]]
    q = {node: forest.proposals[forest.parent[node]][0].q for node in drafts}
    chance = {}
    for node in drafts:
        x = forest.token[node]
        chance[node] = min(1.0, float(p[forest.parent[node]][x] / q[node][x]))  # type: ignore[index]
    law: dict[tuple[int, ...], float] = defaultdict(float)
    for coins in itertools.product((True, False), repeat=len(drafts)):
        weight, accepted = 1.0, dict(zip(drafts, coins, strict=True))
        for node, coin in accepted.items():
            weight *= chance[node] if coin else 1 - chance[node]
        if weight == 0:
            continue
        lengths = [len(list(itertools.takewhile(accepted.__getitem__, column[1:]))) for column in columns]
        best = lengths.index(max(lengths))
        path = columns[best][: 1 + lengths[best]]
        rest = p[path[-1]]
        if 0 < lengths[best] < len(tree):  # after no acceptance at all, and after full acceptance, p itself
            rest = (rest - forest.proposals[path[-1]][0].q).clamp(min=0)  # type: ignore[operator]
            rest = rest / rest.sum()
        for token, share in enumerate(rest.tolist()):
            law[(*(forest.token[node] for node in path), token)] += weight * share
    return law


@pytest.mark.some(3)
@pytest.mark.parametrize(("count", "tree"), [(1, (1,)), (1, (2,)), (1, (1, 1, 1)), (1, (2, 1)), (2, (2,))])
def test_the_law_is_that_of_the_released_procedure(count: int, tree: tuple[int, ...]) -> None:
    def drafted(choices: ScriptedChoices) -> tuple[Forest, Tensor]:
        forest = planted(list(dict.fromkeys(sequences(choices, law_after(TARGET, PROMPT), count, False))))
        return forest, grown(forest, choices, tree, False)

    def verified(choices: ScriptedChoices) -> tuple[int, ...]:
        forest, logits = drafted(choices)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(longest, "draw", lambda rest, script: choices.choose(rest.tolist()))
            verdict = LongestPath(1)(forest, Distributions(forest, logits, SamplingParams()), Script(choices))  # type: ignore[arg-type]
        return (*(forest.token[node] for node in forest.path(verdict.parent[0])), verdict.token[0])

    def released(choices: ScriptedChoices) -> tuple[tuple[tuple[int, ...], float], ...]:
        forest, logits = drafted(choices)
        return tuple(as_released(forest, forest.roots, tree, logits.exp().unbind()).items())

    theirs: Law = defaultdict(float)
    for law, weight in law_of(released).items():
        for outcome, chance in law:
            theirs[outcome] += weight * chance
    mine = law_of(verified)
    assert mine.keys() == {outcome for outcome, chance in theirs.items() if chance > 0}
    assert all(abs(mine[outcome] - theirs[outcome]) < 1e-12 for outcome in mine)


def bias(initial: int, tree: Sequence[int], length: int, verify: str = "longest") -> float:
    """Total variation of whole outputs from plain decoding's."""
    engine = Engine(TARGET, [DRAFT])
    method = Method.parse({"name": "mcsd", "tree": list(tree), "initial": initial, "verify": verify})
    with pytest.MonkeyPatch.context() as patch:
        randomness = EnumeratedRandomness(patch)
        patch.setattr(longest, "draw", lambda rest, u: randomness.choices.choose(rest.tolist()))
        law = randomness.law_of_texts(engine, PROMPT, method, length)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    return total_variation(law, exact_law(TARGET, PROMPT, SamplingParams(), length))


@pytest.mark.slow
def test_it_is_biased_by_as_much_as_the_documentation_says() -> None:
    """One initial token too: several siblings, and what follows a round without acceptance."""
    page = " ".join((Path(__file__).parents[2] / "docs" / "exactness.md").read_text().split())
    chain, tree, several = bias(1, (1,), 3), bias(1, (2,), 3), bias(2, (1,), 3)
    assert min(chain, tree, several) > 0.01
    said = f"by {chain:.3f} for a chain of one draft and one initial token, {tree:.3f} for two siblings"
    assert f"{said}, {several:.3f} for two initial tokens" in page


def test_greedy_rounds_begin_with_the_targets_best_and_keep_its_choices() -> None:
    """The second best root wins if more of what follows it was foreseen; what was accepted is the target's best."""
    forest = planted([0, 2])
    (b,) = forest.propose(0, [1], None)
    (a,) = forest.propose(1, [1], None)
    logits = torch.zeros(4, VOCAB, dtype=torch.float64)
    logits[0, 0] = logits[1, 1] = 5.0
    logits[a] = torch.tensor([3.0, -torch.inf, 7.0], dtype=torch.float64)
    target = Distributions(forest, logits, SamplingParams(temperature=0))
    verdict = LongestPath(3)(forest, target, Streams(0))
    assert (verdict.parent, verdict.token, verdict.accepted) == ([a, a], [2, 0], 1)  # the impossible one is left out
    assert b not in forest.path(a)
    engine = Engine(TARGET, [DRAFT])
    method = {"name": "mcsd", "tree": [2, 1], "initial": 1, "verify": "longest"}
    for prompt in ([1, 2], [2, 2, 1]):
        plain = engine.generate(prompt, "autoregressive", {"temperature": 0}, max_new_tokens=10)
        one = engine.generate(prompt, method, {"temperature": 0}, max_new_tokens=10)
        assert one.tokens == plain.tokens  # with one root there is nothing to choose
        several = engine.generate(prompt, {**method, "initial": 3}, {"temperature": 0}, max_new_tokens=10)
        assert not several.lossless and len(several.tokens) == 10


def test_an_ended_root_wins_only_a_tie() -> None:
    forest = Forest(trunk=list(PROMPT), prompt=len(PROMPT), end=frozenset({0}))
    forest.roots = [forest.add(TRUNK, token) for token in (0, 2)]
    forest.propose(1, [1], None)
    logits = torch.zeros(3, VOCAB, dtype=torch.float64)
    logits[1, 1] = 50.0
    assert LongestPath(2)(forest, Distributions(forest, logits, SamplingParams()), Streams(0)).parent[0] == 2
    logits[1, 1] = -torch.inf
    verdict = LongestPath(2)(forest, Distributions(forest, logits, SamplingParams()), Streams(0))
    assert (verdict.parent, verdict.token) == ([0], [FINISHED])


@pytest.mark.parametrize("name", ["mcsd", "mcsd-fork"])
def test_generations_are_well_formed_and_explained(name: str) -> None:
    """Lengths, ends and log-probabilities agree, and chances that are told are those that were tossed for."""
    engine = Engine(TARGET, [DRAFT], end_tokens=frozenset({0}))
    size = {"tree": [2, 1], "initial": 2} if name == "mcsd" else {"width": 2, "gamma": 2}
    for seed in range(40):
        params = SamplingParams(temperature=0.7 * (seed % 3), presence_penalty=0.3)
        result = engine.generate(
            PROMPT, {"name": name, "verify": "longest", **size}, params, max_new_tokens=1 + seed % 9, seed=seed
        )
        assert not result.lossless and 0 not in result.tokens[:-1]
        assert (result.finish_reason == "length") == (result.tokens[-1] != 0)
        for i, (token, logprob) in enumerate(zip(result.tokens, result.logprobs, strict=True)):
            expected = float(law_after(TARGET, [*PROMPT, *result.tokens[:i]])[token].log())
            assert logprob == pytest.approx(expected, abs=1e-9)


def test_explanations_tell_the_chances_that_were_tossed_for() -> None:
    forest = planted([2])
    q = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    forest.propose(0, [0, 1], q, False)
    p = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)
    target = Distributions(forest, p.log().repeat(3, 1), SamplingParams())
    recorder = VerdictRecorder(LongestPath(1))
    verdict = recorder(forest, target, Streams(3))
    (found,) = recorder.judgements
    first, second = found.drafts
    assert first.chance == pytest.approx(0.2) and second.chance == 1  # the second one as if the first were not there
    assert (verdict.accepted, second.fate) == (1, "accepted")


@pytest.mark.parametrize("deep", [0, 1])
def test_a_sibling_that_its_coin_accepted_is_not_called_rejected(deep: int) -> None:
    """The path below one of two accepted siblings is longer; what stands below the other was judged, too."""
    forest = planted([2])
    q, p = (torch.tensor(row, dtype=torch.float64) for row in ([0.25, 0.5, 0.25], [0.3, 0.6, 0.1]))
    siblings = forest.propose(0, [0, 1], q, False)
    (behind,) = forest.propose(siblings[deep], [0], q)
    forest.propose(siblings[1 - deep], [2], torch.tensor([0, 0, 1], dtype=torch.float64))
    target = Distributions(forest, p.log().repeat(5, 1), SamplingParams())
    recorder = VerdictRecorder(LongestPath(1))
    found = []
    for seed in range(20):
        verdict = recorder(forest, target, Streams(seed))
        fates = {one.outcome: (one.fate, one.chance) for one in recorder.judgements[-1].drafts}
        assert len(fates) == 4
        found.append(fates[siblings[1 - deep], 2][0])
        if found[-1] == "rejected":  # with chance 0.9
            assert fates[0, 1 - deep] == ("outrun", 1) and fates[0, deep] == ("accepted", 1)
            assert verdict.parent == [behind]
    assert found.count("rejected") > 10


def test_what_follows_an_accepted_path() -> None:
    """The residual where drafts behind an accepted one were rejected, the target's own law in all other cases."""
    forest = planted([2])
    q, p = (torch.tensor(row, dtype=torch.float64) for row in ([0.5, 0.25, 0.25], [0.2, 0.5, 0.3]))
    (first,) = forest.propose(0, [1], q)
    (second,) = forest.propose(first, [2], q)
    target, rule = Distributions(forest, p.log().repeat(3, 1), SamplingParams()), LongestPath(1)
    laws = [rule.behind(forest, path, target).tolist() for path in ([0], [0, first], [0, first, second])]
    assert laws == [pytest.approx(p.tolist()), pytest.approx([0, 5 / 6, 1 / 6]), pytest.approx(p.tolist())]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verify": "longest", "replacement": True}, "use replacement=false"),
        ({"verify": "longest", "draws": "greedy"}, "use draws=sampled"),
        ({"initial": 2, "verify": "rejection"}, "use initial 1, or verify=longest-root or longest, which are lossy"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Method.parse({"name": "mcsd", **options})
    assert Method.parse({"name": "mcsd", "initial": 2}).as_dict()["verify"] == "longest-root"
    assert Method.parse({"name": "mcsd", "verify": "longest"}).lossless is False
    with pytest.raises(ValueError, match="at least one token"):
        LongestPath(0)
