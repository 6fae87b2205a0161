"""`draftwood plan`: which method and settings to use on a pair and prompts, and what they will gain."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from draftwood.cli.groups import OUTPUT, ModelOptions, OutputOptions, WorkloadOptions, seed
from draftwood.cli.options import flag
from draftwood.cli.running import check_writable, progress, write_text
from draftwood.explain.terminal import as_json, console, method_label, origins, simple_table
from draftwood.sampling.params import SamplingParams

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.tune.bits_and_threads import SettingComparison
    from draftwood.tune.planner import MethodPlan

SETTINGS_SHARE = 0.2  # of the time, for bits and threads


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
    On a CPU forwards are timed first, on other numbers of threads and with weights
    in other bits; methods are measured on the best number of threads.
    Pilot runs measure acceptance, the cost of forward passes and the interpreter's
    share. From these the speed-up of each kind of method is predicted, and the best
    of each kind is run to check the prediction. dsbd is compared with beam sampling
    of the same width, all others with plain decoding. Ctrl-C during the check keeps
    what was found.
    """
    import torch

    from draftwood.eval.provenance import session
    from draftwood.tune.bits_and_threads import compare_settings, other_weights
    from draftwood.tune.planner import plan

    texts = work.texts()
    check_writable(out)
    began = perf_counter()
    engine = models.load()
    load_seconds = perf_counter() - began
    prompts = work.fitted(engine, texts)
    others, left_out = other_weights(engine, models.arguments)
    with progress(output.color, "costs", 1.0, percent=True, live=False) as update:
        began = perf_counter()
        settings = compare_settings(
            engine.target, others, SETTINGS_SHARE * seconds, load_seconds, lambda what: update(description=what)
        )
        left = max((1 - SETTINGS_SHARE) * seconds, seconds - (perf_counter() - began))
        threads = torch.get_num_threads()
        if settings.best is not None:
            torch.set_num_threads(settings.best.threads)
        try:
            about = {"environment": session(engine.target.device, engine.names.get("backend")), "models": engine.names}
            result = plan(
                engine,
                prompts,
                sampling,
                left,
                work.max_new_tokens,
                seed,
                lambda what, share: update(completed=share, description=what),
            )
        finally:
            torch.set_num_threads(threads)
    about["sampling"] = sampling.model_dump(mode="json")
    result.notes += [*left_out, *settings.notes]
    notes = [*_footnotes(result), *_settings_notes(settings), *result.notes, *origins(engine.names)]
    tables: list[Table | str] = [_settings_table(settings), ""] if len(settings.settings) > 1 else []
    document = {**about, **settings.as_dict(), **result.as_dict()}
    output.give(document, *tables, _table(result, console().width), "", *notes, wrap=True)
    if out is not None:
        method = {"name": "autoregressive"} if result.best is None else result.best.method.as_dict()
        write_text(out, as_json(method) + "\n")
        if not output.json_:
            print(f"written to {out}; use it with --method file:{out}")
    if result.interrupted:
        sys.exit(130)


def _settings_table(settings: SettingComparison) -> Table:
    """Forwards by bits and threads."""
    from rich.text import Text

    made = simple_table("weights", ">threads", ">forward of 1", ">of 8 tokens", ">speed-up", ">of 8", first=14)
    for one in settings.settings:
        cells = [f"{1000 * one.seconds[rows]:.1f} ms" for rows in one.seconds]
        cells += [f"{gain:.2f}×" for gain in one.speed_up.values()]
        name = Text(one.weights or "as loaded", "bold green" if one is settings.best else "")
        made.add_row(name, str(one.threads), *cells)
    return made


def _settings_notes(settings: SettingComparison) -> Iterator[str]:
    best = settings.best
    if best is None:
        return
    if settings.options:
        gain = f"forwards {best.speed_up[1]:.2f}× as fast"
        yield f"recommended options: {' '.join(settings.options)} ({gain})"
    elif len(settings.settings) > 1:
        yield "recommended options: bits and threads as they are"
    if best.weights:
        yield "other bits change answers slightly; plan with them for the best method"


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
