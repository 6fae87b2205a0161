"""What benchmarks/candidates.py concludes from its records, and how that is printed.

Knows settings and records. Refuses to run anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from beams_fronts import SAMPLES, Qualities, decode_seconds, values
from beams_items import Record, Store
from beams_settings import Item, Setting
from candidates_settings import AGAINST, PLAIN, SCORED
from record import spread
from rich.console import Console
from rich.table import Table

Rows = list[list[Record]]
Part = dict[str, Any]
ALL = "all"


def pooled(seconds: np.ndarray, tokens: np.ndarray, over: int, under: int, samples: int = SAMPLES) -> dict[str, float]:
    """Tokens of all runs over seconds of all runs, of one setting against another, runs drawn anew for the interval.

    Unlike the median of ratios it does not ask how lucky a single short answer was. Arrays are [item, setting].
    """

    def ratio(weights: np.ndarray) -> np.ndarray:
        spent, made = weights @ seconds, weights @ tokens
        return np.asarray((made[..., over] / spent[..., over]) / (made[..., under] / spent[..., under]))

    count = len(seconds)
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=samples).astype(float)
    low, high = np.percentile(ratio(drawn), [2.5, 97.5])
    return {"ratio": float(ratio(np.ones(count))), "low": float(low), "high": float(high)}


def compared(rows: Rows, over: int, under: int) -> dict[str, Any]:
    """One setting's speed over another's in the same turns: medians of ratios and the ratio of sums, prompt aside."""
    tokens, decode, whole = values(rows, "tokens"), decode_seconds(rows), values(rows, "seconds")
    rate, with_prompt = tokens / decode, tokens / whole
    return {
        "speed_up": spread((rate[:, over] / rate[:, under]).tolist()),
        "speed_up_with_prompt": spread((with_prompt[:, over] / with_prompt[:, under]).tolist()),
        "pooled": pooled(decode, tokens, over, under),
    }


def described(rows: Rows, i: int, plain: int) -> dict[str, Any]:
    """Speed-up, tau, the paper's alpha and where the time goes, of one setting on some items."""
    records = [row[i] for row in rows]
    drafting, rounds = sum(r["drafting_rounds"] for r in records), sum(r["rounds"] for r in records)
    later = max(1, sum(r["later_rounds"] for r in records))
    tokens = sum(r["tokens"] for r in records)
    return {
        **compared(rows, i, plain),
        "runs": len(rows),
        "tokens_per_second": tokens / float(decode_seconds(rows)[:, i].sum()),
        "tau": tokens / rounds,
        "alpha": sum(r["accepted_shares"] for r in records) / drafting if drafting else None,
        "drafted_length": sum(r["drafted_lengths"] for r in records) / rounds,
        "target_rows_per_round": sum(r["target_rows"] - r["prompt"] + 1 for r in records) / rounds,
        "ms_per_round": {
            name: sum(r[f"{name}_seconds"] for r in records) / later * 1e3
            for name in ("draft", "verify", "sampling", "other")
        },
    }


def speeds(settings: Sequence[Setting], store: Store, items: Sequence[Item]) -> list[Part]:
    """A row per setting: over all domains, and by domain; against plain decoding at the same temperature."""
    found, rows = store.matrix(settings, items)
    plain = {s.about["temperature"]: i for i, s in enumerate(settings) if s.family == PLAIN}
    result = []
    for i, setting in enumerate(settings if rows else ()):
        reference = plain[setting.about["temperature"]]
        by_domain = {}
        for domain in dict.fromkeys(item.task for item in found):
            some = [row for item, row in zip(found, rows, strict=True) if item.task == domain]
            by_domain[domain] = described(some, i, reference)
        method = {k: v for k, v in setting.method.items() if k != "depth"}  # a path: no round_ where it was read
        head = {"family": setting.family, "label": setting.label, "about": setting.about, "method": method}
        result.append({**head, **described(rows, i, reference), "domains": by_domain})
    return result


def headlines(settings: Sequence[Setting], store: Store, items: Sequence[Item]) -> list[Part]:
    """Target-initialised over draft-initialised trees, by temperature: the paper's pair, equal rows, equal trees."""
    _, rows = store.matrix(settings, items)
    place = {(s.family, s.about["temperature"]): i for i, s in enumerate(settings)}
    result = []
    for temperature in dict.fromkeys(s.about["temperature"] for s in settings) if rows else ():
        for over, under in AGAINST:
            if not {(over, temperature), (under, temperature)} <= place.keys():
                continue
            i, j = place[over, temperature], place[under, temperature]
            each = [described(rows, k, place[PLAIN, temperature]) for k in (i, j)]
            why = {
                name: [one[name] for one in each] for name in ("tau", "alpha", "target_rows_per_round", "ms_per_round")
            }
            result.append(
                {"temperature": temperature, "over": over, "under": under, **compared(rows, i, j), "each": why}
            )
    return result


