"""Controllers whose requests learn together; rounds without drafts: when they come, and that drafting comes back."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from enumeration import EnumeratedRandomness
from tabular import exact_law, follows
from test_depth_simulation import a_round

from draftwood import Engine, Method, SamplingParams, TabularModel
from draftwood.depth import (
    Acceptance,
    BetaThompson,
    CalibratedThompson,
    DepthController,
    DraftCost,
    DraftState,
    Learner,
    OptimalStopping,
    SpeedupThompson,
    parse_depth,
)
from draftwood.sampling.distributions import Streams

PROMPT, VOCAB, END = [1, 2, 1, 2], 4, frozenset({0})
TARGET = TabularModel.random(VOCAB, seed=11, order=4)
DRAFT = TabularModel.random(VOCAB, seed=12, order=3)
HOPELESS = [TabularModel(lambda prefix: [1.0, 0.0], 2), TabularModel(lambda prefix: [0.0, 1.0], 2)]
CHAIN = {"name": "speculative", "gamma": 4}
SHARED = ["beta-ts:shared=true", "speedup-ts:cost=0.2,shared=true", "optimal-stopping:cost=0.2,shared=true"]
LEARNERS: dict[str, Callable[[], Learner]] = {
    "beta-ts": lambda: BetaThompson(6, shared=True),
    "speedup-ts": lambda: SpeedupThompson(6, shared=True),
    "optimal-stopping": lambda: OptimalStopping(6, shared=True),
    "cali-ts": lambda: CalibratedThompson(6, lambda state, target: 0.7, shared=True),
}


def knowledge(controller: Any) -> list[Any]:
    """All that a controller has learned."""
    parts = [getattr(controller, name, None) for name in ("acceptance", "seen")]
    return [repr(part) for part in parts]


def ask(controller: DepthController, seed: int, position: int) -> int:
    """Depth of a round."""
    streams = Streams(seed)
    streams.at(position)
    controller.start(streams)
    depth = 0
    while controller.deeper(DraftState(depth)):
        depth += 1
    return depth


@pytest.mark.parametrize("name", LEARNERS)
def test_requests_learn_into_one_posterior_and_keep_their_rounds_apart(name: str) -> None:
    """Two interleaved requests: what is learned is of both, what a round asked for is its own."""
    first = LEARNERS[name]()
    other: Any = first.for_request()
    assert other is not first and knowledge(other) == knowledge(first)
    streams = Streams(3)
    for position in range(30):
        streams.at(position)
        first.start(streams)
        began = first.deeper(DraftState(0)) and first.deeper(DraftState(1))
        ask(other, 4, position)  # another round begins and is asked in between
        again: Any = first.for_request()
        assert again._asked == 0 if hasattr(again, "_asked") else True
        first.observe(a_round(2 if began else 0, 2 if began else 0, 0.1))
        other.observe(a_round(0, 1, 0.1))
        assert knowledge(other) == knowledge(first)
    fresh = LEARNERS[name]()
    assert knowledge(fresh) != knowledge(first)


@pytest.mark.parametrize("depth", ["speedup-ts:cost=0.5", "optimal-stopping:cost=0.5", "beta-ts:zero=true"])
def test_later_requests_profit(depth: str) -> None:
    """Drafts are never accepted: ten short requests waste fewer of them together, in turns and at once."""
    wasted = {}
    for shared in ("", ",shared=true"):
        for concurrency in (1, 5):
            engine = Engine(HOPELESS[0], HOPELESS[1:])
            requests = [{"prompt": [0], "seed": seed} for seed in range(10)]
            results = engine.batch(requests, concurrency, method={**CHAIN, "depth": depth + shared}, max_new_tokens=12)
            wasted[shared, concurrency] = sum(result.metrics.drafted for result in results)
    assert wasted["", 1] == wasted["", 5]  # requests alone do not see each other
    assert wasted[",shared=true", 1] < 0.5 * wasted["", 1]
    assert wasted[",shared=true", 5] < 0.6 * wasted["", 1]


def test_only_requests_of_one_method_and_one_engine_learn_together() -> None:
    def drafted(engine: Engine, **options: Any) -> int:
        method = {**CHAIN, "depth": "speedup-ts:cost=0.5,shared=true", **options}
        return engine.generate([0], method, max_new_tokens=30).metrics.drafted

    engine = Engine(HOPELESS[0], HOPELESS[1:])
    first = drafted(engine)
    assert drafted(engine) < first
    assert drafted(engine, verify="coupled") == first == drafted(Engine(HOPELESS[0], HOPELESS[1:]))


@pytest.mark.parametrize("depth", SHARED)
def test_greedy_and_coupled_text_is_plain_decodings(depth: str) -> None:
    engine = Engine(TARGET, [DRAFT])
    for verify, temperature in (("rejection", 0.0), ("coupled", 0.8)):
        requests = [{"prompt": [1, 1 + seed % 3, 3], "seed": seed} for seed in range(6)]
        options: dict[str, Any] = {"sampling": {"temperature": temperature}, "max_new_tokens": 25}
        plain = engine.batch(requests, 3, method={"name": "autoregressive", "verify": verify}, **options)
        for concurrency in (1, 4):
            found = engine.batch(requests, concurrency, method={**CHAIN, "depth": depth, "verify": verify}, **options)
            assert [one.tokens for one in found] == [one.tokens for one in plain]


def test_joint_law_of_two_requests_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second request's drafts depend on the first's text; their texts are independent and follow the target."""
    target, draft = TabularModel.random(2, seed=21), TabularModel.random(2, seed=22)
    method = {"name": "speculative", "gamma": 2, "depth": "beta-ts:zero=true,shared=true"}
    randomness = EnumeratedRandomness(monkeypatch)

    def experiment() -> tuple[tuple[int, ...], ...]:
        engine = Engine(target, [draft])
        return tuple(tuple(engine.generate([1], method, max_new_tokens=2).tokens) for _ in range(2))

    law = randomness.law_of(experiment)
    plain = exact_law(target, [1], SamplingParams(), 2, frozenset())
    assert len(law) == len(plain) ** 2
    assert all(abs(law[one, other] - plain[one] * plain[other]) < 1e-12 for one in plain for other in plain)


