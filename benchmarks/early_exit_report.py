"""What benchmarks/early_exit.py concludes from its records: EESD's tables, and whether the targets are reached.

Knows settings and records. Refuses to run anything and to print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from beams_fronts import decode_seconds, values
from beams_items import Store
from beams_settings import Item, Setting
from candidates_report import Part, Rows, pooled
from early_exit_settings import PLAIN
from record import spread

from draftwood.results import Metrics

TIMES = ("draft", "verify", "sampling", "other")
PLAIN_TARGET, TREE_TARGET, BETA_TARGET, SHARE_TARGET = 2.0, 2.2, 1.1, 0.01  # what is wanted
LARGE = 500_000_000  # weights from which on the speed targets are meant


@dataclass(frozen=True)
class Runs:
    """Runs of some settings in the same turns: rows [item][setting], and their seconds as if prompts cost nothing."""

    domains: list[str]  # of the rows
    rows: Rows
    seconds: np.ndarray  # [item, setting]

    @staticmethod
    def of(settings: Sequence[Setting], store: Store, items: Sequence[Item]) -> Runs:
        """The turns that are complete."""
        found, rows = store.matrix(settings, items)
        return Runs([item.task for item in found], rows, decode_seconds(rows) if rows else np.zeros((0, len(settings))))

    def domain(self, name: str) -> Runs:
        """The turns of one domain. What a round without a prompt costs was found with all of them."""
        chosen = [i for i, domain in enumerate(self.domains) if domain == name]
        return Runs([name] * len(chosen), [self.rows[i] for i in chosen], self.seconds[chosen])

    def compared(self, over: int, under: int) -> dict[str, Any]:
        """One setting's speed over another's: medians of ratios in turns, and the ratio of sums."""
        tokens, whole = values(self.rows, "tokens"), values(self.rows, "seconds")
        rate, with_prompt = tokens / self.seconds, tokens / whole
        return {
            "speed_up": spread((rate[:, over] / rate[:, under]).tolist()),
            "speed_up_with_prompt": spread((with_prompt[:, over] / with_prompt[:, under]).tolist()),
            "pooled": pooled(self.seconds, tokens, over, under),
        }

    def counts(self, i: int) -> Metrics:
        """Counts of all runs of a setting, as of one long run."""
        return Metrics(
            rounds=self._total(i, "rounds"),
            emitted=self._total(i, "tokens"),
            drafted=self._total(i, "drafted"),
            accepted=self._total(i, "accepted_drafts"),
        )

    def times(self, i: int) -> Metrics:
        """Times of all runs of a setting, the rounds that read the prompts left out."""
        spent = {f"{name}_seconds": self._total(i, f"{name}_seconds") for name in TIMES}
        return Metrics(rounds=self._total(i, "later_rounds"), drafted=self._total(i, "later_drafted"), **spent)

    def _total(self, i: int, name: str) -> Any:
        return sum(row[i][name] for row in self.rows)

    def described(self, i: int, plain: int) -> Part:
        """Speed-up, App. D's metrics and Table 8's times of one setting."""
        counts, times = self.counts(i), self.times(i)
        spent = sum(getattr(times, f"{name}_seconds") for name in TIMES)
        cost = times.draft_token_cost
        return {
            **self.compared(i, plain),
            "runs": len(self.rows),
            "tokens_per_second": counts.emitted / float(self.seconds[:, i].sum()),
            "tau": counts.tau,
            "drafts_per_round": counts.drafted / counts.rounds,
            "v_d": counts.acceptance_rate,
            "r_d": counts.draft_share,
            "harmonic_mean": counts.harmonic_mean,
            "draft_token_cost": cost,
            "predicted_speed_up": counts.predicted_speedup_at(cost) if cost else counts.tau,  # drafts that cost nothing
            "ms_per_round": {name: getattr(times, f"{name}_seconds") / max(1, times.rounds) * 1e3 for name in TIMES},
            "time_shares": times.time_shares,
            "controller_share": self._total(i, "controller_seconds") / spent if spent else 0.0,
            "same_text": fmean(row[i]["digest"] == row[plain]["digest"] for row in self.rows),
        }


def speeds(settings: Sequence[Setting], store: Store, items: Sequence[Item]) -> list[Part]:
    """A row per setting of a group at one temperature: over all domains, and by domain; against plain decoding."""
    runs = Runs.of(settings, store, items)
    plain = [setting.family for setting in settings].index(PLAIN)
    domains = {name: runs.domain(name) for name in dict.fromkeys(runs.domains)}
    return [
        {
            "family": setting.family,
            "label": setting.label,
            "about": setting.about,
            "method": setting.method,
            **runs.described(i, plain),
            "domains": {name: some.described(i, plain) for name, some in domains.items()},
        }
        for i, setting in enumerate(settings if runs.rows else ())
    ]


def median_of(row: Mapping[str, Any]) -> float:
    """The speed-up that rows are ranked by."""
    return float(row["speed_up"]["median"])


def best(rows: Sequence[Part], name: str) -> Part | None:
    """The fastest of the EESD rows whose `about` has `name`; None where there is none."""
    some = [row for row in rows if row["family"] == "eesd" and name in row["about"]]
    return max(some, key=median_of, default=None)


def against_fixed(settings: Sequence[Setting], store: Store, items: Sequence[Item]) -> Part | None:
    """Figure 3: the controller that is best over all, against each domain's best fixed K in hindsight, and beta-ts.

    The best K is chosen where it is compared, and so is lucky; a controller has no such choice.
    """
    runs, shown = Runs.of(settings, store, items), speeds(settings, store, items)
    chosen = best(shown, "controller")
    beta = [i for i, setting in enumerate(settings) if setting.about.get("controller") == "beta-ts"]
    ks = [i for i, setting in enumerate(settings) if "fixed" in setting.about and setting.family == "eesd"]
    if chosen is None or not beta or not ks:
        return None
    i = [setting.label for setting in settings].index(chosen["label"])
    domains = {}
    for domain in chosen["domains"]:
        some = runs.domain(domain)
        k = max(ks, key=lambda k: median_of(shown[k]["domains"][domain]))
        domains[domain] = {
            "best_k": settings[k].about["fixed"],
            "to_best_k": some.compared(i, k)["speed_up"],
            "to_beta": some.compared(i, beta[0])["speed_up"],
        }
    over = max(ks, key=lambda k: median_of(shown[k]))
    return {
        "controller": chosen["about"]["controller"],
        "domains": domains,
        "best_k": settings[over].about["fixed"],
        "to_best_k": runs.compared(i, over)["speed_up"],
        "to_beta": runs.compared(i, beta[0])["speed_up"],
        "to_beta_mean": fmean(one["to_beta"]["median"] for one in domains.values()),
    }


def ablated(settings: Sequence[Setting], store: Store, items: Sequence[Item]) -> list[Part]:
    """Table 4: what is left of the best part's speed when a part is taken away, in the same turns."""
    runs = Runs.of(settings, store, items)
    if not runs.rows:
        return []
    names = [setting.label for setting in settings]
    pairs = [
        ("eesd + beta-ts", f"eesd, K={max(s.about.get('fixed', 0) for s in settings)}", "without Thompson sampling"),
        ("eesd + beta-ts", "first N layers and the target's own head, untrained", "without the exit layer"),
        ("eesd + cali-ts", "eesd + cali-ts without sampling prediction", "without sampling prediction"),
        ("eesd + cali-ts", "eesd + cali-ts without model prediction", "without model prediction"),
        ("short exit, distilled, + beta-ts", "short exit, on text alone, + beta-ts", "without distillation"),
    ]
    return [
        {"of": whole, "what": what, "speed": runs.compared(names.index(rest), names.index(whole))["speed_up"]}
        for whole, rest, what in pairs
        if whole in names and rest in names
    ]


