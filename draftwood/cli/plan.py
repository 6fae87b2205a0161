"""`draftwood plan`: which method and settings to use on a pair and prompts, and what they will gain."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.cli.groups import OUTPUT, ModelOptions, OutputOptions, WorkloadOptions, seed
from draftwood.cli.options import flag
from draftwood.cli.running import check_writable, progress, write_text
from draftwood.explain.terminal import as_json, console, method_label, origins, simple_table
from draftwood.sampling.params import SamplingParams

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.tune.planner import MethodPlan


def plan(
    *,
    models: ModelOptions,
    work: WorkloadOptions,
    seconds: float = flag(60.0, "About how long to measure.", panel="Planning", gt=0),
    seed: int = seed(),
    sampling: SamplingParams,
    out: Path | None = flag(None, "Write the recommended method here, for --method file:FILE.", "FILE", panel=OUTPUT),
    output: OutputOptions,
) -> None:
    """Recommend a method for a target, its drafts and prompts.

    Without a draft model it compares what drafts without one.
    Pilot runs measure acceptance, the cost of forward passes and the interpreter's
    share. From these the speed-up of each kind of method is predicted, and the best
    of each kind is run to check the prediction. dsbd is compared with beam sampling
    of the same width, all others with plain decoding. Ctrl-C during the check keeps
    what was found.
    """
    from draftwood.eval.provenance import session
    from draftwood.tune.planner import plan

    texts = work.texts()
    check_writable(out)
    engine = models.load()
    prompts = work.fitted(engine, texts)
    with progress(output.color, "costs", 1.0, percent=True, live=False) as update:
        result = plan(
            engine,
            prompts,
            sampling,
            seconds,
            work.max_new_tokens,
            seed,
            lambda what, share: update(completed=share, description=what),
        )
    about = {"environment": session(engine.target.device, engine.names.get("backend")), "models": engine.names}
    about["sampling"] = sampling.model_dump(mode="json")
    notes = [*_footnotes(result), *result.notes, *origins(engine.names)]
    output.give({**about, **result.as_dict()}, _table(result, console().width), "", *notes, wrap=True)
    if out is not None:
        method = {"name": "autoregressive"} if result.best is None else result.best.method.as_dict()
        write_text(out, as_json(method) + "\n")
        if not output.json_:
            print(f"written to {out}; use it with --method file:{out}")
    if result.interrupted:
        sys.exit(130)


def _table(result: MethodPlan, width: int) -> Table:
    """A table of predictions and measurements; below 80 columns without those that follow from the others."""
    from rich.text import Text

    wide = width >= 80
    numbers = [">per round"] * wide + [">predicted", ">measured"] + [">off by"] * wide
    made = simple_table("method", "against", *numbers, first=14)
    best = result.best
    for one in result.choices:
        error = one.error
        made.add_row(
            Text(method_label(one.method.as_dict()), "bold green" if one is best else ""),
            Text(method_label(one.reference.as_dict())),
            *([f"{one.predicted.steps:.2f}"] if wide else []),
            _with_interval(one.predicted.speed_up, one.interval),
            "-" if one.measured is None else _with_interval(one.measured, one.measured_interval),
            *(["-" if error is None else f"{100 * error:+.0f}%"] if wide else []),
        )
    return made


def _with_interval(value: float, between: tuple[float, float] | None) -> str:
    return f"{value:.2f}×" + ("" if between is None else f"\n{between[0]:.2f}-{between[1]:.2f}")


def _footnotes(result: MethodPlan) -> Iterator[str]:
    rows = ", ".join(
        f"{count}: {seconds / result.target_seconds_by_rows[1]:.2f}"
        for count, seconds in result.target_seconds_by_rows.items()
        if count in (4, 8, 16, 32)
    )
    c = "" if result.c is None else f", c {result.c:.2f}"
    depths = " ".join(f"{a:.2f}" for a in result.acceptance_by_depth)
    yield f"plain decoding {result.plain_tokens_per_second:.1f} tokens/s{c}, acceptance by depth {depths}"
    yield f"cost of K tokens at once, in forwards of one: {rows}"
    yield (
        f"{result.prompts} prompts in pilots, {result.checked_prompts} in the check, {result.seconds:.0f} s; "
        "per round: tokens, of beams layers"
    )
    best = result.best
    yield f"recommended: {'do not speculate' if best is None else method_label(best.method.as_dict())}"
