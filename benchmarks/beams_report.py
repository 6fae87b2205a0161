"""What benchmarks/beams.py concludes from its records, part by part, and how that is printed.

Knows the parts. Refuses to run anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

import numpy as np
from beams_fronts import SAMPLES, Qualities, Speeds, compared, decode_seconds, interval, values
from beams_items import Record, Store
from beams_settings import Item, Setting
from record import spread
from rich.console import Console
from rich.table import Table

Rows = list[list[Record]]
# What counts as equal quality: exactly, or a point of score less, which the noise of some hundred documents can hide.
EQUAL = (("score", "", 0.0), ("score", " within a point", 0.01), ("perplexity", "", 0.0))


def tasks_of(items: Sequence[Item]) -> list[str]:
    """In order of appearance."""
    return list(dict.fromkeys(item.task for item in items))


def _column(rows: Rows, i: int) -> list[Record]:
    return [row[i] for row in rows]


def _share(records: Sequence[Record], names: Sequence[str]) -> float:
    """Of the seconds of all rounds but the first of each run."""
    every = ("draft_seconds", "verify_seconds", "sampling_seconds", "other_seconds")
    whole = sum(record[name] for record in records for name in every)
    return sum(record[name] for record in records for name in names) / whole if whole else 0.0


def scored(
    settings: Sequence[Setting], speed: tuple[Store, Sequence[Item]], quality: tuple[Store, Sequence[Item]]
) -> dict[str, Any]:
    """Speed and quality of every setting by task; of the Pareto run also speed at equal quality."""
    result: dict[str, Any] = {}
    for task in tasks_of(speed[1]):
        rng = np.random.default_rng(0)
        fast_items, fast_rows = speed[0].matrix(settings, [item for item in speed[1] if item.task == task])
        good_items, good_rows = quality[0].matrix(
            settings, [item for item in quality[1] if item.task == task], timed=False
        )
        if not fast_items or not good_items:
            continue
        fast = Speeds(fast_rows, SAMPLES, rng)
        good = Qualities([item.number for item in good_items], good_rows, SAMPLES, rng)
        decode, whole = interval(fast.decode_samples), interval(fast.whole_samples)
        score, perplexity = interval(good.score_samples), interval(good.perplexity_samples)
        rows = []
        for i, setting in enumerate(settings):
            here, there = _column(fast_rows, i), _column(good_rows, i)
            rows.append(
                {
                    "family": setting.family,
                    "label": setting.label,
                    "about": setting.about,
                    "method": setting.method,
                    "tokens_per_second": float(fast.decode[i]),
                    "tokens_per_second_interval": decode[i],
                    "tokens_per_second_with_prompt": float(fast.whole[i]),
                    "tokens_per_second_with_prompt_interval": whole[i],
                    "score": float(good.score[i]),
                    "score_interval": score[i],
                    "perplexity": float(good.perplexity[i]),
                    "perplexity_interval": perplexity[i],
                    "tau": sum(r["tokens"] for r in there) / sum(r["rounds"] for r in there),
                    "mean_width": fmean(r["width"] for r in there),
                    "mean_distinct": fmean(r["distinct"] for r in there),
                    "mean_accepted": fmean(r["accepted"] for r in there),
                    "peak_slots": max(r["slots"] for r in there),
                    "mean_slots": fmean(r["slots"] for r in there),
                    "not_a_forward": _share(here, ("sampling_seconds", "other_seconds")),
                    "target_rows_per_token": sum(r["target_rows"] - r["prompt"] for r in there)
                    / sum(r["tokens"] for r in there),
                }
            )
        found: dict[str, Any] = {
            "speed_items": len(fast_items),
            "quality_items": len(good_items),
            "quality_documents": len({item.number for item in good_items}),
            "settings": rows,
        }
        families: dict[str, list[int]] = {}
        for i, setting in enumerate(settings):
            families.setdefault(setting.family, []).append(i)
        if {"dsbd", "beam sampling"} <= set(families):
            found["at_equal_quality"] = {
                f"{by}{about}, {how}": compared(families, rate, rates, good, by, slack)
                for by, about, slack in EQUAL
                for how, rate, rates in (
                    ("decoding", fast.decode, fast.decode_samples),
                    ("with the prompt", fast.whole, fast.whole_samples),
                )
            }
        result[task] = found
    return result


def searched(settings: Sequence[Setting], store: Store, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Speculative beam search and Hugging Face's against beam search of the same width, same prompts."""
    own = [setting for setting in settings if setting.family != "Hugging Face"]
    found, rows = store.matrix(own, items)
    if not rows:
        return []
    seconds, decode = values(rows, "seconds"), decode_seconds(rows)
    result = []
    plain_at = {s.about["width"]: i for i, s in enumerate(own) if s.family == "beam search"}
    for i, setting in enumerate(own):
        plain = plain_at[setting.about["width"]]
        records, reference = _column(rows, i), _column(rows, plain)
        same = fmean(a["text_ids"] == b["text_ids"] for a, b in zip(records, reference, strict=True))
        result.append(
            {
                "family": setting.family,
                "label": setting.label,
                "about": setting.about,
                "items": len(found),
                "speed_up": spread((decode[:, plain] / decode[:, i]).tolist()),
                "speed_up_with_prompt": spread((seconds[:, plain] / seconds[:, i]).tolist()),
                "tokens_per_second": spread((values(rows, "tokens")[:, i] / decode[:, i]).tolist()),
                "same_text": same,
                "target_forwards_per_token": sum(r["rounds"] for r in records) / sum(r["tokens"] for r in records),
                "peak_slots": max(r["slots"] for r in records),
            }
        )
    for setting in settings:
        if setting.family == "Hugging Face":
            result.append(_hugging_face(setting, own, store, found, rows, result))
    return result


