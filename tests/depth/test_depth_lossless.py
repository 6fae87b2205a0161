"""Controllers never change what is decoded: by enumeration, by samples, greedy and coupled text token for token."""

import functools
import itertools
from typing import Any

import pytest
from beam_reference import BeamLaw
from enumeration import EnumeratedRandomness, ScriptedChoices, law_of
from tabular import exact_law, follows, frequencies

from draftwood import Engine, SamplingParams, TabularModel
from draftwood.depth import ALONE, Confidence, DepthController, DraftState, Load, parse_depth
from draftwood.methods import Speculative
from draftwood.sampling.distributions import Streams

PROMPT, VOCAB, END = [1, 2, 1, 2], 4, frozenset({0})
TARGET = TabularModel.random(VOCAB, seed=11, order=4)
DRAFTS = [TabularModel.random(VOCAB, seed=12, order=3), TabularModel.random(VOCAB, seed=13, order=2)]
CONTROLLERS = [
    "auto",
    "fixed",
    "confidence:0.45",
    "entropy:1.0",
    "beta-ts",
    "speedup-ts",
    "speedup-ts:discount=0.8,cost=0.3",
    "optimal-stopping",
    "optimal-stopping:discount=0.8,cost=0.3",
]
REPEATABLE = [depth for depth in CONTROLLERS if depth not in ("speedup-ts", "optimal-stopping")]  # no time measured
CHAIN = {"name": "speculative", "gamma": 4}
FEW, FEWER = 500, 250  # generations
TREES: list[tuple[dict[str, Any], int]] = [
    (CHAIN, 1),
    ({"name": "specinfer", "expansion": [2, 1, 1]}, 2),
    ({"name": "mcsd", "tree": [3, 2, 1]}, 1),
]


@functools.cache
def plain_text(place: int, verify: str) -> list[int]:
    """Plain decoding of one of three prompts, greedy or with the noise of coupled sampling."""
    method = {"name": "autoregressive", "verify": verify}
    return Engine(TARGET).generate(**asked(place, verify), method=method).tokens


def asked(place: int, verify: str) -> dict[str, Any]:
    sampling = {"temperature": 0.8 if verify == "coupled" else 0}
    return {"prompt": [1, 1 + place, 3], "sampling": sampling, "max_new_tokens": 40, "seed": place}


@pytest.mark.parametrize("depth", CONTROLLERS)
def test_greedy_and_coupled_text_is_plain_decodings(depth: str) -> None:
    """Without end token, so that rounds are many and controllers change their minds."""
    for place, (method, drafts) in enumerate(TREES):
        engine = Engine(TARGET, DRAFTS[:drafts])
        for verify in ("rejection", "coupled"):
            found = engine.generate(**asked(place, verify), method={**method, "depth": depth, "verify": verify})
            assert found.tokens == plain_text(place, verify)


LONG = {("speedup-ts:discount=0.8,cost=0.3", 0)}  # thousands of replays, as most of the second method
LONG |= {(depth, 1) for depth in REPEATABLE if depth not in ("entropy:1.0", "beta-ts")}


