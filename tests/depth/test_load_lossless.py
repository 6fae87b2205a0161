"""The load changes how far rounds draft, but never the law, nor texts that must repeat."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from enumeration import EnumeratedRandomness
from tabular import exact_law, follows, total_variation

from draftwood import Engine, SamplingParams, TabularModel
from draftwood.core.forest import Forest
from draftwood.core.records import Round
from draftwood.depth import LOAD, Auto, AutoBeams, Load
from draftwood.engine.engine import prepare
from draftwood.engine.generation import Generation
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.runtime.policy import Policy
from draftwood.runtime.session import RECENT_TOKENS
from draftwood.verify import tree

PROMPT, VOCAB, LENGTH, END = [1, 2, 1, 2], 4, 4, frozenset({0})
TARGET = TabularModel.random(VOCAB, seed=11, order=4)
DRAFTS = [TabularModel.random(VOCAB, seed=12, order=3), TabularModel.random(VOCAB, seed=13, order=2)]
METHODS: dict[str, tuple[dict[str, Any], int]] = {
    "chain": ({"name": "speculative", "gamma": 3, "depth": "auto", "verify": "rejection"}, 1),
    "paths": ({"name": "speculative", "gamma": 3, "depth": "auto"}, 1),
    "tree": ({"name": "mcsd", "tree": [2, 1], "depth": "auto"}, 1),
    "two drafts": ({"name": "specinfer", "expansion": [1, 1], "depth": "auto"}, 2),
}


def priced(price: float, rows: float = 0.0, drafting: int = 1, others: int = 0) -> Load:
    return Load(lambda _: price, lambda count: 1 + rows * count, drafting, others, 2 * others)


CHEAP, DEAR = priced(0.001), priced(50.0, drafting=2)  # two counts, so that plans are made anew
ADVERSARIES: dict[str, Callable[[list[int]], Load]] = {  # a load by the tokens that are known when a round begins
    "drafts after odd tokens": lambda known: CHEAP if sum(known) % 2 else DEAR,
    "drafts after even tokens": lambda known: DEAR if sum(known) % 2 else CHEAP,
    "a crowd comes and goes": lambda known: priced(0.01, 0.2 if len(known) % 2 else 0.0, 1 + 9 * (len(known) % 3), 5),
}


@contextmanager
def loads(monkeypatch: pytest.MonkeyPatch, of: Callable[[list[int]], Load]) -> Iterator[None]:
    """Controllers `auto` are told this load in place of the measured one."""
    known: dict[int, list[int]] = {}

    def patched(kind: Any) -> None:
        start, observe = kind.start, kind.observe

        def told(self: Any, streams: Any, load: Load) -> None:
            start(self, streams, of(known.setdefault(id(self), [])))

        def noted(self: Any, round_: Round, state: Any = None) -> None:
            known[id(self)] += round_.tokens
            observe(self, round_, state)

        patch.setattr(kind, "start", told)
        patch.setattr(kind, "observe", noted)

    with monkeypatch.context() as patch:
        for kind in (Auto, AutoBeams):
            patched(kind)
        yield


def by_chance(seed: int) -> Callable[[list[int]], Load]:
    """A load at random each time."""
    rng = random.Random(seed)
    some = (priced(1e-5), priced(1e-5, 0.0, 7), priced(0.1, 0.1, 3), priced(9.0, 1.0, 20))
    return lambda known: rng.choice(some)


def without_the_unlikely(p: Any, proposals: Any, token: Any, accept: Any) -> Any:
    """A biased allocation: drawn tokens that the draft gave little are not verified."""
    kept = [one for one in proposals if one.q is None or float(one.q[token[one.nodes[0]]]) > 0.4]
    return RESOLVE(p, kept, token, accept)


RESOLVE = tree.resolve


def enumerated_distance(monkeypatch: pytest.MonkeyPatch, method: str, adversary: str) -> float:
    """Total variation between the law under a load and plain decoding's; an engine anew for each replay."""
    target = TabularModel.random(3, seed=21)
    options, count = METHODS[method]
    drafts = [TabularModel.random(3, seed=22 + i) for i in range(count)]
    params, length = SamplingParams(), 4 if method == "chain" else 3
    randomness = EnumeratedRandomness(monkeypatch)

    def run() -> Any:
        engine = Engine(target, drafts, end_tokens=END, load_aware=True)
        with loads(monkeypatch, ADVERSARIES[adversary]):
            return randomness.text(engine.generate([1, 1], options, params, length), length)

    law = randomness.law_of(run)
    return total_variation(law, exact_law(target, [1, 1], params, length, END))


