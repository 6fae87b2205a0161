"""docs/depth.md: how much the rules for the depth of drafts are worth, by source, temperature and requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from benchmarks.kinds.draft_price import LOAD_AWARE, PLAIN
from benchmarks.pages.tables import frame, markdown, sources, text, value

AUTO, AWARE = "auto", "auto" + LOAD_AWARE
CONFIDENCE = "confidence"  # begins the names of thresholds
BEST_SWITCH = "confidence, and plain above a number of requests: both the best ones for each source"
NEAR = 0.97  # of the fastest


class DepthCell(NamedTuple):
    """A row of the table."""

    pair: str
    source: str
    temperature: float
    requests: int


Ratios = Mapping[str, float]  # rule -> speed over plain decoding


def table() -> str:
    """Speed over plain decoding, the fastest of a row in bold; and how far each rule is from the fastest."""
    rows = frame("draft-price", "price")
    cells: dict[DepthCell, dict[str, float]] = {}
    shown: dict[DepthCell, dict[str, str]] = {}
    for row in rows.to_dict("records"):
        cell = DepthCell(row["pair"], row["source"], row["temperature"], row["requests"])
        cells.setdefault(cell, {})[row["rule"]] = value(row["to_plain"])
        shown.setdefault(cell, {})[row["rule"]] = text(row["to_plain"])
    rules = [rule for rule in dict.fromkeys(rows["rule"]) if rule != PLAIN]
    lines = []
    order = list(dict.fromkeys(cell[:2] for cell in cells))
    for cell, ratios in sorted(cells.items(), key=lambda each: order.index(each[0][:2])):
        best = max(ratios, key=ratios.__getitem__)
        about = {"models": f"{cell.pair}, {cell.source}", "T": f"{cell.temperature:g}", "requests": cell.requests}
        marked = {rule: f"**{each}**" if rule == best else each for rule, each in shown[cell].items()}
        lines.append(about | {rule: marked.get(rule, "") for rule in rules})
    compared = distances(cells)
    worst = compared.set_index("rule")["worst"]
    conclusion = f"""No rule is within 3% of the fastest one everywhere, so `auto` stays the default. Following the
load it reaches at worst {worst[AWARE]} of the speed of a row's fastest rule; a threshold of 0.4
reaches {worst["confidence 0.4"]}, the same with a switch at two requests {worst["switched"]}, and even the threshold
and the switch that turned out best for each source {worst[BEST_SWITCH]}. A threshold cannot tell a weak draft from a
good one, and the number of requests from which on plain decoding is faster differs from source to source. Where a good
draft and few requests are certain, `confidence` alone is simpler and as fast. Sampled requests that do not follow the
load draft as if they were alone, which many at once pay for: `load_aware` is for them."""
    return "\n\n".join([markdown(pd.DataFrame(lines)), markdown(compared), conclusion, sources("draft-price")])


def choices() -> str:
    """Tokens per pass of each choice among sources, by costs; and which are shown to be other than `auto`."""
    rows = frame("source-choice", "choices")
    columns = {"choice": list(dict.fromkeys(rows["choice"]))}
    for (draft, row), some in rows.groupby(["draft", "row"]):
        speeds = some.set_index("choice")["tokens_per_pass"]
        columns[f"{draft:g}, {row:g}"] = [text(speeds[choice], ends=True) for choice in columns["choice"]]
    verdicts: dict[str, set[str]] = {"faster": set(), "slower": set()}
    for each in rows.to_dict("records"):
        low, high = each["to_auto"]["low"], each["to_auto"]["high"]
        if (low > 1 or high < 1) and each["choice"] != rows["choice"].iloc[-1]:
            verdicts["faster" if low > 1 else "slower"].add(each["choice"])
    differences = [
        f"{which} with some of these costs: {', '.join(sorted(names)) or 'none'}" for which, names in verdicts.items()
    ]
    summary = f"Of {rows['tokens'].iloc[0]:,} tokens. Shown to be, but for hindsight, {'; '.join(differences)}."
    return "\n\n".join([markdown(pd.DataFrame(columns)), summary, sources("source-choice")])


def distances(cells: Mapping[DepthCell, Ratios]) -> pd.DataFrame:
    """Each rule's speed over that of the fastest one of a row: geometric mean, worst row, and how often it is near."""
    complete = {
        cell: {**ratios, AWARE: ratios.get(AWARE, ratios[AUTO]), BEST_SWITCH: switched(cell, cells)}
        for cell, ratios in cells.items()
    }
    lines = []
    for rule in dict.fromkeys(rule for ratios in complete.values() for rule in ratios):
        shares = [ratios[rule] / max(cells[cell].values()) for cell, ratios in complete.items() if rule in ratios]
        lines.append(
            {
                "rule": rule,
                "mean": f"{math.exp(sum(map(math.log, shares)) / len(shares)):.2f}",
                "worst": f"{min(shares):.2f}",
                "within 3%": f"{sum(share >= NEAR for share in shares)} of {len(shares)} rows",
            }
        )
    return pd.DataFrame(lines)


def switched(cell: DepthCell, cells: Mapping[DepthCell, Ratios]) -> float:
    """The speed of a switch between a threshold and plain decoding, both set with hindsight for the cell's source."""
    loads = {other.requests: each for other, each in cells.items() if other[:3] == cell[:3]}

    def speeds(threshold: str, limit: int) -> dict[int, float]:
        return {load: ratios[threshold] if load <= limit else 1.0 for load, ratios in loads.items()}

    thresholds = [rule for rule in cells[cell] if rule.startswith(CONFIDENCE)]
    choices = [speeds(threshold, limit) for threshold in thresholds for limit in (0, *loads)]
    return max(choices, key=lambda found: math.prod(found.values()))[cell.requests]
