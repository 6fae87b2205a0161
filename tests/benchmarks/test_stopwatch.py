"""A controller that is timed decides as it would without a watch."""

from __future__ import annotations

from benchmarks.kinds.stopwatch import Stopwatch, Timed
from draftwood import Engine, TabularModel
from draftwood.depth import Auto, DepthController


def test_every_answer_is_the_inner_controllers() -> None:
    asked = {name for name in vars(DepthController) if not name.startswith("_")} - {"most", "needs"}
    assert asked >= {"start", "rests", "copies", "deeper"} and asked <= vars(Timed).keys()
    inner = Auto(8, lookup=True)
    timed = Timed(inner)
    inner.rests = True
    assert timed.rests
    inner.rests = False
    assert not timed.rests


def test_rounds_under_the_watch_are_those_without_it() -> None:
    """The draft is never right: it soon rests."""
    target, draft = (TabularModel.random(6, seed, order=2, sharpness=4) for seed in (1, 2))
    found = []
    for watch in (False, True):
        engine = Engine(target, [draft])
        engine = Stopwatch(engine).engine if watch else engine
        result = engine.generate([1, 2, 3], {"name": "speculative", "lookup": True}, {"temperature": 1}, 60, seed=1)
        found.append([(round_.drafted, round_.tokens) for round_ in result.rounds])
    assert found[0] == found[1]