def _target(what: str, wanted: float, found: float, meant: bool, **more: Any) -> Part:
    reached = found <= wanted if more.pop("most", False) else found >= wanted
    return {"what": what, "wanted": wanted, "found": found, "reached": reached, "meant_here": meant, **more}


def targets(part: str, entry: Part, weights: int) -> list[Part]:
    """What was to be reached, beside what was, of one part; it is asked of targets from `LARGE` weights on."""
    meant, result = weights >= LARGE, []
    for temperature, groups in entry["groups"].items():
        at = f"T={temperature}"
        if part == "tables" and (row := best(groups.get("tables", ()), "controller")):
            more = {"interval": row["speed_up"]}
            name = f"{row['label']} over plain, {at}"
            result.append(_target(name, PLAIN_TARGET, median_of(row), meant, **more))
        if part == "tree" and (row := best(groups.get("tree", ()), "tree")):
            more = {"interval": row["speed_up"]}
            name = f"{row['label']} over plain, {at}"
            result.append(_target(name, TREE_TARGET, median_of(row), meant, **more))
        if part == "breakdown":
            rows = [row for row in groups.get("tables", ()) if "controller" in row["about"]]
            worst = max(rows, key=lambda row: row["controller_share"], default=None)
            if worst:
                name = f"share of {worst['label']}'s own time in a round, {at}"
                result.append(_target(name, SHARE_TARGET, worst["controller_share"], meant, most=True))
        fixed = entry.get("against_fixed", {}).get(temperature)
        if part == "ablations" and fixed:
            ratios = {domain: one["to_best_k"] for domain, one in fixed["domains"].items()}
            worst = min(ratios, key=lambda domain: ratios[domain]["median"])
            good = sum(ratio["median"] >= 1 for ratio in ratios.values())
            name = f"{fixed['controller']} over each domain's best fixed K, {at}; so in {good} of {len(ratios)} domains"
            name += f", least in {worst}"
            result.append(_target(name, 1.0, ratios[worst]["median"], meant, interval=ratios[worst]))
            name = f"{fixed['controller']} over beta-ts, mean of the domains, {at}"
            result.append(_target(name, BETA_TARGET, fixed["to_beta_mean"], meant))
    return result
