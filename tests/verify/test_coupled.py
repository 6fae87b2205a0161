"""Gumbel-coupled verification: the choice at a position is a function of p, the seed and the position alone."""

import math
from collections import Counter

import pytest
import torch

from draftwood import Engine, SamplingParams, TabularModel
from draftwood.core.forest import Forest
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.verify import Coupled

TARGET = TabularModel.random(5, seed=1, order=2, sharpness=2)


def resembling(seed: int) -> TabularModel:
    """A draft model that agrees with the target to a degree."""
    noise = TabularModel.random(5, seed)
    return TabularModel(lambda prefix: [a + b for a, b in zip(TARGET.law(prefix), noise.law(prefix), strict=True)], 5)


DRAFTS = [resembling(2), resembling(3)]
METHODS = [
    ({"name": "speculative", "gamma": 3}, 1),
    ({"name": "specinfer", "expansion": [2, 2]}, 1),
    ({"name": "specinfer", "expansion": [2, 1, 1]}, 2),
    ({"name": "mcsd", "tree": [3, 2], "replacement": True}, 1),
    ({"name": "mcsd", "tree": [4, 2], "replacement": False}, 1),
    ({"name": "lookup"}, 0),
]
SAMPLINGS = [
    {},
    {"temperature": 0.7, "top_k": 3},
    {"top_p": 0.8},
    {"min_p": 0.3},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "logit_bias": {1: 0.5}},
    {"temperature": 0.0},
]


@pytest.mark.some(14)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: "+".join(s) or "plain")
@pytest.mark.parametrize(("method", "drafts"), METHODS, ids=lambda m: m["name"] if isinstance(m, dict) else str(m))
def test_text_under_a_seed_does_not_depend_on_the_drafter(
    method: dict[str, object], drafts: int, sampling: dict[str, object]
) -> None:
    engine = Engine(TARGET, DRAFTS[:drafts], end_tokens=frozenset({0}))
    options = {"sampling": sampling, "max_new_tokens": 12}
    accepted = 0
    for seed in range(12):
        prompt = [1, 2, seed % 5, seed // 5, 1, 2]
        plain = engine.generate(prompt, {"name": "autoregressive", "verify": "coupled"}, seed=seed, **options)
        result = engine.generate(prompt, {**method, "verify": "coupled"}, seed=seed, **options)
        assert result.tokens == plain.tokens
        assert result.finish_reason == plain.finish_reason
        assert result.logprobs == pytest.approx(plain.logprobs)
        assert result.warped_logprobs == pytest.approx(plain.warped_logprobs)
        accepted += result.metrics.accepted
    assert accepted > 1  # speculation did happen


def test_rejection_text_does_depend_on_the_drafter() -> None:
    """The property is that of coupling, not of easy models."""
    engine = Engine(TARGET, DRAFTS[:1])
    plain = [engine.generate([1], "autoregressive", seed=seed, max_new_tokens=6).tokens for seed in range(20)]
    drafted = [engine.generate([1], "speculative", seed=seed, max_new_tokens=6).tokens for seed in range(20)]
    assert plain != drafted


def test_choices_follow_p() -> None:
    """argmax(log p + Gumbel noise) is distributed as p, over seeds and over positions; impossible tokens never come."""
    p = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05], dtype=torch.float64)
    forest = Forest.from_prompt([0])
    logits = p.log()[None]
    count, target = 6_000, Distributions(forest, logits, SamplingParams())
    over_seeds = Counter(Coupled()(forest, target, Streams(seed)).token[0] for seed in range(count))
    streams = Streams(7)
    over_positions: Counter[int] = Counter()
    for position in range(count):
        forest.trunk = [0] * position
        streams.at(position)
        over_positions[Coupled()(forest, Distributions(forest, logits, SamplingParams()), streams).token[0]] += 1
    for counts in (over_seeds, over_positions):
        assert counts[1] == 0
        statistic = sum((counts[x] - count * float(p[x])) ** 2 / (count * float(p[x])) for x in (0, 2, 3, 4))
        assert statistic < 3 + 5 * math.sqrt(6)


def test_nodes_at_one_position_share_noise() -> None:
    """Siblings predict the same position: with equal logits they choose the same token."""
    forest = Forest.from_prompt([0])
    for token in range(4):
        forest.propose(0, [token], None)
    streams = Streams(3)
    logits = torch.zeros(5, 50, dtype=torch.float64)
    first = streams.arrivals(1, 50, torch.device("cpu"))
    verdict = Coupled()(forest, Distributions(forest, logits, SamplingParams()), streams)
    assert verdict.token == [int(first.argmin())]
    assert not torch.equal(first, streams.arrivals(2, 50, torch.device("cpu")))
    assert torch.equal(first, Streams(3).arrivals(1, 50, torch.device("cpu")))


def test_one_shared_noise_accepts_more_than_a_list_of_noises() -> None:
    """Gumbel list sampling (arXiv 2506.05632) gives each of n drafts a noise of its own, and the target their best.

    Here all n drafts are the largest of log q plus the one noise that the target uses: more of them are right, and the
    text does not depend on n. So lists are not built.
    """
    generator = torch.Generator().manual_seed(0)
    count, vocab = 1500, 30
    for n in (2, 4):
        listed = shared = 0
        for _ in range(count):
            log_p = torch.randn(vocab, generator=generator) * 2
            log_q = log_p + torch.randn(vocab, generator=generator)
            noise = -torch.empty(n, vocab).exponential_(generator=generator).log()
            best = noise.amax(0)  # Gumbel noise, moved by log n
            token = int((log_p + best).argmax())
            listed += token in (log_q + noise).argmax(-1).tolist()
            shared += token in (log_q + best).topk(n).indices.tolist()
        assert (shared - listed) / count > 0.05