def _hugging_face(
    setting: Setting,
    own: Sequence[Setting],
    store: Store,
    items: Sequence[Item],
    rows: Rows,
    ours: list[dict[str, Any]],
) -> dict[str, Any]:
    """Hugging Face's time over ours, prompt included: plain and the fastest speculative setting of the same width."""
    row: dict[str, Any] = {"family": setting.family, "label": setting.label, "about": setting.about}
    records = [record for item in items if (record := store.get(setting, item)) is not None]
    lacking = [record["unavailable"] for record in records if "unavailable" in record]
    same_width = [i for i, s in enumerate(own) if s.about["width"] == setting.about["width"]]
    if lacking or len(records) < len(items) or not same_width:
        return {**row, "unavailable": lacking[0] if lacking else "was not run"}
    plain, *drafted = same_width
    row |= {"items": len(records), "seconds": spread([record["seconds"] for record in records])}
    best = max(drafted, key=lambda i: ours[i]["speed_up_with_prompt"]["median"], default=plain)
    for name, i in (("plain", plain), ("speculative", best)):
        ratios = [theirs["seconds"] / mine[i]["seconds"] for theirs, mine in zip(records, rows, strict=True)]
        row[f"theirs_over_{name}"] = spread(ratios)
        row[f"{name}_setting"] = own[i].label
    row["same_text"] = fmean(
        _trimmed(theirs["text_ids"], mine[plain]["text_ids"]) for theirs, mine in zip(records, rows, strict=True)
    )
    return row


def _trimmed(theirs: list[int], mine: list[int]) -> bool:
    """Whether texts are the same; theirs may be padded."""
    return theirs[: len(mine)] == mine and not any(theirs[len(mine) :])


