"""`draftwood eval` without its terminal: a plan into a directory, and the summary of what it holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftwood.engine.engine import Engine
from draftwood.engine.engine_map import EngineMap
from draftwood.errors import ConfigurationError
from draftwood.eval import provenance
from draftwood.eval.energy import Meter, counters
from draftwood.eval.running import EvalJob, EvalPlan, Runner
from draftwood.eval.store import SUMMARY, Store
from draftwood.eval.summary import summary_of
from draftwood.eval.tasks import Task
from draftwood.util.files import write_json

REST_SECONDS = 1.0


def check_code(tasks: list[Task], confirmed: bool) -> None:
    """Raise ConfigurationError where a task runs what a model wrote and nobody has said that it may."""
    for task in tasks:
        if task.runs_code and not confirmed:
            raise ConfigurationError(
                f"task {task.name} runs programs that the model wrote, in a sandbox; confirm with --run-code"
            )


def evaluate(
    engine: Engine,
    plan: EvalPlan,
    out: Path,
    on_start: Callable[[int, int], None] = lambda made, expected: None,
    on_job: Callable[[EvalJob], None] = lambda job: None,
    engines: EngineMap | None = None,
) -> dict[str, Any]:
    """Make the runs that `out` lacks or that failed, write its summary and return it; an interrupt leaves one, too.

    `on_start` is called with the number of runs that are there and the number that there will be, `on_job` with each
    run before it is made. `engines` share the items, by default it is the one. Raises ConfigurationError where `out`
    belongs to something else than this plan, or one with fewer items or seeds that it goes on from.
    """
    for method in plan.methods:
        engine.method(method)
        method.check(plan.sampling)
    with Store(out, plan.configuration(engine), lambda there: plan.extends(there, engine)) as store:
        try:
            runner = Runner(engine, plan, Meter([] if engines else counters(engine.target.device)))
            expected, left = len(plan.jobs()), len(runner.missing(store))
            on_start(expected - left, expected)
            if left:  # the machine is written down first
                runner.meter.rest(REST_SECONDS)
                session = provenance.session(engine.target.device, engine.names.get("backend"))
                store.note_session({**session, "idle_watts": runner.meter.idle or None})
                runner.run(store, on_job, engines)
        finally:
            document = summary_of(out, store.records)
            write_json(out / SUMMARY, document)
    return document
