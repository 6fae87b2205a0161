"""Typical acceptance and greedy text: thresholds by hand, the longest accepted path by looking at all of them."""

import itertools
import math
import random

import pytest
import torch
from enumeration import EnumeratedRandomness

from draftwood import SamplingParams
from draftwood.core.forest import Forest
from draftwood.sampling.distributions import Distributions, Streams, warp
from draftwood.verify import GreedyText, Typical, tree
from draftwood.verify.typical import typical_threshold

VOCAB = 4


def test_threshold_by_hand() -> None:
    """min(epsilon, delta exp(-H)): H is 0 for a sure token, log 2 for two, log 4 for four equal ones."""
    p = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4], dtype=torch.float64)
    assert typical_threshold(p, 0.09, 0.3).tolist() == pytest.approx([0.09, 0.09, 0.075])
    assert typical_threshold(p, 1.0, 0.3).tolist() == pytest.approx([0.3, 0.15, 0.075])


def drafted(seed: int) -> tuple[Forest, torch.Tensor]:
    """A random tree below one root, and logits of a sharp random target after each node."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    forest = Forest.from_prompt([1, 2])
    nodes = list(forest.roots)
    for _ in range(rng.randint(1, 4)):
        grown = []
        for node in nodes:
            grown += forest.propose(node, rng.sample(range(VOCAB), rng.randint(0, 2)), None)
        nodes = grown
    return forest, 1.5 * torch.randn(len(forest), VOCAB, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=0.6, top_k=3)], ids=["plain", "warped"]
)
def test_the_longest_accepted_path_wins(params: SamplingParams) -> None:
    lengths = []
    for seed in range(300):
        forest, logits = drafted(seed)
        rule = Typical(0.2, 0.5)
        verdict = rule(forest, Distributions(forest, logits, params), Streams(seed))
        p = warp(logits, params)
        best: tuple[int, float, int] = (0, 0.0, 0)
        for node in range(1, len(forest)):
            chances, path = [], forest.path(node)
            for parent, child in itertools.pairwise(path):
                x = float(p[parent, forest.token[child]])
                entropy = -sum(float(c) * math.log(float(c)) for c in p[parent] if c > 0)
                chances.append(x if x > min(0.2, 0.5 * math.exp(-entropy)) else 0.0)
            if all(chances):
                best = max(best, (len(chances), math.fsum(map(math.log, chances)), -node))
        assert verdict.parent == [-best[2]]
        assert (verdict.accepted, forest.depth[verdict.parent[0]]) == (best[0], best[0])
        assert p[verdict.parent[0], verdict.token[0]] > 0
        edges = list(zip(forest.path(verdict.parent[0]), forest.path(verdict.parent[0])[1:], strict=False))
        for parent, child in edges:
            log_p = math.log(float(p[parent, forest.token[child]]))
            assert verdict.warped[parent, forest.token[child]] == pytest.approx(log_p)
        lengths.append(best[0])
    assert {0, 1, 2} <= set(lengths)


def test_the_next_root_follows_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """By enumeration: which drafts are accepted is not left to chance, the token after them follows p exactly."""
    randomness = EnumeratedRandomness(monkeypatch)
    for seed in range(10):
        forest, logits = drafted(seed)

        def run(forest: Forest = forest, logits: torch.Tensor = logits) -> tuple[int, int]:
            verdict = Typical()(forest, Distributions(forest, logits, SamplingParams()), Streams(0))
            return verdict.parent[0], verdict.token[0]

        law = randomness.law_of(run)
        ((node, _), *_) = law
        p = torch.softmax(logits[node], -1)
        assert {parent for parent, _ in law} == {node}
        assert all(chance == pytest.approx(float(p[token]), abs=1e-12) for (_, token), chance in law.items())


def test_temperature_0_is_greedy_and_so_is_the_greedy_rule_at_any() -> None:
    for seed in range(100):
        forest, logits = drafted(seed)
        wanted = tree.Rejection()(forest, Distributions(forest, logits, SamplingParams(temperature=0)), Streams(0))
        typical = Typical()(forest, Distributions(forest, logits, SamplingParams(temperature=0)), Streams(0))
        greedy = GreedyText()(forest, Distributions(forest, logits, SamplingParams(temperature=1.3)), Streams(0))
        for verdict in (typical, greedy):
            assert (verdict.parent, verdict.token, verdict.kind) == (wanted.parent, wanted.token, wanted.kind)
            assert (verdict.accepted, verdict.attempted) == (wanted.accepted, wanted.attempted)