def overheads(settings: Sequence[Setting], store: Store, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Shares of a round: what is not a model forward, and where the time goes. First rounds are left out."""
    _, rows = store.matrix(settings, items)
    result = []
    for i, setting in enumerate(settings if rows else ()):
        records = _column(rows, i)
        rounds = sum(r["later_rounds"] for r in records)
        result.append(
            {
                "label": setting.label,
                "about": setting.about,
                "not_a_forward": spread([_share([r], ("sampling_seconds", "other_seconds")) for r in records]),
                "shares": {
                    name: _share(records, (f"{name}_seconds",)) for name in ("draft", "verify", "sampling", "other")
                },
                "ms_per_round": {
                    name: sum(r[f"{name}_seconds"] for r in records) / rounds * 1e3
                    for name in ("draft", "verify", "sampling", "other")
                },
                "target_rows_per_round": sum(r["target_rows"] - r["prompt"] for r in records)
                / sum(r["rounds"] for r in records),
            }
        )
    return result


def memories(settings: Sequence[Setting], store: Store, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Peak cache slots against multinomial decoding in the same turn and against a row per beam."""
    _, rows = store.matrix(settings, items)
    if not rows:
        return []
    plain = next(i for i, setting in enumerate(settings) if setting.family == "multinomial")
    result = []
    for i, setting in enumerate(settings):
        records, beams = _column(rows, i), setting.about["beams"]
        lengths = [r["prompt"] + r["tokens"] for r in records]
        result.append(
            {
                "label": setting.label,
                "beams": beams,
                "slots": median(r["slots"] for r in records),
                "to_multinomial": spread(
                    [r["slots"] / p["slots"] for r, p in zip(records, _column(rows, plain), strict=True)]
                ),
                "most_to_multinomial": max(
                    r["slots"] / p["slots"] for r, p in zip(records, _column(rows, plain), strict=True)
                ),
                "row_per_beam_slots": median(beams * length for length in lengths),
                "to_row_per_beam": spread(
                    [r["slots"] / (beams * length) for r, length in zip(records, lengths, strict=True)]
                ),
            }
        )
    return result


def _percent(value: float) -> str:
    return f"{value:.1%}"


def show(console: Console, result: dict[str, Any]) -> None:
    """Print what was measured."""
    for part in ("pareto", "table"):
        for task, found in result.get(part, {}).items():
            title = f"{part}, {task}: {found['quality_items']} items for quality, {found['speed_items']} for speed"
            names = ("setting", "tokens/s", "with prompt", "score", "ppl", "tau", "width", "slots", "no forward")
            table = Table(*names, title=title)
            for row in found["settings"]:
                table.add_row(
                    row["label"],
                    f"{row['tokens_per_second']:.1f}",
                    f"{row['tokens_per_second_with_prompt']:.1f}",
                    _percent(row["score"]),
                    f"{row['perplexity']:.3f}",
                    f"{row['tau']:.2f}",
                    f"{row['mean_width']:.2f}",
                    str(row["peak_slots"]),
                    _percent(row["not_a_forward"]),
                )
            console.print(table)
            for name, ratio in found.get("at_equal_quality", {}).items():
                console.print(f"dsbd over beam sampling at equal {name}: {_ratio(ratio)}")
    if result.get("search"):
        table = Table("setting", "speed-up", "with prompt", "forwards a token", "same text", title="search")
        for row in result["search"]:
            if "unavailable" in row:
                table.add_row(row["label"], row["unavailable"])
            elif row["family"] == "Hugging Face":
                ours = (
                    f"ours {row['theirs_over_plain']['median']:.2f}x, {row['theirs_over_speculative']['median']:.2f}x"
                )
                table.add_row(row["label"], "", ours, "", _percent(row["same_text"]))
            else:
                ups = (f"{row[name]['median']:.2f}" for name in ("speed_up", "speed_up_with_prompt"))
                table.add_row(row["label"], *ups, f"{row['target_forwards_per_token']:.2f}", _percent(row["same_text"]))
        console.print(table)
    if result.get("overhead"):
        table = Table("setting", "not a forward", "draft", "verify", "sampling", "other", "rows", title="ms a round")
        for row in result["overhead"]:
            cells = (f"{value:.2f}" for value in row["ms_per_round"].values())
            rows = f"{row['target_rows_per_round']:.1f}"
            table.add_row(row["label"], _percent(row["not_a_forward"]["median"]), *cells, rows)
        console.print(table)
    if result.get("memory"):
        table = Table("setting", "slots", "to multinomial", "row per beam", title="peak cache slots")
        for row in result["memory"]:
            ratio = f"{row['to_multinomial']['median']:.3f}"
            table.add_row(row["label"], f"{row['slots']:.0f}", ratio, f"{row['row_per_beam_slots']:.0f}")
        console.print(table)


def _ratio(ratio: dict[str, Any]) -> str:
    if ratio["median"] is None:
        return "not reached"
    text = f"{ratio['median']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f} over the fronts"
    if ratio["interval"] is not None:
        text += f"; 95% interval {ratio['interval'][0]:.2f} to {ratio['interval'][1]:.2f}"
    fitted = ratio["cross_fitted"]
    widths = ", ".join("-" if value is None else f"{value:.2f}" for value in ratio["by_width"])
    return f"{text}), cross-fitted {'-' if fitted is None else format(fitted, '.2f')}, by width {widths}"
