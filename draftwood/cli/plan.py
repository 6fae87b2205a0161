"""`draftwood plan`: which method and settings to use on a pair and prompts, and what they will gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli import flags
from draftwood.errors import RequestError

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.tune.planner import Plan

PLANNING = "Planning"


def plan(
    target: flags.Target = None,
    draft: flags.Draft = None,
    dtype: flags.Dtype = "float32",
    device: flags.Device = None,
    quantize: flags.Quantize = None,
    compile: flags.Compile = False,
    prompts: Annotated[
        Path | None,
        flags.prompts_file("Your prompts, one a line. Default: held-out documents of every domain.", PLANNING),
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="S", help="About how long to measure.", rich_help_panel=PLANNING)
    ] = 60.0,
    max_new_tokens: flags.MaxNewTokens = 64,
    temperature: flags.Temperature = 1.0,
    top_k: flags.TopK = 0,
    top_p: flags.TopP = 1.0,
    seed: flags.Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the recommended method, for --method file:FILE.",
            rich_help_panel=flags.OUTPUT,
            show_default=False,
        ),
    ] = None,
    color: flags.Color = None,
    json: flags.Json = False,
) -> None:
    """Recommend a method for a pair and prompts.

    Pilots measure acceptance, costs of forwards and the interpreter's share. From
    them the speed-up of each kind of method is predicted, and the best of each kind
    is then run to see whether that was right. dsbd is compared with beam sampling
    of the same width, all others with plain decoding.
    """
    from draftwood.cli.prompts import token_prompts
    from draftwood.explain.terminal import as_json, console, grown
    from draftwood.tune.planner import plan

    if not seconds > 0 or max_new_tokens < 8:
        raise RequestError("plan needs --seconds above 0 and --max-new-tokens of 8 or more")
    params = flags.sampling(temperature, top_k, top_p)
    engine = flags.ModelFlags(target, draft, dtype, device, quantize, compile).load()
    asked = token_prompts(engine, prompts, 8, max_new_tokens)
    with _progress(color) as told:
        found = plan(engine, asked, params, seconds, max_new_tokens, seed, told)
    best = found.best
    if out is not None:
        method = {"name": "autoregressive"} if best is None else best.method.as_dict()
        out.write_text(as_json(method) + "\n", "utf-8")
    if json:
        print(as_json({"models": engine.names, "sampling": params.model_dump(mode="json"), **found.as_dict()}))
        return
    show = console(color).print
    show(table(found))
    show()
    _footnotes(found, show)
    for note in [*found.notes, *grown(engine.names)]:
        show(note, markup=False)
    if out is not None:
        show(f"written to {out}; use it with --method file:{out}", markup=False, soft_wrap=True)


def table(found: Plan) -> Table:
    """What was predicted beside what was measured, within 80 columns."""
    from rich.text import Text

    from draftwood.explain.terminal import method_label, simple_table

    made = simple_table()
    made.add_column("method", overflow="fold", min_width=14)
    made.add_column("against", overflow="fold")
    for name in ("per round", "predicted", "measured", "off by"):
        made.add_column(name, justify="right", no_wrap=True)
    best = found.best
    for one in found.choices:
        error = one.error
        made.add_row(
            Text(method_label(one.method.as_dict()), "bold green" if one is best else ""),
            Text(method_label(one.reference.as_dict())),
            f"{one.predicted.steps:.2f}",
            _with_interval(one.predicted.speed_up, one.interval),
            "-" if one.measured is None else _with_interval(one.measured, one.measured_interval),
            "-" if error is None else f"{100 * error:+.0f}%",
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
    show(f"cost of K rows in forwards of one: {rows}", markup=False)
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


@contextmanager
def _progress(color: bool | None) -> Iterator[Callable[[str, float], None]]:
    """A bar of the time on stderr, redrawn between runs only, where stderr is a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from draftwood.explain.terminal import console

    err = console(color, stderr=True)
    if not err.is_terminal:
        yield lambda what, share: None
        return
    columns = (BarColumn(24), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, completed=share, description=what, refresh=True)