@pytest.mark.some(4)
@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("method", METHODS)
def test_law_is_exact_at_any_load(method: str, adversary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert enumerated_distance(monkeypatch, method, adversary) < 1e-12


def test_law_is_not_exact_if_drawn_tokens_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "resolve", without_the_unlikely)
    assert enumerated_distance(monkeypatch, "chain", "drafts after odd tokens") > 0.01


def generations(monkeypatch: pytest.MonkeyPatch, method: str, count: int) -> list[Any]:
    options, drafts = METHODS[method]
    engine = Engine(TARGET, DRAFTS[:drafts], end_tokens=END, load_aware=True)
    requests = [{"prompt": PROMPT, "seed": seed} for seed in range(count)]
    with loads(monkeypatch, by_chance(5)):
        results = engine.batch(requests, 8, method=options, max_new_tokens=LENGTH)
    drafted = [round_.drafted for result in results for round_ in result.rounds]
    assert 0.2 < drafted.count(0) / len(drafted) < 0.8
    return [tuple(result.tokens) for result in results]


def exact(samples: list[Any]) -> bool:
    return follows(samples, exact_law(TARGET, PROMPT, SamplingParams(), LENGTH, END))


@pytest.mark.parametrize(
    ("method", "count"), [("chain", 1500), *(pytest.param(each, 20_000, marks=pytest.mark.slow) for each in METHODS)]
)
def test_generations_follow_plain_decoding_under_random_load(
    method: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exact(generations(monkeypatch, method, count))


@pytest.mark.slow
def test_generations_do_not_follow_it_if_drawn_tokens_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "resolve", without_the_unlikely)
    assert not exact(generations(monkeypatch, "chain", 5000))


@pytest.mark.some(3)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_greedy_and_coupled_texts_are_the_same_at_any_load(
    method: str, verify: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, with the log-probabilities, though rounds differ."""
    options, drafts = METHODS[method]
    engine = Engine(TARGET, DRAFTS[:drafts])
    asked: Any = {"sampling": {"temperature": 0.0 if verify == "rejection" else 0.9}, "max_new_tokens": 48}
    requests = [{"prompt": [1, 1 + seed, 3], "seed": seed} for seed in range(3)]
    plain = engine.batch(requests, 3, method={"name": "autoregressive", "verify": verify}, **asked)
    rounds = set()
    for seed in range(4):
        with loads(monkeypatch, by_chance(seed)):
            found = engine.batch(requests, 3, method={**options, "verify": verify}, **asked)
        assert [(one.tokens, one.logprobs) for one in found] == [(one.tokens, one.logprobs) for one in plain]
        rounds.add(tuple(len(one.rounds) for one in found))
    assert len(rounds) > 1


@pytest.mark.some(2)
@pytest.mark.parametrize("method", METHODS)
def test_sampled_texts_repeat_whatever_the_load_unless_the_engine_is_load_aware(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, in a batch, and beside a crowd: the rounds are the same, too."""
    options, drafts = METHODS[method]
    requests = [{"prompt": PROMPT, "seed": seed} for seed in range(6)]

    def told(crowd: tuple[int, int, int], concurrency: int, load_aware: bool = False) -> list[Any]:
        engine = Engine(TARGET, DRAFTS[:drafts], load_aware=load_aware)
        with monkeypatch.context() as patch:
            patch.setattr(engine.scheduler, "_count_load", lambda: None)
            engine.scheduler.load_counts = crowd
            engine.scheduler.costs.curve(TARGET).add(1, 1.0)  # whatever was measured
            results = engine.batch(requests, concurrency, method=options, max_new_tokens=40)
        return [(result.tokens, [round_.drafted for round_ in result.rounds]) for result in results]

    alone = told((1, 0, 0), 1)
    assert told((50, 7, 90), 1) == told((1, 0, 0), 6) == told((20, 0, 0), 3) == alone


def test_the_engine_tells_its_requests_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Load] = []
    load = Generation.current_load

    def watched(self: Generation, forest: Forest) -> Load:
        found = load(self, forest)
        if self.depth.needs >= LOAD:
            seen.append(found)
        return found

    monkeypatch.setattr(Generation, "current_load", watched)
    engine = Engine(TARGET, DRAFTS[:1])
    chain = METHODS["chain"][0]
    engine.generate(PROMPT, chain, {"temperature": 0}, 10)
    assert {one.counts for one in seen} == {(1, 0, 0)}
    seen.clear()
    monkeypatch.setattr(Policy, "may_draft", lambda *args: True)  # everyone waits for everyone, whatever the clock says
    monkeypatch.setattr(Policy, "due", lambda self, plain_waits, drafting, seconds: not drafting)
    plain = [{"prompt": PROMPT, "method": "autoregressive"}] * 2
    deep = {"prompt": PROMPT, "method": {"name": "speculative", "gamma": 5}}
    engine.batch([*[PROMPT] * 3, *plain, deep], 6, method=chain, sampling={"temperature": 0}, max_new_tokens=30)
    assert any(one.counts == (3, 3, 2 + 6) for one in seen)
    assert all(one.verify(1) <= one.verify(20) for one in seen)


