"""The figures of benchmarks/early_exit.py: EESD's Figures 3 to 5 and Tables 1-3, 7 and 8 as bars.

Knows a result of early_exit.py. Needs matplotlib (extra bench).

Run: python benchmarks/early_exit_figures.py benchmarks/results/early-exit-embedded-float32.json
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

Row = dict[str, Any]
GREY, BLUE, ORANGE = "#4a5568", "#2b6cb0", "#c05621"
COLOURS = {"plain": "#999999", "vanilla": "#d69e2e", "self-spec": "#6b46c1", "medusa": "#2f855a", "eesd": BLUE}
LINES = {
    "beta-ts": "#c05621",
    "cali-ts": "#d69e2e",
    "speedup-ts": "#2b6cb0",
    "optimal-stopping": "#2f855a",
    "confidence": "#6b46c1",
    "adaptive-confidence": "#b794f4",
}
PHASES = {"draft": "#2b6cb0", "verify": "#a3c4e8", "sampling": "#c05621", "other": "#cbd5e0"}


def _caption(name: str, entry: dict[str, Any], runs: int, wide: float) -> str:
    """Where figures come from, in lines for a figure so many inches wide."""
    env = entry["environment"]
    where = env["processor"] if env["device"] == "cpu" else env["device"]
    said = (
        f"{name}: {env['dtype']}, {env['threads']} threads of {where}, torch {env['torch']}, {env['date']}. "
        f"{runs} runs of every setting; speed-ups are medians of ratios to plain decoding in the same turn, with 95% "
        "intervals, the prompt's forward not counted."
    )
    return textwrap.fill(said, int(16 * wide))


def _speed_bars(ax: Axes, rows: Sequence[Row]) -> None:
    """A bar per method with its interval, HM written in it."""
    for place, row in enumerate(rows):
        up = row["speed_up"]
        error = [[up["median"] - up["low"]], [up["high"] - up["median"]]]
        ax.barh(place, up["median"], xerr=error, color=COLOURS[row["family"]], ecolor=GREY, alpha=0.85)
        if row["harmonic_mean"]:
            ax.text(0.05, place, f"HM {row['harmonic_mean']:.0%}", va="center", fontsize=7, color="white")
    ax.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=8)
    ax.invert_yaxis()
    ax.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    ax.set_xlabel("speed-up over plain decoding")
    ax.grid(axis="x", alpha=0.25)


def _sweep(ax: Axes, rows: Sequence[Row], domain: str) -> None:
    """Fixed K as a line, controllers as levels."""
    fixed = sorted((row for row in rows if "fixed" in row["about"]), key=lambda row: row["about"]["fixed"])
    ups = [row["domains"][domain]["speed_up"] for row in fixed]
    ks = [row["about"]["fixed"] for row in fixed]
    ax.plot(ks, [up["median"] for up in ups], color=GREY, marker="o", markersize=3, label="fixed K")
    ax.fill_between(ks, [up["low"] for up in ups], [up["high"] for up in ups], color=GREY, alpha=0.12)
    for row in rows:
        name = row["about"].get("controller")
        if name:
            level = row["domains"][domain]["speed_up"]["median"]
            ax.axhline(level, color=LINES.get(name, GREY), linestyle="--", linewidth=1.2, label=name)
    ax.set_title(domain, fontsize=9)
    ax.grid(alpha=0.25)


def draw_bars(group: str) -> Callable[[str, dict[str, Any], Path], None]:
    """Of a group that is drawn as bars, a column per temperature."""

    def draw(name: str, entry: dict[str, Any], path: Path) -> None:
        found = {at: groups[group] for at, groups in entry["groups"].items() if groups.get(group)}
        count = max(map(len, found.values()))
        size = (7.5 * len(found), 1.6 + 0.34 * count)
        figure, axes = plt.subplots(1, len(found), figsize=size, layout="constrained", squeeze=False)
        for ax, (at, rows) in zip(axes[0], found.items(), strict=True):
            _speed_bars(ax, [row for row in rows if row["family"] != "plain"])
            ax.set_title(f"temperature {at}", fontsize=9)
        _save(figure, path, name, entry, next(iter(found.values())))

    return draw


def draw_controllers(name: str, entry: dict[str, Any], path: Path) -> None:
    """Figure 3: a row per temperature, a column per domain."""
    found = {at: groups["controllers"] for at, groups in entry["groups"].items() if groups.get("controllers")}
    domains = list(next(iter(found.values()))[0]["domains"])
    size = (2.6 * len(domains) + 1, 2.9 * len(found) + 0.6)
    figure, axes = plt.subplots(len(found), len(domains), figsize=size, layout="constrained", squeeze=False)
    for line, (at, rows) in zip(axes, found.items(), strict=True):
        rows = [row for row in rows if row["family"] == "eesd" and "without" not in row["about"]]
        for ax, domain in zip(line, domains, strict=True):
            _sweep(ax, rows, domain)
        line[0].set_ylabel(f"speed-up, T={at}")
    for ax in axes[-1]:
        ax.set_xlabel("K")
    axes[0][-1].legend(fontsize=6)
    _save(figure, path, name, entry, next(iter(found.values())))


def draw_exits(name: str, entry: dict[str, Any], path: Path) -> None:
    """Figures 4 and 5: HM and speed-up by N, and by the number of exit layers."""
    found = {at: groups["exits"] for at, groups in entry["groups"].items() if groups.get("exits")}
    size = (10, 3.2 * len(found) + 0.6)
    figure, axes = plt.subplots(len(found), 2, figsize=size, layout="constrained", squeeze=False)
    for line, (at, rows) in zip(axes, found.items(), strict=True):
        made = [row for row in rows if row["family"] == "eesd"]
        first = min(row["about"]["layers"] for row in made)
        for ax, what, same, label in (
            (line[0], "layers", ("depth", 1), "layers before the exit, N"),
            (line[1], "depth", ("layers", first), f"layers of the exit, behind {first}"),
        ):
            some = sorted((r for r in made if r["about"][same[0]] == same[1]), key=lambda r: r["about"][what])
            x, ups = [row["about"][what] for row in some], [row["speed_up"] for row in some]
            error = [[up["median"] - up["low"] for up in ups], [up["high"] - up["median"] for up in ups]]
            ax.errorbar(x, [up["median"] for up in ups], yerr=error, color=BLUE, marker="o", capsize=3)
            ax.set(xlabel=label, xticks=x)
            ax.set_ylabel(f"speed-up, T={at}", color=BLUE)
            right = ax.twinx()
            right.plot(x, [row["harmonic_mean"] for row in some], color=ORANGE, marker="s", linestyle="--")
            right.set_ylabel("HM", color=ORANGE)
            right.set_ylim(0, 1)
            ax.grid(alpha=0.25)
    _save(figure, path, name, entry, next(iter(found.values())))


def draw_breakdown(name: str, entry: dict[str, Any], path: Path) -> None:
    """Table 8: milliseconds per token by phase, a column per temperature."""
    found = {at: groups["tables"] for at, groups in entry["groups"].items() if groups.get("tables")}
    size = (7.5 * len(found), 4.4)
    figure, axes = plt.subplots(1, len(found), figsize=size, layout="constrained", squeeze=False)
    for ax, (at, rows) in zip(axes[0], found.items(), strict=True):
        left = [0.0] * len(rows)
        for phase, colour in PHASES.items():
            wide = [row["time_shares"][phase] * 1e3 / row["tokens_per_second"] for row in rows]
            ax.barh(range(len(rows)), wide, left=left, color=colour, label=phase)
            left = [a + b for a, b in zip(left, wide, strict=True)]
        ax.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=8)
        ax.invert_yaxis()
        ax.set(xlabel="ms per token", title=f"temperature {at}")
    axes[0][-1].legend(fontsize=8)
    _save(figure, path, name, entry, next(iter(found.values())))


def _save(figure: Any, path: Path, name: str, entry: dict[str, Any], rows: Sequence[Row]) -> None:
    figure.suptitle(_caption(name, entry, rows[0]["runs"], figure.get_figwidth()), fontsize=8, color=GREY)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


DRAWN: dict[str, tuple[tuple[str, str, Callable[[str, dict[str, Any], Path], None]], ...]] = {
    "tables": (("tables", "tables", draw_bars("tables")),),
    "ablations": (
        ("controllers", "sweep", draw_controllers),
        ("controllers", "ablations", draw_bars("controllers")),
        ("generality", "generality", draw_bars("generality")),
    ),
    "exits": (("exits", "exits", draw_exits),),
    "tree": (("tree", "tree", draw_bars("tree")),),
    "breakdown": (("tables", "breakdown", draw_breakdown),),
}


def draw(name: str, result: dict[str, Any], folder: Path) -> list[Path]:
    """PNGs of all parts that were measured."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for part, entry in result["parts"].items():
        for group, suffix, one in DRAWN[part]:
            if any(groups.get(group) for groups in entry["groups"].values()):
                made.append(folder / f"{name}-{suffix}.png")
                one(name, entry, made[-1])
    return made


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        file = Path(argument)
        for drawn in draw(file.stem, json.loads(file.read_text("utf-8")), file.parent / "figures"):
            print(drawn)
