"""The simulation of many replicas: nothing is lost, costs add up, queues obey the laws of queues."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.execute import execute
from benchmarks.experiment import Run, load
from benchmarks.kinds import scale
from benchmarks.kinds.simulation import Asked, Machine, Simulation
from benchmarks.pairs import Pair
from benchmarks.tables import markdown
from draftwood.runtime.cost import Curve
from draftwood.runtime.prefix import FEWEST

PASS, ROW = 0.01, 0.001  # seconds: of a pass, of each of its rows
CURVE = Curve(PASS, ROW)
CURVE.add(1, PASS + ROW)
MACHINE = Machine([CURVE], cores=1, reach=0.002)


def clients(count: int, turns: int = 3, tokens: int = 5) -> list[list[Asked]]:
    """Prompts of 20, 30, 40 tokens, each with the beginning of the last one."""
    return [
        [Asked(20 + 10 * turn, tokens, [10 * client + block for block in range(turn + 1)]) for turn in range(turns)]
        for client in range(count)
    ]


def test_a_lone_client_waits_for_its_passes_and_nothing_else() -> None:
    found = Simulation(MACHINE, 1).run(clients(1))
    rows = [20 + 4, 10 + 4, 10 + 4]  # what it asked before is kept
    times = [0.002 + 5 * PASS + ROW * each for each in rows]
    assert [last for _, last in found.times] == pytest.approx(times)
    assert [first for first, _ in found.times] == pytest.approx([0.002 + PASS + ROW * each for each in (20, 10, 10)])
    assert found.now == pytest.approx(sum(times)) and found.waited == 0
    forgetful = Simulation(MACHINE, 1, room=25).run(clients(1))  # the first prompt with its answer
    assert [request.reused for request in forgetful.done] == [0, 20, 0]


@pytest.mark.parametrize("replicas", [1, 2, 7])
def test_each_request_is_answered_once_and_queues_obey_littles_law(replicas: int) -> None:
    asked = clients(60)
    found = Simulation(MACHINE, replicas, running=4).run(asked)
    assert sorted((one.client, one.of) for one in found.done) == [
        (n, each) for n, talk in enumerate(asked) for each in talk
    ]
    assert all(
        one.made == one.of.tokens and one.asked < one.came <= one.admitted < one.first < one.done for one in found.done
    )
    before: dict[int, float] = {}
    for one in found.done:
        assert before.get(one.client, 0.0) <= one.asked
        before[one.client] = one.done
    assert not any(found.queues.values()) and found.waiting == 0
    rate, wait = len(found.done) / found.now, sum(one.admitted - one.came for one in found.done) / len(found.done)
    assert found.waited / found.now == pytest.approx(rate * wait) and wait > 0


def test_two_replicas_do_twice_as_much_where_they_do_not_share_a_core() -> None:
    one, two = (Simulation(MACHINE, count, running=4).run(clients(80)) for count in (1, 2))
    assert one.now / two.now == pytest.approx(2, rel=0.05) and one.worked == pytest.approx(two.worked, rel=0.02)
    shared = Simulation(MACHINE, 2, running=4, shared=True).run(clients(80))
    assert shared.now == pytest.approx(one.now, rel=0.05)


def test_the_work_around_passes_takes_what_cores_they_leave() -> None:
    busy = Curve(PASS, ROW)
    busy.add(1, 2 * PASS)
    two = Machine([CURVE, busy], cores=2, handling=0.001)
    alone = CURVE.seconds(8, 8)
    assert two.seconds(8, 8) == alone  # the other core does it
    assert two.seconds(8, 8, busy=2) == pytest.approx(busy.seconds(8, 8) + 8 * 0.001)
    assert Machine([CURVE], cores=2, handling=1.0).seconds(8, 8) == pytest.approx((alone + 8) / 2)


def test_conversations_find_what_they_asked_before() -> None:
    found = Simulation(MACHINE, 4).run(clients(40))
    assert sum(one.reused for one in found.done) > 0.9 * 40 * (20 + 30)
    moved = Simulation(MACHINE, 4, unbalanced=-1).run(clients(40))  # no replica is good enough for its own sake
    assert sum(one.reused for one in moved.done) < 0.75 * 40 * (20 + 30)


def measured(target: Path, draft: Path, out: Path, **settings: object) -> str:
    path, models = (
        Path(__file__).parents[2] / "benchmarks" / "experiments" / "scale.yaml",
        Pair("tiny", target, draft, out / "made"),
    )
    experiment = load(path)
    experiment = experiment.model_copy(update={"smoke": {**experiment.smoke, **settings}})
    found = execute(experiment, path, "tiny", Run(pair=None), out, smoke=True, models=models)
    return "\n".join(markdown(table, [found]) for table in experiment.tables)


def test_costs_of_the_engine_are_what_is_simulated(long_target: Path, draft: Path, tmp_path: Path) -> None:
    tables = measured(long_target, draft, tmp_path, checked=[])
    assert tables.count("\n| 6 | ") == 2 and "| 8 | " in tables


def test_no_server_is_asked_for_what_it_may_have_kept(
    long_target: Path, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []

    async def talked(way: object, talks: list[list[list[int]]]) -> list[tuple[float, float]]:
        asked.extend(prompt for talk in talks for prompt in talk)
        return [(1.0, 2.0) for talk in talks for _ in talk]

    monkeypatch.setattr(scale, "talked", talked)
    monkeypatch.setattr(scale, "started", lambda command: nullcontext(("", 0)))
    measured(long_target, draft, tmp_path, checked=[[1, 3]], repeats=3)
    begun = [tuple(prompt[:FEWEST]) for prompt in asked if len(prompt) == 20]
    assert len(begun) == len(set(begun)) == 4 + 3 + scale.LONE + 3 * 3


@pytest.mark.ray
def test_the_simulation_stands_beside_a_server(long_target: Path, draft: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="replicas need the extra scale: pip install 'draftwood[scale]'")
    tables = measured(long_target, draft, tmp_path, checked=[[2, 3]])
    assert tables.count("| 2 | 3 | ") == 5 and "2 busy" in tables
