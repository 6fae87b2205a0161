"""A round that drafts nothing costs what a plain round costs, whatever would have drafted; then drafting goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from every_method import FAMILIES, engine, settle, shortage, submitted
from small_decoder import LAYERS, VOCAB
from test_early_exit import Ledger

from draftwood import Engine, GenerationResult
from draftwood.core.records import Round
from draftwood.depth import ALONE, LOAD, NOTHING, DepthController, DraftState, Load
from draftwood.draft import ExitSource
from draftwood.engine.engine import prepare
from draftwood.engine.generation import Generation
from draftwood.runtime.executor import PartialRun
from draftwood.sampling.distributions import Streams

BEAMS: dict[str, Any] = {"name": "dsbd", "drafter": "exit", "draft_width": 3, "gamma": 2}
NAMES = ("chain", "tree", "exit", "exit-tree", "self", "medusa", "eagle", "eagle-tree")
# They draft nothing in a request's first round: they read what the target left before.
LATE = ("self", "medusa", "eagle", "eagle-tree")
RESTS: dict[str, Callable[[int], bool]] = {
    "at first": lambda number: number % 5 < 3,
    "later": lambda number: number % 6 > 1,
    "always": lambda number: True,
}
SAMPLINGS = pytest.mark.parametrize("temperature", [0, 0.9])


class Script(DepthController):
    """Rests in the rounds of a script and drafts in the others as far as it goes; notes the runs of each round."""

    def __init__(self, rests: Callable[[int], bool], log: list[list[tuple[str, int | None, int]]]) -> None:
        self.most, self.needs, self.script, self.log, self.number = 64, NOTHING, rests, log, -1
        self.behind: list[float] = []
        self.reads_in_rest = True

    @property
    def rests(self) -> bool:
        return self.script(self.number)

    @property
    def prepares(self) -> bool:
        return self.reads_in_rest or not self.rests

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self.number += 1
        self.log.append([])
        if self.needs:
            self.behind.append(load.catch_up_seconds())

    def deeper(self, state: DraftState) -> bool:
        return not self.rests and state.depth < self.most


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, int | None, int]]]:
    """(role, upper layer, rows to compute) of the runs, round by round."""
    found: list[list[tuple[str, int | None, int]]] = []
    of = PartialRun.of

    def noted(run: Any) -> PartialRun:
        pending = of(run)
        found[-1].append((run.session.role, run.upto, len(pending.rows)))
        return pending

    monkeypatch.setattr(PartialRun, "of", noted)
    return found


def method_of(name: str) -> dict[str, Any]:
    return BEAMS if name == "beams" else {**FAMILIES[name], "verify": "coupled"}


def prompt_of(length: int) -> list[int]:
    return random.Random(length).choices(range(VOCAB), k=length)


def scripted(ours: Engine, name: str, prompt: list[int], script: Script, temperature: float, new: int) -> Generation:
    made = prepare(
        ours, prompt, method=method_of(name), sampling={"temperature": temperature}, max_new_tokens=new, seed=3
    )
    most = made.depth.most
    made.depth, script.most = script, most
    return made


def rounds(ours: Engine, made: Generation) -> Iterator[Round]:
    yield from ours.scheduler.events(submitted(ours, made))


def finished(ours: Engine, made: Generation) -> GenerationResult:
    for round_ in rounds(ours, made):
        made.note(round_)
    return made.result()


def plain(prompt: list[int], temperature: float, new: int) -> GenerationResult:
    method = {"name": "autoregressive", "verify": "coupled"}
    return engine(reuse_prefixes=False).generate(prompt, method, {"temperature": temperature}, new, seed=3)


@pytest.mark.some(19)
@SAMPLINGS
@pytest.mark.parametrize("rests", RESTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_resting_round_is_a_plain_round(name: str, rests: str, temperature: float, log: Any) -> None:
    """One run of the target over the root, all layers at once. The drafts of other rounds are as if it never rested."""
    ours, prompt, new = engine(reuse_prefixes=False), prompt_of(30), 20
    request = scripted(ours, name, prompt, Script(RESTS[rests], log), temperature, new)
    target, forwards = ours.target, []
    forward = target.forward

    def counted(batch: Any, cache: Any) -> Any:
        forwards.append((len(log), batch.start, batch.stop))
        return forward(batch, cache)

    target.forward = counted  # type: ignore[method-assign]
    try:
        found = finished(ours, request)
    finally:
        del target.forward
    runs, drafting = [list(asked) for asked in log], 0
    assert found.tokens == plain(prompt, temperature, new).tokens and len(runs) == len(found.rounds)
    text = [*prompt, *found.tokens]
    for number, (made, asked) in enumerate(zip(found.rounds, runs, strict=True)):
        if RESTS[rests](number):
            assert asked == [("target", None, 1 if number else len(prompt))]
            assert len(made.tokens) == 1 and not made.drafted and not made.draft_forwards
            passes = [bounds for at, *bounds in forwards if at == number + 1]
            assert passes == [[0, None]] or not number
        elif made.drafted:
            drafting += 1
            end = made.position + 1 - (name in LATE)
            again = engine(reuse_prefixes=False)
            never = scripted(again, name, text[:end], Script(lambda number: False, []), temperature, len(text) - end)
            with closing(rounds(again, never)) as others:
                same = next(other for other in others if other.drafted)
            assert same.position == made.position
            assert (made.forest_token, made.forest_parent) == (same.forest_token, same.forest_parent)
    assert (drafting > 1) is (rests != "always")
    settle(ours)


@pytest.mark.some(14)
@pytest.mark.parametrize("rests", RESTS)
@pytest.mark.parametrize("name", [*NAMES, "beams"])
def test_no_layer_is_computed_twice(name: str, rests: str, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, ledger = engine(reuse_prefixes=False), Ledger(monkeypatch)
    requests = [scripted(ours, name, prompt_of(length), Script(RESTS[rests], log), 0.9, 20) for length in (1, 40)]
    results = [finished(ours, request) for request in requests]
    assert ledger.layers == ledger.cells * LAYERS
    if name != "beams":
        drafted = sum(1 + round_.drafted for result in results for round_ in result.rounds)
        assert ledger.cells == 39 + drafted
    assert sum(result.metrics.target_rows for result in results) == pytest.approx(ledger.cells)
    if rests == "always":
        assert all(len(asked) == 1 for asked in log)


@pytest.mark.some(2)
@pytest.mark.parametrize("reuse", [False, True], ids=["fresh", "reused"])
@pytest.mark.parametrize("seed", range(2))
def test_in_a_batch_and_after_being_put_back(seed: int, reuse: bool, log: Any) -> None:
    """Requests that rest at different times, while memory runs out; some begin alike."""
    names = [*NAMES, "beams"]
    wanted = [(name, prompt_of(20 + i % 3 * 20), 0.9 * (i % 2)) for i, name in enumerate(names * 2)]
    scripts = [list(RESTS.values())[(i + seed) % 3] for i in range(len(wanted))]

    def decoded(ours: Engine, together: bool) -> list[GenerationResult]:
        made = [
            scripted(ours, name, prompt, Script(script, log), temperature, 16)
            for (name, prompt, temperature), script in zip(wanted, scripts, strict=True)
        ]
        if not together:
            return [finished(ours, one) for one in made]
        tasks = [submitted(ours, one) for one in made]
        for one, task in zip(made, tasks, strict=True):
            for round_ in ours.scheduler.events(task):
                one.note(round_)
        return [one.result() for one in made]

    alone, ours = decoded(engine(reuse_prefixes=False), False), engine(reuse_prefixes=reuse)
    with shortage(0.1, random.Random(seed), ours):
        for found, expected in zip(decoded(ours, True), alone, strict=True):
            assert found.tokens == expected.tokens
            assert [beam.tokens for beam in found.beams] == [beam.tokens for beam in expected.beams]
    assert ours.scheduler.preempted > 10
    settle(ours)


@pytest.mark.parametrize("name", ["exit", "eagle"])
def test_states_of_a_prefix_that_others_computed_have_a_price(name: str, log: Any) -> None:
    """A plain request leaves tokens behind, whose states must be computed again where drafting begins."""
    prompt, behind = prompt_of(60), []
    for before in (False, True):
        ours, script = engine(), Script(lambda number: number != 2, log)
        log.append([])
        alone = prepare(ours, prompt, method="autoregressive", temperature=0, max_new_tokens=8)
        expected = finished(ours, alone) if before else plain(prompt, 0, 8)
        made = scripted(ours, name, prompt, script, 0, 8)
        script.needs = LOAD
        result = finished(ours, made)
        assert result.tokens == expected.tokens and result.rounds[2].drafted
        assert (result.metrics.reused_tokens > 50) is before
        behind.append(script.behind)
    fresh, reused = behind
    assert fresh[0] == reused[0]  # nobody knows yet what will be taken
    assert reused[1] > 1.2 * fresh[1] > 0
    assert reused[3] == fresh[3] == 0  # all of it was read


@pytest.mark.parametrize("rests", RESTS)
@pytest.mark.parametrize("name", ["exit", "medusa", "eagle", "eagle-tree"])
def test_states_that_no_resting_round_asked_for_are_computed_once_more(
    name: str, rests: str, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafts are those of rounds that kept them all; what it takes to have them is known before."""
    prompt, found, kept = prompt_of(30), [], list[bool]()
    record = PartialRun.record_output

    def noted(self: PartialRun, *given: Any) -> None:
        kept.append(script.rests)
        record(self, *given)

    monkeypatch.setattr(PartialRun, "record_output", noted)
    for reads in (True, False):
        kept.clear()
        ours, script = engine(reuse_prefixes=False), Script(RESTS[rests], log)
        made = scripted(ours, name, prompt, script, 0.9, 20)
        script.reads_in_rest, script.needs = reads, LOAD
        found.append(finished(ours, made))
        assert any(kept) is (reads and name != "medusa")  # whose heads read what every run brings
        after = [script.behind[at] for at in range(2, script.number) if RESTS[rests](at - 1) and not RESTS[rests](at)]
        assert name in ("medusa", "exit") or reads or all(after)
        settle(ours)
    assert found[0].tokens == found[1].tokens == plain(prompt, 0.9, 20).tokens
    for one, other in zip(found[0].rounds, found[1].rounds, strict=True):
        assert (one.forest_token, one.forest_parent) == (other.forest_token, other.forest_parent)


@pytest.mark.parametrize(("layers", "rows"), [(1, 13), (3, 38), (4, 50)])
def test_of_an_exits_states_the_first_layers_alone_have_a_price(layers: int, rows: int) -> None:
    target: Any = SimpleNamespace(cached=50, model=SimpleNamespace(n_layers=4))
    reader: Any = SimpleNamespace(begun=False)
    assert ExitSource(target, reader, (layers,)).lacks() == rows
