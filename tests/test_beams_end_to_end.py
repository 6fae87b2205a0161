"""The final set of beams of whole generations follows beam sampling: by samples, for every combination of options.

The law of beam sampling is enumerated from the tabular model by beam_reference.py; test_beams_exact.py is the sharper
check of small cases, this one covers long rounds, wide drafts and batches.
"""

import functools
from typing import Any

import pytest
from beam_reference import BeamLaw, Beams
from tabular import follows, frequencies, surplus

from draftwood import Engine, SamplingParams, TabularModel

PROMPT = [1, 2, 1, 2]
END = frozenset({0})
COUNT, FEW = 20_000, 400
TARGET = TabularModel.random(3, seed=11, order=4)
DRAFT = TabularModel.random(3, seed=12, order=3)
LENGTH = 5  # layers: more than a round of four drafted ones

WARPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "top_k": {"temperature": 1.3, "top_k": 4},
    "top_p": {"temperature": 0.75, "top_p": 0.85},
    "penalties": {"repetition_penalty": 1.5, "presence_penalty": 0.25, "frequency_penalty": 0.5, "logit_bias": {0: -1}},
}
Cell = tuple[dict[str, Any], str, int]  # options of dsbd, sampling, concurrency
QUICK: list[Cell] = [
    ({"width": 2, "draft_width": 4, "gamma": 4}, "plain", 8),
    ({"width": 2, "draft_width": 3, "gamma": 2, "replacement": False}, "top_k", 4),
    ({"width": 3, "draft_width": 6, "gamma": 2, "root_weights": "target"}, "top_p", 1),
    ({"width": 1, "draft_width": 2, "gamma": 3, "warp": "token"}, "penalties", 4),
]
CELLS: list[Cell] = [
    ({"width": width, "draft_width": drafted, "gamma": gamma, "warp": warp, **rest}, warped, concurrency)
    for width, drafted, gamma, warp, warped, concurrency in (
        (1, 2, 1, "joint", "plain", 1),
        (1, 6, 4, "joint", "top_p", 4),
        (2, 2, 3, "joint", "plain", 4),
        (2, 6, 2, "token", "top_k", 1),
        (2, 4, 4, "joint", "penalties", 1),
        (3, 5, 3, "joint", "top_k", 4),
        (3, 6, 4, "token", "top_p", 4),
    )
    for rest in (
        {"replacement": True, "root_weights": "draft"},
        {"replacement": True, "root_weights": "target"},
        {"replacement": False, "root_weights": "draft"},
        {"replacement": False, "root_weights": "target"},
    )
]


def final_beams(method: dict[str, Any], warped: str, concurrency: int, count: int, first_seed: int = 0) -> list[Beams]:
    """The sets of beams of `count` generations under consecutive seeds."""
    engine = Engine(TARGET, [DRAFT] if method["name"] == "dsbd" else [], end_tokens=END)
    options: dict[str, Any] = {
        "method": {**method, "n_best": method["width"]},
        "sampling": SamplingParams(**WARPS[warped]),
        "max_new_tokens": LENGTH,
    }
    seeds = range(first_seed, first_seed + count)
    if concurrency == 1:
        results = [engine.generate(PROMPT, seed=seed, **options) for seed in seeds]
    else:
        results = engine.batch([{"prompt": PROMPT, "seed": seed} for seed in seeds], concurrency, **options)
    return [tuple(sorted(tuple(beam.tokens) for beam in result.beams)) for result in results]


@functools.cache
def reference(width: int, warped: str, replacement: bool, warp: str) -> dict[Beams, float]:
    law = BeamLaw(TARGET, PROMPT, SamplingParams(**WARPS[warped]), END, warp)
    return law.law(width, replacement, LENGTH)


def law_of(options: dict[str, Any], warped: str) -> dict[Beams, float]:
    return reference(options["width"], warped, options.get("replacement", True), options.get("warp", "joint"))


@pytest.mark.some(1)
@pytest.mark.parametrize(("options", "warped", "concurrency"), QUICK[:2], ids=str)
def test_beams_follow_beam_sampling(options: dict[str, Any], warped: str, concurrency: int) -> None:
    samples = final_beams({"name": "dsbd", **options}, warped, concurrency, FEW)
    law: Any = law_of(options, warped)
    assert follows(samples, law)


@pytest.mark.slow
@pytest.mark.parametrize(("options", "warped", "concurrency"), [*QUICK, *CELLS], ids=str)
def test_beams_follow_beam_sampling_as_closely_as_it_follows_itself(
    options: dict[str, Any], warped: str, concurrency: int
) -> None:
    """20,000 generations against the enumerated law and against two runs of beam sampling itself."""
    samples: Any = final_beams({"name": "dsbd", **options}, warped, concurrency, COUNT)
    law: Any = law_of(options, warped)
    plain = {key: options[key] for key in ("width", "warp", "replacement") if key in options}
    runs: Any = [
        frequencies(final_beams({"name": "beam-sampling", **plain}, warped, 4, COUNT, seed))  # type: ignore[arg-type]
        for seed in (10**6, 2 * 10**6)
    ]
    assert follows(samples, law, runs)


def test_the_check_has_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec §9.2: a draft's joint that is not restricted to the accepted beams is found by as few generations."""
    options = {"width": 1, "draft_width": 4, "gamma": 3}
    monkeypatch.setattr("draftwood.verify.joint.Joint.restrict", lambda joint, beams: joint)
    samples: Any = final_beams({"name": "dsbd", **options}, "plain", 8, FEW)
    law: Any = law_of(options, "plain")
    assert surplus(samples, law) > 10