@pytest.mark.parametrize(
    ("depth", "method"),
    [
        pytest.param(*cell, marks=pytest.mark.slow if cell in LONG else ())
        for cell in itertools.product(REPEATABLE, range(3))
    ],
)
def test_law_is_exact(depth: str, method: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every random number is enumerated, that of the controller too."""
    sizes = ({"gamma": 2}, {"expansion": [1, 1]}, {"tree": [2, 1]})
    target = TabularModel.random(3, seed=21)
    drafts = TREES[method][1]
    engine = Engine(target, [TabularModel.random(3, seed=22 + i) for i in range(drafts)], end_tokens=END)
    options = {**TREES[method][0], **sizes[method], "depth": depth}
    params = SamplingParams(temperature=1.5, top_k=2) if method == 2 else SamplingParams()
    EnumeratedRandomness(monkeypatch).assert_plain(engine, [1, 1], options, 4 if method == 0 else 3, params)


def test_dropping_an_unlikely_draft_is_not_exact() -> None:
    """Why a controller may only stop after a token, never take it back."""
    p, q, threshold = [0.2, 0.3, 0.5], [0.1, 0.6, 0.3], 0.2

    def emitted(drops: bool) -> list[float]:
        def experiment(choices: ScriptedChoices) -> int:
            token = choices.choose(q)
            if drops and q[token] < threshold:
                return choices.choose(p)
            if choices.coin(min(1.0, p[token] / q[token])):
                return token
            return choices.choose([max(0.0, a - b) for a, b in zip(p, q, strict=True)])

        law = law_of(experiment)
        return [law.get(token, 0.0) for token in range(3)]

    assert emitted(drops=False) == pytest.approx(p, abs=1e-12)
    assert emitted(drops=True) != pytest.approx(p, abs=0.02)


@pytest.mark.some(2)
@pytest.mark.parametrize(("depth", "concurrency"), [("speedup-ts", 1), ("beta-ts", 4), ("optimal-stopping", 4)])
def test_generations_follow_plain_decoding(depth: str, concurrency: int) -> None:
    engine = Engine(TARGET, DRAFTS[:1], end_tokens=END)
    requests = [{"prompt": PROMPT, "seed": seed} for seed in range(FEW)]
    results = engine.batch(
        requests, concurrency, method={**CHAIN, "depth": depth}, sampling={"temperature": 1.2}, max_new_tokens=4
    )
    samples = [tuple(result.tokens) for result in results]
    law = exact_law(TARGET, PROMPT, SamplingParams(temperature=1.2), 4, END)
    assert follows(samples, law)


# -- beams -----------------------------------------------------------------------------------------------------------

BEAM_TARGET, BEAM_DRAFT = TabularModel.random(3, seed=11, order=4), TabularModel.random(3, seed=12, order=3)


@functools.cache
def beam_law() -> Any:
    return BeamLaw(BEAM_TARGET, PROMPT, SamplingParams(), END, "joint").law(2, True, 4)


@pytest.mark.parametrize(
    "depth",
    [
        "confidence:0.5",
        "optimal-stopping",
        pytest.param("beta-ts", marks=pytest.mark.slow),
        pytest.param("speedup-ts:cost=0.2", marks=pytest.mark.slow),
    ],
)
def test_beams_follow_beam_sampling(depth: str) -> None:
    engine = Engine(BEAM_TARGET, [BEAM_DRAFT], end_tokens=END)
    method = {"name": "dsbd", "width": 2, "draft_width": 4, "gamma": 3, "n_best": 2, "depth": depth}
    samples: Any = [
        tuple(sorted(tuple(beam.tokens) for beam in engine.generate(PROMPT, method, max_new_tokens=4, seed=seed).beams))
        for seed in range(FEWER)
    ]
    assert follows(samples, beam_law())
    assert len(frequencies(samples)) > 10


@pytest.mark.parametrize("depth", CONTROLLERS)
def test_beam_search_is_the_same(depth: str) -> None:
    engine = Engine(TARGET, DRAFTS[:1], end_tokens=END)
    options: dict[str, Any] = {"max_new_tokens": 12}
    for prompt in ([1, 2], [3, 3, 1], [2, 1, 1]):
        plain = engine.generate(prompt, {"name": "beam-search", "width": 3, "n_best": 3}, **options)
        method = {"name": "speculative-beam-search", "width": 3, "n_best": 3, "gamma": 4, "depth": depth}
        found = engine.generate(prompt, method, **options)
        assert [beam.tokens for beam in found.beams] == [beam.tokens for beam in plain.beams]


# -- what controllers do and do not --------------------------------------------------------------------------------


class _Watched(DepthController):
    """A controller inside another that notes what it agreed to and which numbers it drew."""

    def __init__(self, inner: DepthController, log: list[tuple[int, int]], purposes: set[str]) -> None:
        self.inner, self.log, self.most, self.needs = inner, log, inner.most, inner.needs
        self.asked, self.purposes = 0, purposes

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self.asked = 0
        outer = self

        class Noted(Streams):
            def uniform(self, purpose: str) -> float:
                outer.purposes.add(purpose)
                return streams.uniform(purpose)

        self.inner.start(Noted(0), load)

    def deeper(self, state: DraftState) -> bool:
        if not self.inner.deeper(state):
            return False
        self.asked = state.depth + 1
        return True

    def width(self, most: int) -> int:
        return self.inner.width(most)

    def observe(self, round_: Any, state: Any = None) -> None:
        self.log.append((self.asked, round_.drafted))
        self.inner.observe(round_)


@pytest.mark.parametrize("depth", CONTROLLERS)
def test_every_drafted_token_is_verified_and_only_the_depth_stream_is_used(
    depth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[tuple[int, int]] = []
    purposes: set[str] = set()
    build = Speculative.build

    def watched(self: Speculative, *sessions: Any) -> Any:
        parts = build(self, *sessions)
        return parts._replace(depth=_Watched(parts.depth, log, purposes))

    monkeypatch.setattr(Speculative, "build", watched)
    engine = Engine(TARGET, DRAFTS[:1])
    for seed in range(4):
        engine.generate(PROMPT, {**CHAIN, "depth": depth}, max_new_tokens=60, seed=seed)
    assert all(asked == drafted for asked, drafted in log)
    assert purposes <= {"depth"}
    assert bool(purposes) == ("-ts" in depth)
    if depth not in ("auto", "fixed") and depth in REPEATABLE:
        assert len({asked for asked, _ in log}) > 2  # it decides


def test_numbers_of_controllers_change_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that always reaches the same depth, with or without drawing, gives the same sampled text."""

    class Wasteful(Confidence):
        def start(self, streams: Streams, load: Load = ALONE) -> None:
            for _ in range(7):
                streams.uniform("depth")

    engine = Engine(TARGET, DRAFTS[:1])
    plain = engine.generate(PROMPT, CHAIN, max_new_tokens=60, seed=5)
    monkeypatch.setattr(
        Speculative,
        "build",
        lambda *parts, build=Speculative.build: build(*parts)._replace(depth=Wasteful(4, 0.0)),
    )
    assert engine.generate(PROMPT, CHAIN, max_new_tokens=60, seed=5).tokens == plain.tokens


@pytest.mark.parametrize("depth", ["speedup-ts:cost=50", "optimal-stopping:cost=50"])
def test_depth_zero_is_plain_decoding(depth: str) -> None:
    engine = Engine(TARGET, DRAFTS[:1])
    for name in ("speculative", "dsbd", "speculative-beam-search", "mcsd"):
        result = engine.generate(PROMPT, {"name": name, "depth": depth}, max_new_tokens=20)
        assert result.metrics.drafted == 0
        assert len(result.tokens) == 20


def test_texts_repeat_when_the_cost_is_given() -> None:
    engine = Engine(TARGET, DRAFTS[:1])
    for depth in ("beta-ts", "speedup-ts:cost=0.2", "optimal-stopping:cost=0.2", "confidence"):
        options: dict[str, Any] = {"method": {**CHAIN, "depth": depth}, "max_new_tokens": 50}
        alone = [engine.generate(PROMPT, seed=seed, **options).tokens for seed in range(4)]
        batch = engine.batch([{"prompt": PROMPT, "seed": seed} for seed in range(4)], 4, **options)
        assert [result.tokens for result in batch] == alone


def test_a_sharper_confidence_threshold_drafts_less_and_wastes_less() -> None:
    engine = Engine(TARGET, DRAFTS[:1])
    rates, drafted = [], []
    for threshold in (0.0, 0.5, 0.8):
        method = {"name": "speculative", "gamma": 6, "depth": {"name": "confidence", "threshold": threshold}}
        result = engine.generate(PROMPT, method, sampling={"temperature": 0}, max_new_tokens=200)
        drafted.append(result.metrics.drafted / result.metrics.rounds)
        rates.append(result.metrics.acceptance_rate)
    assert drafted == sorted(drafted, reverse=True)
    assert drafted[0] > drafted[-1]
    assert parse_depth("confidence:0.8").build(6) == Confidence(6, 0.8)
