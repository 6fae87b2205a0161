"""`draftwood tune`: search the options of a method that are fastest here, by measured runs, and save them."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli import flags, tune_flags
from draftwood.cli.prompts import fitted, held_out, read
from draftwood.cli.tune_flags import SEARCH, WORK
from draftwood.errors import ConfigurationError, RequestError
from draftwood.tune.tuning import TREES, Plan, make_plan

if TYPE_CHECKING:
    from draftwood.engine import Engine
    from draftwood.methods import Method
    from draftwood.tune.heatmap import HeatMap
    from draftwood.tune.measuring import Bench, Standing

PROMPTS_SEED = 11  # documents that no benchmark uses


def tune(
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help="mcsd, mcsd-fork, speculative, dsbd, speculative-beam-search or lookup.",
            rich_help_panel=SEARCH,
        ),
    ] = TREES,
    budget: Annotated[int, typer.Option(metavar="N", help="Measured runs, 2 or more.", rich_help_panel=SEARCH)] = 20,
    search: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="guided: trees by what acceptance and costs predict, other methods by optuna; grid: everything.",
            rich_help_panel=SEARCH,
        ),
    ] = "guided",
    settings: Annotated[
        list[str] | None, flags.setting("An option that is fixed, such as verify=coupled. Repeatable.", SEARCH)
    ] = None,
    rows: Annotated[
        int,
        typer.Option(metavar="N", help="Most tokens that the target verifies at once.", rich_help_panel=SEARCH),
    ] = 48,
    max_depth: Annotated[
        int, typer.Option(metavar="N", help="mcsd: most layers of drafts.", rich_help_panel=SEARCH)
    ] = 6,
    widths: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="mcsd: children that a node may have.",
            rich_help_panel=SEARCH,
            show_default="any number",
        ),
    ] = None,
    initial: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            help="mcsd: tokens of the target that a round begins with. More than 1 are lossy.",
            rich_help_panel=SEARCH,
        ),
    ] = "1",
    beams: Annotated[
        int,
        typer.Option(
            metavar="W",
            help="dsbd: to be no worse than beam-sampling of this width, measured beside it.",
            rich_help_panel=SEARCH,
        ),
    ] = 4,
    tolerance: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="dsbd: nats per token that the best beam's mean log-likelihood may be lower than that "
            "(0.02: perplexity 2% higher).",
            rich_help_panel=SEARCH,
        ),
    ] = 0.02,
    prompts: tune_flags.Prompts = None,
    documents: tune_flags.Documents = 3,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", help="Most tokens to generate for each.", rich_help_panel=WORK)
    ] = 64,
    target: flags.Target = None,
    draft: flags.Draft = None,
    dtype: flags.Dtype = "float32",
    device: flags.Device = None,
    quantize: flags.Quantize = None,
    compile: flags.Compile = False,
    seed: flags.Seed = 0,
    temperature: flags.Temperature = 1.0,
    top_k: flags.TopK = 0,
    top_p: flags.TopP = 1.0,
    min_p: flags.MinP = 0.0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The method file. Beside it: FILE's name with .runs.json, all figures, and with .png, the heat map.",
            rich_help_panel=flags.OUTPUT,
            show_default="tuned-METHOD.json",
        ),
    ] = None,
    color: flags.Color = None,
    json: flags.Json = False,
) -> None:
    """Find the options of a method that are fastest here.

    Every measured run decodes all prompts in turns with plain decoding, so that a
    slow moment of the machine hits both, and what counts is the speed-up.

    For mcsd, forwards of 1, 2, 4, ... rows are measured first, then a pilot tree:
    acceptance by layer and place among siblings, with the costs, predicts the
    speed of every tree, and the best predicted ones are measured.

    Ctrl-C ends the search: what was measured is shown and the best of it saved.
    """
    from draftwood.cli.tune_shown import heat_maps, show
    from draftwood.explain.terminal import as_json

    # what can be refused is refused before a model is loaded
    models = flags.ModelFlags(target, draft, dtype, device, quantize, compile)
    plan = make_plan(method, budget, search, settings, rows, max_depth, widths, initial, beams, tolerance)
    params = flags.sampling(temperature, top_k, top_p, min_p)
    plan.plain.check(params)
    if max_new_tokens < 2:
        raise RequestError("a run of fewer than 2 tokens shows no speed; raise --max-new-tokens")
    if documents < 1:
        raise RequestError(f"--documents is {documents}, but at least one prompt of each domain must be measured")
    texts = read(prompts) if prompts is not None else held_out(documents, PROMPTS_SEED)
    place = out or Path(f"tuned-{method}.json")
    if place.suffix != ".json" or place.is_dir() or not place.parent.is_dir():
        raise ConfigurationError(f"--out {place} will not do; name a .json file in a directory that exists")

    from draftwood.tune.measuring import Bench, Workload

    if max(plan.initial) > 1:
        print(
            f"note: rounds that begin with {max(plan.initial)} tokens of the target are lossy: "
            "the text no longer follows its distribution",
            file=sys.stderr,
        )
    engine = models.load()
    engine.method(plan.usual)
    work = Workload(fitted(engine, texts, max_new_tokens), params, max_new_tokens, seed)
    bench = Bench(engine, work, plan.plain)
    interrupted = False
    try:
        with _progress(budget, color) as told:
            bench.step = partial(told, None, None)
            plan.search(bench, seed, told)
    except KeyboardInterrupt:
        interrupted = True
    ranked = plan.ranked(bench)
    if not ranked:
        raise KeyboardInterrupt
    maps = heat_maps(plan, ranked)
    document = _document(engine, plan, bench, ranked, interrupted)
    saved = _save(place, ranked[0].method, document, maps)
    if json:
        print(as_json({**document, "files": [str(path) for path in saved]}))
    else:
        show(plan, bench, ranked, maps, saved, color)
    if interrupted:
        sys.exit(130)


@contextmanager
def _progress(total: int, color: bool | None) -> Iterator[Callable[[int | None, Method | None], None]]:
    """A bar on stderr that is redrawn between decodings only, so that it costs them nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from draftwood.explain.terminal import console, method_label

    err = console(color, stderr=True)
    if not err.is_terminal:
        yield lambda run, method: None
        return
    columns = (BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("costs of forwards", total=total)

        def told(run: int | None, method: Method | None) -> None:
            """A run begins; or, without arguments, it goes on."""
            what = None if method is None else method_label(method.as_dict())
            bar.update(task, completed=run, description=what, refresh=True)

        bar.refresh()
        yield told


def _document(
    engine: Engine, plan: Plan, bench: Bench, ranked: Sequence[Standing], interrupted: bool
) -> dict[str, Any]:
    from draftwood import __version__

    costs = plan.costs and [dict(zip(cost.rows, cost.seconds, strict=True)) for cost in plan.costs]
    return {
        "draftwood": __version__,
        "models": {**engine.names, "device": str(engine.target.device)},
        "plain": plan.plain.as_dict(),
        "budget": plan.budget,
        "search": "grid" if plan.grid else "guided",
        "interrupted": interrupted,
        "prompts": len(bench.workload.prompts),
        "max_new_tokens": bench.workload.max_new_tokens,
        "sampling": bench.workload.sampling.model_dump(mode="json"),
        "seed": bench.workload.seed,
        "tolerance": plan.tolerance if plan.judges_quality else None,
        "forward_seconds": {"target": costs[0], "draft": costs[1]} if costs else None,
        "acceptance": plan.guided.tally.acceptance() if plan.guided and plan.guided.runs else None,
        "best": ranked[0].method.as_dict(),
        "ranked": [_row(one) for one in ranked],
        "runs": [trial.as_dict() for trial in bench.trials],
    }


def _row(one: Standing) -> dict[str, Any]:
    return {
        "method": one.method.as_dict(),
        "lossless": one.method.lossless,
        "runs": len(one.trials),
        "speed_up": one.speed_up,
        "predicted": one.trials[0].predicted,
        "tau": one.tau,
        "gain_in_log_likelihood_per_token": one.gain,
        "gain_error": one.gain_error,
    }


def _save(place: Path, method: Method, document: Mapping[str, Any], maps: Sequence[HeatMap]) -> list[Path]:
    """The method file, all figures, and a picture where it can be drawn; their paths."""
    from draftwood.explain.terminal import as_json
    from draftwood.tune.heatmap import picture

    figures, drawn = place.with_suffix(".runs.json"), place.with_suffix(".png")
    place.write_text(json_module.dumps(method.as_dict(), indent=2) + "\n", "utf-8")
    figures.write_text(as_json(document) + "\n", "utf-8")
    return [place, figures, *([drawn] if maps and picture(maps, drawn) else [])]
