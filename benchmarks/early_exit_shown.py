"""How the parts of benchmarks/early_exit.py are printed.

Knows a part's entry in the result. Concludes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def times(ratio: Mapping[str, float]) -> str:
    """A ratio with its 95% interval."""
    return f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def million(count: int) -> str:
    """Weights in millions or thousands of millions, in a few digits."""
    if not count:
        return "-"
    return f"{count / 1e9:.3g}B" if count >= 1e9 else f"{count / 1e6:.3g}M"


def trainable(row: Mapping[str, Any], sizes: Mapping[str, int]) -> int:
    """Weights that are trained for a row's method, beside the target."""
    return sum(sizes[name] for name in row["about"]["trains"])


def target_line(one: Mapping[str, Any]) -> str:
    """A target, what was found and whether that is enough."""
    form = ".2%" if one["wanted"] < 0.1 else ".2f"
    wanted, found = format(one["wanted"], form), format(one["found"], form)
    sign = "at most" if one["wanted"] < 0.1 else "at least"
    interval = f" ({one['interval']['low']:.2f} to {one['interval']['high']:.2f})" if "interval" in one else ""
    said = "reached" if one["reached"] else "missed"
    return f"{said}: {one['what']}: {found}{interval}, wanted {sign} {wanted}" + (
        "" if one["meant_here"] else " of a large target"
    )


def show(console: Console, part: str, entry: Mapping[str, Any]) -> None:
    """Print one part."""
    for temperature, groups in entry["groups"].items():
        for group, rows in groups.items():
            if not rows:
                continue
            title = f"{part}, {group}, T={temperature}: {rows[0]['runs']} turns"
            _shares(console, title, rows) if part == "breakdown" else _speeds(console, title, rows, entry["sizes"])
        if fixed := entry.get("against_fixed", {}).get(temperature):
            console.print(
                f"T={temperature}: {fixed['controller']} over the best fixed K of all domains ({fixed['best_k']}): "
                f"{times(fixed['to_best_k'])}, over beta-ts {times(fixed['to_beta'])}",
                highlight=False,
            )
            for domain, one in fixed["domains"].items():
                best = f"best fixed K ({one['best_k']})"
                console.print(
                    f"T={temperature}, {domain}: {fixed['controller']} over the {best}: {times(one['to_best_k'])}, "
                    f"over beta-ts {times(one['to_beta'])}",
                    highlight=False,
                )
        for one in entry.get("ablated", {}).get(temperature, ()):
            console.print(f"T={temperature}: {one['of']} {one['what']}: {times(one['speed'])}", highlight=False)
    for name, found in entry.get("exits", {}).items():
        console.print(
            f"{name}: {million(found['parameters'])} weights, {found['steps']} steps, held out: acceptance "
            f"{found['acceptance']:.3f}, same best token {found['agreement']:.3f}",
            highlight=False,
        )
    for one in entry.get("cost", ()):
        console.print(
            f"training {one['method']}: {one['seconds_per_step']:.3f} s a step of {one['batch']}x{one['context']} "
            f"tokens, {million(one['loaded'])} weights loaded, {million(one['trainable'])} trained",
            highlight=False,
        )
    for one in entry["targets"]:
        console.print(target_line(one), highlight=False)


def _speeds(console: Console, title: str, rows: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> None:
    columns = ("setting", "trained", "deployed", "over plain", "of sums", "HM", "v_d", "r_d", "tau", "drafts", "Eq. 14")
    table = Table(*columns, title=title)
    for row in rows:
        count = trainable(row, sizes)
        table.add_row(
            row["label"],
            million(count),
            million(count + sizes["target"]),
            times(row["speed_up"]),
            f"{row['pooled']['ratio']:.2f}",
            f"{row['harmonic_mean']:.1%}",
            f"{row['v_d']:.2f}",
            f"{row['r_d']:.2f}",
            f"{row['tau']:.2f}",
            f"{row['drafts_per_round']:.1f}",
            f"{row['predicted_speed_up']:.2f}",
        )
    console.print(table)


def _shares(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(rows[0]["ms_per_round"])
    table = Table("setting", *(f"{name}, ms" for name in names), "per token", "controller", title=title)
    for row in rows:
        cells = [f"{row['ms_per_round'][name]:.2f} ({row['time_shares'][name]:.0%})" for name in names]
        share = f"{row['controller_share']:.2%}"
        table.add_row(row["label"], *cells, f"{1e3 / row['tokens_per_second']:.2f}", share)
    console.print(table)