@pytest.mark.parametrize(("size", "most"), [(4, 10), (60, 30)])
def test_the_load_tells_what_is_to_be_read_before_a_draft(size: int, most: int) -> None:
    """Before the prompt is read all of it but the latest tokens; and the tokens that may still come."""
    engine = Engine(decoder(), [decoder()])
    options: dict[str, Any] = {"method": METHODS["chain"][0], "temperature": 0, "max_new_tokens": most}
    generation = prepare(engine, [1] * size, **options)
    load, costs = generation.load, engine.scheduler.costs.curve(engine.drafts[0])
    assert load.tokens_left() == most
    assert load.catch_up_seconds() == pytest.approx(
        costs.marginal(1, size - RECENT_TOKENS) if size > RECENT_TOKENS else 0.0
    )
    rounds = engine.scheduler.events(engine.scheduler.submit(engine.builder.task(generation)))
    assert next(rounds) and next(rounds)
    assert 0 < load.tokens_left() < most
    rounds.close()


def decoder() -> Decoder:
    """A small random one, always the same."""
    model, generator = Decoder(DecoderConfig(40, 32, 48, 2, 2, 1, 16, 200)), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.some(4)
@pytest.mark.parametrize("options", [METHODS["chain"][0], {"name": "mcsd", "tree": [2, 1, 1], "depth": "auto"}])
@pytest.mark.parametrize("pause", [1, 2, 7, 40])
def test_a_drafter_that_was_off_comes_back_as_good_as_before(
    options: dict[str, Any], pause: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft is the target itself: all it drafts is accepted, if its keys and values are those of the text."""
    engine = Engine(decoder(), [decoder()])
    with loads(monkeypatch, lambda known: DEAR if 8 <= len(known) < 8 + pause else CHEAP):
        result = engine.generate([5, 3, 8], options, {"temperature": 0}, 80, ignore_eos=True)
    paused = [round_ for round_ in result.rounds if not round_.drafted]
    drafting = [round_ for round_ in result.rounds if round_.drafted]
    assert len(paused) >= max(1, pause - 3)
    assert len(drafting) > 5
    assert all(round_.depth_accepted == round_.attempted for round_ in drafting)
    assert result.tokens == engine.generate([5, 3, 8], "autoregressive", {"temperature": 0}, 80, ignore_eos=True).tokens
