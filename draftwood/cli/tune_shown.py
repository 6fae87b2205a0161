"""How a search looks when it is over: table, heat maps, what it comes to. Knows terminals; measures nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.tune.heatmap import Cell, HeatMap, lines
from draftwood.tune.tuning import TREES, Plan

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.core.shape import Shape
    from draftwood.tune.measuring import Bench, Standing
    from draftwood.tune.search import Guided

SHOWN = 12  # rows of the table
FORETOLD = 50_000  # trees that are looked at for a map, at most
WIDEST = 12  # first widths that are shown where nothing was measured


def heat_maps(plan: Plan, ranked: Sequence[Standing]) -> list[HeatMap]:
    """Speed-ups: of trees by first width and depth, the best of each; of others by their first two options."""
    if plan.name == TREES:
        return tree_maps(ranked, plan.guided, islice(plan.shapes(), FORETOLD))
    return [option_map(plan.name, ranked, _options(plan)[:2])]


def tree_maps(ranked: Sequence[Standing], guided: Guided | None, shapes: Iterable[Shape]) -> list[HeatMap]:
    """One map for each number of initial tokens: by k_1 and layers, the best of each, measured or predicted."""
    found: dict[int, dict[tuple[int, int], Cell]] = {}
    for one in ranked:
        values = one.method.as_dict()
        place = values["tree"][0], len(values["tree"])
        found.setdefault(values["initial"], {}).setdefault(place, Cell(one.speed_up))
    if guided is not None:
        best: dict[tuple[int, tuple[int, int]], float] = {}
        for shape in shapes:
            key = shape.initial, (shape.tree[0], len(shape.tree))
            best[key] = max(best.get(key, 0.0), guided.predicted(shape))
        for (initial, place), value in best.items():
            if place[0] <= WIDEST:
                found.setdefault(initial, {}).setdefault(place, Cell(value, False))
    top = ranked[0].method.as_dict()
    maps = []
    for initial, cells in sorted(found.items()):
        title = "speed-up by k_1 (down) and layers (across), the best tree of each"
        title += f"; initial {initial}, lossy" if initial > 1 else ""
        mark = (top["tree"][0], len(top["tree"])) if top["initial"] == initial else None
        maps.append(HeatMap.of(title, "k_1", "layers", cells, mark))
    return maps


def option_map(name: str, ranked: Sequence[Standing], options: Sequence[str]) -> HeatMap:
    """By one option or two, the best of what was measured there."""
    down, across = options[0], options[1] if len(options) > 1 else None
    found: dict[tuple[Any, Any], Cell] = {}
    for one in ranked:
        values = one.method.as_dict()
        found.setdefault((values[down], values[across] if across else ""), Cell(one.speed_up))
    top = ranked[0].method.as_dict()
    title = f"speed-up of {name} by {down} (down)" + (f" and {across} (across)" if across else "")
    return HeatMap.of(title, down, across or "", found, (top[down], top[across] if across else ""))


def table(plan: Plan, bench: Bench, ranked: Sequence[Standing]) -> Table:
    """The best methods, within 80 columns."""
    from rich.text import Text

    from draftwood.explain.terminal import option_text, simple_table

    made, trees, options = simple_table(), plan.name == TREES, _options(plan)
    for option in options:
        made.add_column(_header(option), justify="left" if trees else "right", overflow="fold")
    beams = plan.name in ("dsbd", "speculative-beam-search")
    for name in (
        "runs",
        "tokens\n/s",
        "speed\n-up",
        *(["fore-\ntold"] if trees else []),
        "tokens\n/round" if beams else "tau",
    ):
        made.add_column(name, justify="right", no_wrap=True)
    if plan.lossy:
        made.add_column("nats/token\nvs plain", justify="right", no_wrap=True)
    plain = plain_rate(bench)
    for i, one in enumerate(ranked[:SHOWN]):
        values = one.method.as_dict()
        predicted = one.trials[0].predicted
        made.add_row(
            *(option_text(values[option]) for option in options),
            str(len(one.trials)),
            f"{one.speed_up * plain:.1f}",
            Text(f"{one.speed_up:.2f}×", "bold green" if i == 0 else ""),
            *(["-" if predicted is None else f"{predicted:.2f}×"] if trees else []),
            f"{one.tau:.2f}",
            *([f"{one.gain:+.2f}±{one.gain_error:.2f}"] if plan.lossy else []),
        )
    return made


def _header(option: str) -> str:
    """A narrow heading."""
    parts = option.split("_")
    return "\n".join(part if len(part) <= 7 else f"{part[:5]}-\n{part[5:]}" for part in parts)


def _options(plan: Plan) -> list[str]:
    """The options that are tuned."""
    from draftwood.tune.spaces import space

    if plan.name == TREES:
        return ["tree", "initial"] if plan.initial != (1,) else ["tree"]
    return list(space(plan.name, plan.fixed))


def plain_rate(bench: Bench) -> float:
    """Tokens per second of plain decoding over all runs."""
    plains = [trial.plain for trial in bench.trials]
    return sum(sums.tokens for sums in plains) / sum(sums.seconds for sums in plains)


def show(
    plan: Plan,
    bench: Bench,
    ranked: Sequence[Standing],
    maps: Sequence[HeatMap],
    saved: Sequence[Path],
    color: bool | None,
) -> None:
    """Everything on standard output."""
    from draftwood.explain.terminal import colourful, console, flow, method_label, terminal_width

    out = console(color)
    out.print(table(plan, bench, ranked))
    if len(ranked) > SHOWN:
        out.print(f"and {len(ranked) - SHOWN} slower ones in {saved[1]}", markup=False, soft_wrap=True)
    out.print()
    for found in maps:
        for line in lines(found, min(terminal_width(), 80), colourful(sys.stdout, color)):
            print(line)
        print()
    if any(not cell.measured for found in maps for cell in found.cells.values()):
        out.print("[..]: the best; ~: predicted, not measured", markup=False)
    best = ranked[0]
    work = bench.workload
    reference = method_label(plan.plain.as_dict())
    notes = [
        f"{len(bench.trials)} runs",
        f"{len(work.prompts)} prompts of at most {work.max_new_tokens} tokens",
        f"temperature {work.sampling.temperature:g}",
        f"{reference} {plain_rate(bench):.1f} tokens/s",
    ]
    print(flow(notes, sys.stdout))
    if plan.judges_quality and -best.gain > plan.tolerance:
        out.print(
            f"No setting loses at most {plan.tolerance:g} nats per token against {reference}; this one loses least. "
            "Widen the beams (--set min_width=...), allow more (--tolerance), or measure longer (--documents).",
            markup=False,
        )
    if best.speed_up < 1:
        out.print(f"Nothing measured is faster than {reference}; use that.", markup=False)
    if not best.method.lossless:
        out.print("The best is lossy: its text does not follow the target's distribution exactly.", markup=False)
    out.print(f"best: {method_label(best.method.as_dict())}", markup=False)
    out.print("saved: " + ", ".join(map(str, saved)), markup=False, soft_wrap=True)
    out.print(f"draftwood generate PROMPT --method file:{saved[0]}", markup=False, soft_wrap=True)
