"""The figures of benchmarks/beams.py, one per task: DSBD's Figures 4 to 9 redrawn.

Knows a result of beams.py. Needs matplotlib (extra bench).

Run: python benchmarks/beams_figures.py benchmarks/results/beams-embedded-float32.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from beams_fronts import front
from beams_settings import MEASURES
from matplotlib.axes import Axes

Row = dict[str, Any]
BLUE, YELLOW, GREY = "#2b6cb0", "#d69e2e", "#4a5568"
SHADES = plt.get_cmap("viridis")


def _error(ax: Axes, rows: Sequence[Row], x: str, y: str) -> None:
    """Intervals of plain beam sampling: few points, and those that a ratio is taken to."""
    for row in rows:
        xs, ys = (row.get(f"{name}_interval") for name in (x, y))
        if xs:
            ax.plot(xs, [row[y]] * 2, color=YELLOW, linewidth=0.8, alpha=0.6)
        if ys:
            ax.plot([row[x]] * 2, ys, color=YELLOW, linewidth=0.8, alpha=0.6)


def _fronts(ax: Axes, rows: Sequence[Row], x: str, y: str, lower: bool = False) -> None:
    """Points of both methods; the curve of beam sampling by width and DSBD's front."""
    ours = [row for row in rows if row["family"] == "dsbd"]
    theirs = [row for row in rows if row["family"] == "beam sampling"]
    sign = -1 if lower else 1
    ax.scatter([r[x] for r in ours], [r[y] for r in ours], s=14, color=BLUE, alpha=0.45, linewidths=0)
    edge = front([(r[x], sign * r[y]) for r in ours])
    ax.plot([p[0] for p in edge], [sign * p[1] for p in edge], ".-", color=BLUE, linewidth=1.6, label="dsbd, front")
    ax.plot([r[x] for r in theirs], [r[y] for r in theirs], "o-", color=YELLOW, markersize=5, label="beam sampling")
    _error(ax, theirs, x, y)
    for row in theirs:
        ax.annotate(str(row["about"]["width"]), (row[x], row[y]), xytext=(4, 4), textcoords="offset points", fontsize=8)
    ax.legend(fontsize=8)


def _coloured(ax: Axes, rows: Sequence[Row], x: str, y: str, option: str, name: str) -> None:
    """DSBD's points and fronts by one option, beam sampling for reference."""
    theirs = [row for row in rows if row["family"] == "beam sampling"]
    ours = [row for row in rows if row["family"] == "dsbd"]
    found = sorted({row["about"][option] for row in ours})
    for i, value in enumerate(found):
        some = [row for row in ours if row["about"][option] == value]
        colour = SHADES(i / max(1, len(found) - 1) * 0.85)
        ax.scatter([r[x] for r in some], [r[y] for r in some], s=14, color=[colour], alpha=0.6, linewidths=0)
        edge = front([(r[x], r[y]) for r in some])
        ax.plot(
            [p[0] for p in edge], [p[1] for p in edge], ".-", color=colour, linewidth=1.3, label=f"{name} = {value}"
        )
    ax.plot([r[x] for r in theirs], [r[y] for r in theirs], "o-", color=YELLOW, markersize=4, linewidth=1)
    ax.legend(fontsize=8)


def _widths(ax: Axes, rows: Sequence[Row], y: str) -> None:
    """Something against the mean width of a layer (Figure 7)."""
    for family, colour in (("dsbd", BLUE), ("beam sampling", YELLOW)):
        some = [row for row in rows if row["family"] == family]
        ax.scatter([r["mean_width"] for r in some], [r[y] for r in some], s=16, color=colour, alpha=0.7, label=family)
    ax.legend(fontsize=8)


def _caption(task: str, name: str, entry: dict[str, Any], found: dict[str, Any]) -> str:
    env, cut = entry["environment"], entry["sampling"]
    where = env["processor"] if env["device"] == "cpu" else env["device"]
    text = (
        f"{name}: {MEASURES[task]}, {env['dtype']}, {env['threads']} threads of {where}, torch {env['torch']}, "
        f"{env['date']}. Temperature {cut['temperature']:g}, top-k {cut['top_k']}, top-p {cut['top_p']:g}.\n"
        f"Speed (the prompt's forward not counted) of {found['speed_items']} runs of every setting; "
        f"quality of {found['quality_items']} runs on {found['quality_documents']} documents"
    )
    return text + (f" of the {entry['quality_from']} pair." if "quality_dtype" in entry else ".")


def draw(name: str, result: dict[str, Any], folder: Path) -> list[Path]:
    """One PNG per task of the Pareto run."""
    folder.mkdir(parents=True, exist_ok=True)
    entry = result["parts"]["pareto"]
    made = []
    for task, found in entry["found"].items():
        rows, measure, rate = found["settings"], MEASURES[task], "tokens_per_second"
        grid, axes = plt.subplots(2, 3, figsize=(14, 8.2), layout="constrained")
        places: list[tuple[Axes, str, str, Callable[[Axes], None]]] = [
            (axes[0][0], "tokens/s", measure, lambda ax, rows=rows, rate=rate: _fronts(ax, rows, rate, "score")),
            (
                axes[0][1],
                "tokens/s",
                "perplexity",
                lambda ax, rows=rows, rate=rate: _fronts(ax, rows, rate, "perplexity", True),
            ),
            (axes[0][2], "perplexity", measure, lambda ax, rows=rows, rate=rate: _plain(ax, rows)),
            (axes[1][0], "mean width of a layer", measure, lambda ax, rows=rows, rate=rate: _widths(ax, rows, "score")),
            (
                axes[1][1],
                "tokens/s",
                measure,
                lambda ax, rows=rows, rate=rate: _coloured(ax, rows, rate, "score", "threshold", "t"),
            ),
            (
                axes[1][2],
                "tokens/s",
                measure,
                lambda ax, rows=rows, rate=rate: _coloured(ax, rows, rate, "score", "draft_width", "W_S"),
            ),
        ]
        for ax, x, y, fill in places:
            fill(ax)
            ax.set_xlabel(x)
            ax.set_ylabel(y)
            ax.grid(alpha=0.25)
        ratio = found["at_equal_quality"]["score, decoding"]
        if ratio["median"] is not None:
            axes[0][0].set_title(f"at equal {measure}: dsbd {ratio['median']:.2f}x beam sampling", fontsize=9)
        ratio = found["at_equal_quality"]["perplexity, decoding"]
        if ratio["median"] is not None:
            axes[0][1].set_title(f"at equal perplexity: dsbd {ratio['median']:.2f}x beam sampling", fontsize=9)
        grid.suptitle(_caption(task, name, entry, found), fontsize=9, color=GREY)
        path = folder / f"{name}-{task}.png"
        grid.savefig(path, dpi=130, metadata={"Software": None})
        plt.close(grid)
        made.append(path)
    return made


def _plain(ax: Axes, rows: Sequence[Row]) -> None:
    """Score against perplexity: no front, one does not buy the other."""
    for family, colour in (("dsbd", BLUE), ("beam sampling", YELLOW)):
        some = [row for row in rows if row["family"] == family]
        ax.scatter(
            [r["perplexity"] for r in some], [r["score"] for r in some], s=16, color=colour, alpha=0.7, label=family
        )
    ax.legend(fontsize=8)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        file = Path(argument)
        for drawn in draw(file.stem, json.loads(file.read_text("utf-8")), file.parent / "figures"):
            print(drawn)
