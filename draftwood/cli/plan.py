"""`draftwood plan`: which method and settings to use on a pair and prompts, and what they will gain."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.cli.groups import OUTPUT, ModelOptions, OutputOptions, WorkloadOptions, seed
from draftwood.cli.options import flag
from draftwood.cli.output_file import check_writable, write_text
from draftwood.cli.progress import progress
from draftwood.params import SamplingParams

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.tune.planner import Plan


def plan(
    *,
    models: ModelOptions,
    work: WorkloadOptions,
    seconds: float = flag(60.0, "About how long to measure.", panel="Planning", gt=0),
    seed: int = seed(),
    sampling: SamplingParams,
    out: Path | None = flag(None, "Write the recommended method, for --method file:FILE.", "FILE", panel=OUTPUT),
    output: OutputOptions,
) -> None:
    """Recommend a method for a pair and prompts.

    Pilots measure acceptance, costs of forwards and the interpreter's share. From
    them the speed-up of each kind of method is predicted, and the best of each kind
    is then run to see whether that was right. dsbd is compared with beam sampling
    of the same width, all others with plain decoding. Ctrl-C while the best are run
    keeps what was found.
    """
    from draftwood.explain.terminal import as_json, console, grown
    from draftwood.tune.planner import plan

    texts = work.texts()
    if out is not None:
        check_writable(out)
    engine = models.load()
    prompts = work.fitted(engine, texts)
    with progress(output.color, "costs", 1.0, percent=True, live=False) as update:
        found = plan(
            engine,
            prompts,
            sampling,
            seconds,
            work.max_new_tokens,
            seed,
            lambda what, share: update(completed=share, description=what),
        )
    if output.json_:
        about = {"models": engine.names, "sampling": sampling.model_dump(mode="json")}
        print(as_json({**about, **found.as_dict()}), flush=True)
    else:
        show = console(output.color).print
        show(_table(found, console(output.color).width))
        show()
        _footnotes(found, show)
        for note in [*found.notes, *grown(engine.names)]:
            show(note, markup=False)
    if out is not None:
        method = {"name": "autoregressive"} if found.best is None else found.best.method.as_dict()
        write_text(out, as_json(method) + "\n")
        if not output.json_:
            print(f"written to {out}; use it with --method file:{out}")
    if found.interrupted:
        sys.exit(130)


def _table(found: Plan, width: int) -> Table:
    """What was predicted and what was measured, within 80 columns; below these without what can be computed."""
    from rich.text import Text

    from draftwood.explain.terminal import method_label, simple_table

    made = simple_table()
    made.add_column("method", overflow="fold", min_width=14)
    wide = width >= 80
    made.add_column("against", overflow="fold")
    for name in (*(["per round"] if wide else []), "predicted", "measured", *(["off by"] if wide else [])):
        made.add_column(name, justify="right", no_wrap=True)
    best = found.best
    for one in found.choices:
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


def _footnotes(found: Plan, show: Callable[..., Any]) -> None:
    from draftwood.explain.terminal import method_label

    rows = ", ".join(
        f"{count}: {seconds / found.target_seconds[1]:.2f}"
        for count, seconds in found.target_seconds.items()
        if count in (4, 8, 16, 32)
    )
    parts = [f"plain decoding {found.plain_tokens_per_second:.1f} tokens/s"]
    parts += [] if found.c is None else [f"c {found.c:.2f}"]
    parts.append("acceptance by depth " + " ".join(f"{a:.2f}" for a in found.alpha))
    show(", ".join(parts), markup=False)
    show(f"cost of K tokens at once, in forwards of one: {rows}", markup=False)
    show(
        f"{found.prompts} prompts in pilots, {found.checked} in the check, {found.seconds:.0f} s; "
        "per round: tokens, of beams layers",
        markup=False,
    )
    best = found.best
    if best is None:
        show("recommended: do not speculate", markup=False)
    else:
        show(f"recommended: {method_label(best.method.as_dict())}", markup=False)
