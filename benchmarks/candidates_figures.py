"""The figures of benchmarks/candidates.py: MCSD's Figures 3 and 5 to 8 redrawn.

Knows a result of candidates.py. Needs matplotlib (extra bench).

Run: python benchmarks/candidates_figures.py benchmarks/results/candidates-embedded-float32.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from candidates_settings import PLAIN
from matplotlib.axes import Axes

from draftwood.depth.judgement import Judgement
from draftwood.train.decision_figure import draw_judgement

Row = dict[str, Any]
COLOURS = ("#999999", "#d69e2e", "#2b6cb0", "#c05621", "#dd8855", "#63a0d8", "#a3c4e8", "#ecb899")
GREY = "#4a5568"
LINES = {
    ("rejection", False): ("lossless", "#2b6cb0", "-"),
    ("rejection", True): ("lossless, decision model", "#2b6cb0", "--"),
    ("longest", False): ("longest wins (lossy)", "#c05621", "-"),
    ("longest", True): ("longest wins (lossy), decision model", "#c05621", "--"),
}


def _caption(name: str, entry: dict[str, Any], runs: int) -> str:
    env = entry["environment"]
    where = env["processor"] if env["device"] == "cpu" else env["device"]
    return (
        f"{name}: {env['dtype']}, {env['threads']} threads of {where}, torch {env['torch']}, {env['date']}.\n"
        f"{runs} runs of every setting; speed-ups are medians of ratios to plain decoding in the same turn, the "
        "prompt's forward not counted."
    )


def _bars(ax: Axes, rows: Sequence[Row], measure: str) -> None:
    """A group of bars per domain, a bar per method; of speed-ups with 95% intervals."""
    domains = list(rows[0]["domains"])
    wide = 0.85 / len(rows)
    for i, row in enumerate(rows):
        found = [row["domains"][domain] for domain in domains]
        at = [place + (i - (len(rows) - 1) / 2) * wide for place in range(len(domains))]
        label = row["family"] + (" (lossy)" if row["about"]["lossy"] else "")
        colour = COLOURS[(i + 1) % len(COLOURS)]
        if measure == "alpha":
            ax.bar(at, [one["alpha"] or 0.0 for one in found], wide, color=colour, label=label)
            continue
        ups = [one["speed_up"] for one in found]
        low = [up["median"] - up["low"] for up in ups]
        high = [up["high"] - up["median"] for up in ups]
        bars = {"ecolor": GREY, "error_kw": {"linewidth": 0.7}}
        ax.bar(at, [up["median"] for up in ups], wide, yerr=[low, high], color=colour, label=label, **bars)
    ax.set_xticks(range(len(domains)), domains)
    ax.grid(axis="y", alpha=0.25)


def draw_static(name: str, entry: dict[str, Any], path: Path) -> None:
    """Figure 3 and Table 2: speed-up and alpha by domain at each temperature."""
    rows = next(iter(entry["speed"].values()))
    temperatures = list(dict.fromkeys(row["about"]["temperature"] for row in rows))
    figure, axes = plt.subplots(
        2, len(temperatures), figsize=(8 * len(temperatures), 8), layout="constrained", squeeze=False
    )
    for column, temperature in enumerate(temperatures):
        some = [row for row in rows if row["about"]["temperature"] == temperature and row["family"] != PLAIN]
        above, below = axes[0][column], axes[1][column]
        _bars(above, some, "speed_up")
        above.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
        above.set(ylabel="speed-up over plain decoding", title=f"temperature {temperature:g}")
        _bars(below, some, "alpha")
        below.set(ylabel="alpha: accepted / longest drafted length", ylim=(0, 1))
    axes[0][0].legend(fontsize=8)
    figure.suptitle(_caption(name, entry, rows[0]["runs"]), fontsize=9, color=GREY)
    _save(figure, path)


def draw_widths(name: str, entry: dict[str, Any], path: Path) -> None:
    """Figures 5, 6 and 8: alpha and speed-up by width, with and without a decision model, a row per draft."""
    drafts = {draft: rows for draft, rows in entry["speed"].items() if rows}
    figure, axes = plt.subplots(len(drafts), 2, figsize=(12, 4.3 * len(drafts)), layout="constrained", squeeze=False)
    for place, (draft, rows) in enumerate(drafts.items()):
        shape = entry["drafts"][draft]
        left, right = axes[place]
        for (verify, decision), (label, colour, style) in LINES.items():
            some = [
                r for r in rows if (r["about"].get("verify"), bool(r["about"].get("decision"))) == (verify, decision)
            ]
            if not some:
                continue
            found = [row["about"]["width"] for row in some]
            options = {"color": colour, "linestyle": style, "marker": "o", "markersize": 4, "label": label}
            left.plot(found, [row["alpha"] for row in some], **options)
            right.plot(found, [row["speed_up"]["median"] for row in some], **options)
            low, high = ([row["speed_up"][end] for row in some] for end in ("low", "high"))
            right.fill_between(found, low, high, color=colour, alpha=0.08)
        for row, style in zip([r for r in rows if "width" not in r["about"]][1:], (":", "-."), strict=False):
            left.axhline(row["alpha"], color=GREY, linewidth=1, linestyle=style, label=row["family"])
            right.axhline(row["speed_up"]["median"], color=GREY, linewidth=1, linestyle=style, label=row["family"])
        left.set(ylabel="alpha", ylim=(0, 1))
        right.set(ylabel="speed-up over plain decoding")
        for ax in (left, right):
            about = f"draft {shape['layers']}x{shape['width']}, {shape['parameters'] / 1e6:.1f}M weights"
            ax.set_title(about, fontsize=9)
            ax.set_xlabel("width W, at D = 5")
            ax.grid(alpha=0.25)
        right.legend(fontsize=7)
    runs = next(iter(drafts.values()))[0]["runs"]
    figure.suptitle(_caption(name, entry, runs), fontsize=9, color=GREY)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def draw(name: str, result: dict[str, Any], folder: Path) -> list[Path]:
    """A PNG per part, and one per decision model (MCSD Figure 7)."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for part, one in (("static", draw_static), ("widths", draw_widths)):
        entry = result["parts"].get(part)
        if entry and any(entry["speed"].values()):
            made.append(folder / f"{name}-{part}.png")
            one(name, entry, made[-1])
    for draft, found in result["parts"].get("widths", {}).get("decision", {}).items():
        if found.get("judgement"):
            made.append(folder / f"{name}-decision-{draft}.png")
            title = f"Decision model of kind {found['kind']} for the draft of {draft}, held-out prompts"
            draw_judgement(Judgement(**found["judgement"]), made[-1], title)
    return made


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        file = Path(argument)
        for drawn in draw(file.stem, json.loads(file.read_text("utf-8")), file.parent / "figures"):
            print(drawn)
