"""Whole generations follow plain decoding's law, by samples for every combination (test_exact_laws.py enumerates).

The law of plain decoding is enumerated from the tabular model itself, with a warper written independently.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from tabular import Output, exact_law, follows, frequencies, sampled, surplus, total_variation
from torch import Tensor

from draftwood import METHODS, Engine, SamplingParams, TabularModel
from draftwood.draft.base import Proposer
from draftwood.methods import Speculative
from draftwood.sampling.distributions import Streams
from draftwood.verify import Rejection, tree

PROMPT = [1, 2, 1, 2]
VOCAB, LENGTH, END = 4, 4, frozenset({0})
COUNT, FEW = 20_000, 1_000  # generations: in slow tests, and by default
TARGET = TabularModel.random(VOCAB, seed=11, order=4)
DRAFTS = [TabularModel.random(VOCAB, seed=12, order=3), TabularModel.random(VOCAB, seed=13, order=2)]

METHOD_CELLS: dict[str, tuple[dict[str, Any], int]] = {
    "autoregressive": ({"name": "autoregressive"}, 0),
    "speculative": ({"name": "speculative", "gamma": 3}, 1),
    "specinfer": ({"name": "specinfer", "expansion": [3, 2, 1]}, 1),
    "specinfer-2": ({"name": "specinfer", "expansion": [2, 2, 1]}, 2),
    "mcsd-iid": ({"name": "mcsd", "tree": [4, 2], "replacement": True}, 1),
    "mcsd-distinct": ({"name": "mcsd", "tree": [3, 2, 2], "replacement": False}, 1),
    "mcsd-fork": ({"name": "mcsd-fork", "width": 3, "gamma": 3}, 1),
    "lookup": ({"name": "lookup"}, 0),
    "speculative-lookup": ({"name": "speculative", "gamma": 3, "lookup": True}, 1),
}
WARPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "top_k": {"temperature": 1.3, "top_k": 3},
    "top_p": {"temperature": 0.8, "top_p": 0.85},
    "min_p": {"min_p": 0.25},
    "penalties": {
        "repetition_penalty": 1.4,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.5,
        "logit_bias": {0: -0.7, 3: 0.6},
    },
}
CELLS = [
    (method, verify, warped, concurrency)
    for method, verify, warped, concurrency in itertools.product(
        METHOD_CELLS, ("traversal", "rejection", "coupled"), WARPS, (1, 4)
    )
    if verify != "traversal" or method not in ("autoregressive", "lookup")
]
EVERYDAY = {
    ("speculative", "rejection", "plain", 1),  # the others in batches
    ("mcsd-distinct", "rejection", "top_k", 4),
    ("mcsd-distinct", "traversal", "penalties", 4),
    ("specinfer-2", "traversal", "plain", 4),
    ("lookup", "coupled", "top_p", 4),
}


def generations(
    method: dict[str, Any],
    drafts: int,
    sampling: dict[str, Any],
    concurrency: int = 1,
    first_seed: int = 0,
    count: int = COUNT,
) -> list[Output]:
    """`count` outputs under consecutive seeds."""
    engine = Engine(TARGET, DRAFTS[:drafts], end_tokens=END)
    params = SamplingParams(**sampling)
    options: dict[str, Any] = {"method": method, "sampling": params, "max_new_tokens": LENGTH}
    seeds = range(first_seed, first_seed + count)
    if concurrency == 1:
        return [tuple(engine.generate(PROMPT, seed=seed, **options).tokens) for seed in seeds]
    requests = [{"prompt": PROMPT, "seed": seed} for seed in seeds]
    return [tuple(result.tokens) for result in engine.batch(requests, concurrency=concurrency, **options)]


@functools.cache
def plain_law(warped: str) -> dict[Output, float]:
    return exact_law(TARGET, PROMPT, SamplingParams(**WARPS[warped]), LENGTH, END)


@functools.cache
def ideal_runs(warped: str, count: int) -> list[dict[Output, float]]:
    """Two runs of ideal samples of plain decoding: their distance is the noise level."""
    return [sampled(plain_law(warped), count, seed) for seed in (1, 2)]


@functools.cache
def plain_runs(warped: str) -> list[dict[Output, float]]:
    """Two runs of the engine's own plain decoding."""
    return [
        frequencies(generations({"name": "autoregressive"}, 0, WARPS[warped], 1, first_seed))
        for first_seed in (10**6, 2 * 10**6)
    ]