def _paired(found: np.ndarray, samples: np.ndarray, i: int, plain: int, ratio: bool) -> dict[str, Any]:
    """Difference or ratio to plain decoding on the same documents, with its 95% interval."""
    whole = found[i] / found[plain] if ratio else found[i] - found[plain]
    drawn = samples[:, i] / samples[:, plain] if ratio else samples[:, i] - samples[:, plain]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"to_plain": float(whole), "interval": [float(low), float(high)]}


def qualities(settings: Sequence[Setting], store: Store, items: Sequence[Item], samples: int = SAMPLES) -> list[Part]:
    """Score and perplexity under the target by domain, beside plain decoding of the same documents.

    Of all domains together, under the name `ALL`, only perplexity.
    """
    plain = {s.about["temperature"]: i for i, s in enumerate(settings) if s.family == PLAIN}
    result: list[Part] = [
        {"family": setting.family, "label": setting.label, "about": setting.about, "domains": {}}
        for setting in settings
    ]
    domains = list(dict.fromkeys(item.task for item in items))
    for domain in (*domains, ALL):
        some = [item for item in items if domain in (item.task, ALL)]
        found, rows = store.matrix(settings, some, timed=False)
        if not found:
            continue
        documents = [item.number * len(domains) + domains.index(item.task) for item in found]
        good = Qualities(documents, rows, samples, np.random.default_rng(0))
        for i, setting in enumerate(settings):
            reference = plain[setting.about["temperature"]]
            entry: Part = {
                "runs": len(found),
                "documents": len(set(documents)),
                "perplexity": float(good.perplexity[i]),
                "perplexity_ratio": _paired(good.perplexity, good.perplexity_samples, i, reference, ratio=True),
            }
            if domain in SCORED:
                low, high = np.percentile(good.score_samples[:, i], [2.5, 97.5])
                entry["score"] = float(good.score[i])
                entry["score_interval"] = [float(low), float(high)]
                entry["score_difference"] = _paired(good.score, good.score_samples, i, reference, ratio=False)
            result[i]["domains"][domain] = entry
    return [row for row in result if row["domains"]]


def losses(quality: Sequence[Part], family: str, temperature: float) -> dict[str, Part]:
    """What a setting loses against plain decoding, by domain: points of score, and perplexity as a ratio."""
    for row in quality:
        if (row["family"], row["about"]["temperature"]) == (family, temperature):
            names = ("score_difference", "perplexity_ratio")
            return {domain: {n: found[n] for n in names if n in found} for domain, found in row["domains"].items()}
    return {}


def _times(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def show(console: Console, part: str, entry: Part) -> None:
    """Print one part."""
    for name, rows in entry["speed"].items():
        columns = ("setting", "lossy", "over plain", "with prompt", "of sums", "alpha", "tau", "rows", "verify ms")
        table = Table(*columns, title=f"{part}, draft {name}: {rows[0]['runs'] if rows else 0} turns")
        for row in rows:
            table.add_row(
                row["label"],
                "lossy" if row["about"]["lossy"] else "",
                _times(row["speed_up"]),
                f"{row['speed_up_with_prompt']['median']:.2f}",
                f"{row['pooled']['ratio']:.2f}",
                "" if row["alpha"] is None else f"{row['alpha']:.2f}",
                f"{row['tau']:.2f}",
                f"{row['target_rows_per_round']:.1f}",
                f"{row['ms_per_round']['verify']:.1f}",
            )
        console.print(table)
    for row in entry.get("headline", ()):
        console.print(
            f"T={row['temperature']:g}: {row['over']} over {row['under']}: {_times(row['speed_up'])}, of sums "
            f"{row['pooled']['ratio']:.2f} ({row['pooled']['low']:.2f} to {row['pooled']['high']:.2f})",
            highlight=False,
        )
    if entry.get("quality"):
        domains = [domain for domain in entry["quality"][0]["domains"] if domain in (*SCORED, ALL)]
        table = Table("setting", *domains, title=f"{part}: score, perplexity (to plain)")
        for row in entry["quality"]:
            cells = []
            for domain in domains:
                found = row["domains"][domain]
                score = f"{found['score']:.1%} " if "score" in found else ""
                cells.append(f"{score}{found['perplexity']:.3f} ({found['perplexity_ratio']['to_plain']:.3f}x)")
            table.add_row(row["label"], *cells)
        console.print(table)
    for name, found in entry.get("decision", {}).items():
        if found.get("judgement"):
            console.print(
                f"decision model of draft {name}: area under ROC {found['judgement']['auc']:.3f}, "
                f"overlap {found['judgement']['overlap']:.2f}",
                highlight=False,
            )