@pytest.mark.parametrize("depth", ["speedup-ts:shared=true", pytest.param(SHARED[2], marks=pytest.mark.slow)])
def test_generations_follow_plain_decoding(depth: str) -> None:
    engine = Engine(TARGET, [DRAFT], end_tokens=END)
    requests = [{"prompt": PROMPT, "seed": seed} for seed in range(400)]
    results = engine.batch(requests, 4, method={**CHAIN, "depth": depth}, max_new_tokens=4)
    samples = [tuple(result.tokens) for result in results]
    law = exact_law(TARGET, PROMPT, SamplingParams(), 4, END)
    assert follows(samples, law)


def test_sampled_texts_depend_on_the_order_only_where_shared() -> None:
    """As the documentation says: law as before, texts under a seed not."""

    def texts(depth: str, order: list[int]) -> list[list[int]]:
        engine = Engine(TARGET, [DRAFT])
        method = {**CHAIN, "depth": depth}
        made = {seed: engine.generate(PROMPT, method, max_new_tokens=25, seed=seed).tokens for seed in order}
        return [made[seed] for seed in sorted(made)]

    seeds = list(range(6))
    assert texts("speedup-ts:cost=0.2", seeds) == texts("speedup-ts:cost=0.2", seeds[::-1])
    assert texts(SHARED[1], seeds) != texts(SHARED[1], seeds[::-1])
    assert texts(SHARED[1], seeds) == texts(SHARED[1], seeds)


@pytest.mark.parametrize("depth", SHARED)
def test_settings_round_trip(depth: str) -> None:
    method = Method.parse({**CHAIN, "depth": depth})
    assert method.as_dict()["depth"] == depth
    assert Method.parse(method.as_dict()) == method
    built: Any = parse_depth(depth).build(4)
    assert isinstance(built, Learner) and built.shared
    assert not parse_depth(depth.partition(":")[0]).build(4).shared  # type: ignore[attr-defined]


# -- rounds without drafts ---------------------------------------------------------------------------------------------

WITH_ZERO: dict[str, Callable[[], DepthController]] = {
    "beta-ts": lambda: BetaThompson(6, Acceptance(discount=0.95), zero=True),
    "cali-ts": lambda: CalibratedThompson(6, lambda state, target: 0.8, zero=True),
    "speedup-ts": lambda: SpeedupThompson(6, cost=DraftCost(0.4)),
    "optimal-stopping": lambda: OptimalStopping(6, cost=DraftCost(0.4)),
}


@pytest.mark.parametrize("name", WITH_ZERO)
def test_rounds_without_drafts_come_and_go(name: str) -> None:
    """No draft is accepted for 400 rounds: mostly none is made, but some are. Then nine of ten are, and it resumes."""
    rng, controller = random.Random(1), WITH_ZERO[name]()
    depths = []
    for number in range(2400):
        depth = ask(controller, 7, number)
        accepted = 0
        while number >= 400 and accepted < depth and rng.random() < 0.9:
            accepted += 1
        controller.observe(a_round(accepted, depth, 0.4))
        depths.append(depth)
    bad, good = depths[50:400], depths[-400:]
    assert bad.count(0) > 0.8 * len(bad)
    assert sum(bad) > 0  # it tries from time to time
    assert sum(good) > 1.2 * len(good)


def test_the_papers_controllers_draft_one_layer_at_least_unless_told_otherwise() -> None:
    for value, least in (("beta-ts", 1), ("beta-ts:zero=true", 0)):
        controller = parse_depth(value).build(5)
        for number in range(40):
            controller.observe(a_round(0, 1, 0.1))
            ask(controller, 1, number)
        assert min(ask(controller, 2, number) for number in range(30)) == least


def test_no_layer_is_drafted_with_gamma_zero() -> None:
    for make in (*WITH_ZERO.values(), *LEARNERS.values()):
        controller: Any = make()
        controller.most = 0
        assert ask(controller, 1, 1) == 0