@pytest.mark.some(2)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell in EVERYDAY], ids=str)
def test_generations_follow_plain_decoding(cell: tuple[str, str, str, int]) -> None:
    """1,000 generations against the exact law, by chi-square and by total variation."""
    follows_plain_decoding(cell, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_generations_follow_plain_decoding_as_closely_as_it_follows_itself(cell: tuple[str, str, str, int]) -> None:
    """20,000 generations of every method, and the engine's own plain samples beside the exact law."""
    samples = follows_plain_decoding(cell, COUNT)
    assert follows(samples, plain_law(cell[2]), plain_runs(cell[2]))


def follows_plain_decoding(cell: tuple[str, str, str, int], count: int) -> list[Output]:
    method, verify, warped, concurrency = cell
    options, drafts = METHOD_CELLS[method]
    samples = generations({**options, "verify": verify}, drafts, WARPS[warped], concurrency, count=count)
    law = plain_law(warped)
    assert follows(samples, law, ideal_runs(warped, count))
    return samples


def test_the_law_is_a_law() -> None:
    """The reference itself: it sums to one, ends early at the end token and depends on the warp."""
    laws = [plain_law(warped) for warped in WARPS]
    for law in laws:
        assert sum(law.values()) == pytest.approx(1, abs=1e-12)
        assert any(len(output) < LENGTH for output in law)
        assert all(0 not in output[:-1] for output in law)
    for a, b in itertools.combinations(laws, 2):
        assert total_variation(a, b) > 0.05


# -- the check has power: wrong methods fail it ----------------------------------------------------------------------


class _Biased(Speculative):
    name: ClassVar[str] = "biased"


def biased_samples(
    monkeypatch: pytest.MonkeyPatch, verifier: Rejection, sampling: dict[str, Any], count: int = 500
) -> list[Output]:
    monkeypatch.setitem(METHODS, "biased", _Biased)
    monkeypatch.setattr(_Biased, "verifier", lambda self: verifier)
    return generations({"name": "biased", "gamma": 3}, 1, sampling, 8, count=count)


def test_check_finds_the_ratio_the_wrong_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec §9.1."""
    monkeypatch.setattr(tree, "acceptance", lambda p, q: min(1.0, q / p) if p > 0 else 1.0)
    samples = biased_samples(monkeypatch, Rejection(), {})
    assert surplus(samples, plain_law("plain")) > 15
    assert total_variation(frequencies(samples), plain_law("plain")) > 0.05


def test_check_finds_acceptance_with_the_noise_of_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    uniform = Streams.uniform
    draft_again = Streams(0)

    class Shared(Rejection):
        def __call__(self, forest: Any, target: Any, streams: Streams) -> Any:
            draft_again.__init__(streams.seed)
            draft_again.at(len(forest.trunk))
            return super().__call__(forest, target, draft_again)

    monkeypatch.setattr(Streams, "uniform", lambda streams, purpose: uniform(streams, "draft"))
    assert surplus(biased_samples(monkeypatch, Shared(), {}), plain_law("plain")) > 15


@pytest.mark.slow
def test_check_finds_drafts_that_were_not_warped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws follow q after top-k, but the verifier is told q before it."""
    call = Proposer.__call__

    def unwarped(self: Proposer, forest: Any, nodes: Sequence[int], logits: Tensor, *rest: Any) -> Any:
        children = call(self, forest, nodes, logits, *rest)
        for row, node in enumerate(nodes):
            for proposal in forest.proposals[node]:
                proposal.q = torch.softmax(logits[row] / self.params.temperature, -1)
        return children

    monkeypatch.setattr(Proposer, "__call__", unwarped)
    samples = biased_samples(monkeypatch, Rejection(), WARPS["top_k"], 1500)
    assert surplus(samples, plain_law("top_k")) > 6  # right methods stay below 5


@pytest.mark.slow
def test_check_finds_a_baseline_warped_unlike_the_method() -> None:
    """Temperature applied twice, and a warp that only one side has."""
    options, drafts = METHOD_CELLS["speculative"]
    samples = generations(options, drafts, {"temperature": 0.8 * 0.8, "top_p": 0.85}, 8, count=750)
    assert surplus(samples, plain_law("top_p")) > 10  # right methods stay below 5
