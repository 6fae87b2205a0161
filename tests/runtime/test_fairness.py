"""Light requests beside heavy ones, on a clock that goes on by what passes cost: nothing depends on the machine."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pytest
from every_method import FAMILIES, TARGET, engine, submitted
from small_decoder import VOCAB

from draftwood import Engine
from draftwood.engine.engine import prepare
from draftwood.errors import Overloaded
from draftwood.models.base import CausalModel
from draftwood.runtime import scheduler as scheduling
from draftwood.runtime.cost import Costs, Curve
from draftwood.runtime.executor import PartialRun
from draftwood.runtime.task import DecodingTask

TARGET_COST, DRAFT_COST = (1.0, 0.12), (0.16, 0.012)  # of a pass, and of each row: of the embedded pair, in ms


@dataclass
class Clock:
    """Milliseconds, which only passes take."""

    now: float = 0.0
    due: float = math.inf  # when somebody comes, in the middle of a pass or not
    comes: Callable[[], object] = lambda: None

    def read(self) -> float:
        return self.now

    def cost(self, model: CausalModel) -> tuple[float, float]:
        return TARGET_COST if model is TARGET else DRAFT_COST

    def goes_on(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.due:
            self.due = math.inf
            self.comes()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made, run_layers = Clock(), scheduling.run_layers

    def swept(pending: list[PartialRun], limits: Any) -> float:
        rows = run_layers(pending, limits)
        fixed, each = made.cost(pending[0].run.session.model)
        made.goes_on(fixed * rows / max(1, sum(limits)) + each * rows)
        return rows

    monkeypatch.setattr(scheduling, "run_layers", swept)
    monkeypatch.setattr(scheduling, "perf_counter", made.read)
    monkeypatch.setattr(Costs, "curve", lambda costs, model, layers=None: Curve(*made.cost(model)))
    return made


def prompt(seed: int, tokens: int = 24) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(tokens)]


def submit(ours: Engine, method: Any, seed: int, tokens: int, call: object = None, read: int = 24) -> DecodingTask[Any]:
    made = prepare(
        ours, prompt(seed, read), method=method, max_new_tokens=tokens, sampling={"temperature": 1.0}, ignore_eos=True
    )
    return submitted(ours, made, call)


def waited(ours: Engine, clock: Clock, method: Any, after: float, seed: int = 1) -> float:
    """From the moment at which a light request comes to its first token."""
    found: list[DecodingTask[Any]] = []
    clock.due = came = clock.now + after
    clock.comes = lambda: found.append(submit(ours, method, seed, 3))
    if not ours.scheduler.busy:
        clock.goes_on(after)
    while not (found and found[0].events):
        ours.scheduler.step()
    seconds = clock.now - came
    while not found[0].done:
        ours.scheduler.step()
    return seconds


HEAVY: dict[str, tuple[dict[str, Any], int, float]] = {  # method, texts of the call, times as long as alone at most
    "texts": (FAMILIES["plain"], 16, 4.0),
    "many texts": (FAMILIES["plain"], 128, 4.5),
    "chains": ({"name": "speculative", "gamma": 8}, 16, 4.0),
    "tree": ({"name": "mcsd", "tree": [4, 4, 4]}, 1, 4.0),
    "dsbd": ({"name": "dsbd", "width": 8, "draft_width": 8, "gamma": 4}, 1, 4.0),
    "search": ({"name": "beam-search", "width": 16}, 1, 4.0),
    "wide search": ({"name": "beam-search", "width": 128}, 1, 4.0),
    "drafted search": ({"name": "speculative-beam-search", "width": 16, "depth": "fixed"}, 1, 4.0),
}
ALONE: dict[str, float] = {}  # milliseconds to the first token of each light request beside nobody


@pytest.mark.some(2)
@pytest.mark.parametrize("heavy", HEAVY)
def test_a_light_request_gets_its_first_token_beside_a_heavy_one(clock: Clock, heavy: str) -> None:
    ours, (method, texts, most) = engine(reuse_prefixes=False), HEAVY[heavy]
    if not ALONE:
        ALONE.update({name: waited(ours, clock, light, 1.0, 10) for name, light in FAMILIES.items()})
    call, found = object(), {}
    tasks = [submit(ours, method, 100 + i, 900, call) for i in range(texts)]
    while not tasks[0].events:
        ours.scheduler.step()
    for name, light in FAMILIES.items():
        times = [waited(ours, clock, light, 3.3 + 2.7 * i, 20 + i) for i in range(4)]
        found[name] = fmean(times) / ALONE[name]
    assert not tasks[0].done
    assert max(found.values()) <= most, found
    for task in tasks:
        ours.scheduler.cancel(task)


def test_who_drafts_owes_nothing_for_beams_that_ended(clock: Clock) -> None:
    ours = engine(reuse_prefixes=False)
    drafts = {"name": "speculative", "gamma": 3}
    alone = waited(ours, clock, drafts, 1.0)
    beams = submit(ours, {"name": "beam-search", "width": 16}, 2, 60)
    while not beams.done:
        ours.scheduler.step()
    plain = [submit(ours, FAMILIES["plain"], 3 + i, 900) for i in range(2)]
    while not all(task.events for task in plain):
        ours.scheduler.step()
    assert waited(ours, clock, drafts, 1.0) <= 4 * alone
    for task in plain:
        ours.scheduler.cancel(task)
    ours.scheduler.receive()
    ours.scheduler.policy.credit = -1e9  # whatever it came from: the load has ended
    assert waited(ours, clock, FAMILIES["plain"], 1.0) and ours.scheduler.policy.credit > -1


def test_one_call_with_many_texts_takes_no_places_from_others() -> None:
    ours = engine(max_running=4, max_queued=2)
    call = object()
    many = [submit(ours, FAMILIES["plain"], i, 40, call) for i in range(20)]  # more than may wait: one call
    ours.scheduler.step()
    assert [task.running for task in many] == [True] * 4 + [False] * 16
    others = [submit(ours, FAMILIES["plain"], 50 + i, 4) for i in range(5)]
    with pytest.raises(Overloaded, match="4 requests run and 2 wait"):
        submit(ours, FAMILIES["plain"], 60, 4)
    ours.scheduler.step()
    assert [task.running for task in others] == [True] * 3 + [False] * 2  # 4 calls run
    while not all(task.done for task in others):
        ours.scheduler.step()
    assert not any(task.done for task in many)
    while ours.scheduler.busy:
        ours.scheduler.step()
    assert not ours.scheduler.calls.live


def test_a_long_prompt_shares_its_passes_with_a_short_one(clock: Clock) -> None:
    ours = engine(reuse_prefixes=False)
    alone = waited(ours, clock, FAMILIES["plain"], 1.0)
    long = submit(ours, FAMILIES["plain"], 1, 4, read=900)
    assert waited(ours, clock, FAMILIES["plain"], 1.0, 7) <= 6 * alone
    assert not long.events
    while not long.done:
        ours.scheduler.step()
