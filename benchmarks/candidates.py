"""Candidates: draft- and target-initialised trees, forks by width and decision models; speed apart from quality.

Two parts follow MCSD: `static` Figure 3 and Table 2 (temperatures 0.7 and 1, held-out prompts of every domain of the
embedded corpus), `widths` Figures 5 to 8 and Table 3 (forks of depth 5 with and without a decision model, for two
drafts). Speed-ups are ratios inside turns: all settings run on an item before the next item comes. Quality is taken
without a clock, by default from the embedded pair, whose law grown pairs share (with --target from that target,
unless --quality-from names a pair). Every run is kept in a file beside the
result, so a killed benchmark goes on where it was.

Run: python benchmarks/candidates.py --limit 20
     python benchmarks/candidates.py --pair grown-12x768 --dtype bfloat16 --threads 2 --minutes 6 --quality-minutes 4
     python benchmarks/candidates.py --minutes 0    # quality only: needs no quiet machine, and other pairs take it over
     python benchmarks/candidates.py --part widths --decision my.safetensors --other-draft ""
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import candidates_settings as settings_of
import torch
from beams_items import Lab, Store, gather
from beams_settings import Item, Setting
from candidates_decision import decision_file
from candidates_report import headlines, losses, qualities, show, speeds
from pairs import NAMES, Pair, pair
from parts import begun, draw, pair_of, parsed, part_arguments
from record import environment, listed, write
from rich.console import Console

from draftwood.corpus import DOMAINS

PARTS = ("static", "widths")
OTHER = {"embedded": "grown-12x768", "grown-12x768": "grown-22x2048", "grown-22x2048": "grown-12x768"}
HIDDEN = ("out", "name", "minutes", "quality_minutes", "no_runs", "decision", "other_decision")


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = part_arguments(__doc__.splitlines()[0], PARTS)
    parser.add_argument("--limit", type=int, default=8, help="documents of each domain that are timed")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of a text; scored answers have fewer")
    parser.add_argument("--domains", type=listed(str), default=DOMAINS)
    parser.add_argument("--temperatures", type=listed(float), default=settings_of.TEMPERATURES, help="of part static")
    parser.add_argument("--paper-only", action="store_true", help="of part static only the paper's own trees")
    parser.add_argument("--widths", type=listed(int), default=settings_of.WIDTHS)
    parser.add_argument("--width-temperature", type=float, default=1.0, help="of part widths")
    parser.add_argument("--other-draft", default=None, help="pair whose draft is the second one; '': none")
    parser.add_argument("--decision", type=Path, default=None, help="decision model of the draft; default: trained")
    parser.add_argument("--other-decision", type=Path, default=None, help="that of the second draft")
    parser.add_argument("--kind", choices=("hidden", "output"), default="output", help="of models that are trained")
    parser.add_argument("--decision-prompts", type=int, default=140, help="that a model is trained on")
    parser.add_argument("--quality-from", choices=NAMES, help="pair whose answers are scored; default: embedded")
    parser.add_argument("--quality-dtype", default="float32")
    parser.add_argument("--quality-limit", type=int, default=150, help="documents of each domain with a score")
    parser.add_argument("--quality-prose", type=int, default=20, help="documents of each other domain")
    parser.add_argument("--quality-repeats", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="for each part's speed, of all its drafts; 0: none"
    )
    parser.add_argument("--quality-minutes", type=float, default=math.inf, help="for each part's quality; 0: none")
    options = parsed(parser, words, PARTS, "candidates")
    if unknown := set(options.domains) - set(DOMAINS):
        parser.error(f"there is no domain {sorted(unknown)[0]!r}; there are {', '.join(DOMAINS)}")
    if options.quality_from is None and options.target is None:
        options.quality_from = "embedded"
    if options.other_draft is None:
        options.other_draft = OTHER[options.pair] if options.target is None else ""
    if options.other_draft and options.other_draft not in NAMES:
        parser.error(f"there is no pair {options.other_draft!r}; there are {', '.join(NAMES)}")
    if options.quick:
        options.limit, options.tokens, options.widths = 1, 12, options.widths[:2]
        options.quality_limit, options.quality_prose, options.decision_prompts = 2, 1, 14
    return options


class Bench:
    """One call of the benchmark: models, stores and the result file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.pair = pair_of(options)
        self.name = options.name or f"candidates-{self.pair.name}-{options.dtype}"
        self.drafts = {self.pair.name: self.pair.draft}
        if options.other_draft and "widths" in options.part:
            self.drafts[options.other_draft] = pair(options.other_draft).draft
        self.stores: dict[str, Store] = {}
        self.labs: dict[tuple[Path, Path, str], Lab] = {}
        self.result = begun(self.pair, options.out / f"{self.name}.json")

    def store(self, name: str) -> Store:
        """The runs of one target, draft and type."""
        if name not in self.stores:
            self.stores[name] = Store(self.options.out / f"{name}.items.jsonl", self.options.threads)
        return self.stores[name]

    def lab(self, target: Path, draft: Path, dtype: str) -> Lab:
        """Models, loaded once where something is run."""
        return self.labs.setdefault((target, draft, dtype), Lab(target, draft, dtype))

    def timed(self, draft: str, settings: Sequence[Setting], items: Sequence[Item], what: str, minutes: float) -> Store:
        """Make the runs by the clock that are missing, with one draft."""
        store = self.store(self.name if draft == self.pair.name else f"{self.name}-draft-{draft}")
        if not self.options.no_runs and minutes > 0:
            lab = self.lab(self.pair.target, self.drafts[draft], self.options.dtype)
            gather(store, lab, settings, items, what, minutes=minutes)
        return store

    def judged(self, settings: Sequence[Setting], items: Sequence[Item], what: str) -> Store:
        """Make the runs for quality that are missing, without a clock."""
        options = self.options
        if options.quality_from is None:
            chosen, dtype, name = self.pair, options.dtype, self.name
        else:
            chosen, dtype = pair(options.quality_from), options.quality_dtype
            name = f"candidates-{chosen.name}-{dtype}"
        store = self.store(name)
        if not options.no_runs and options.quality_minutes > 0:
            lab = self.lab(chosen.target, chosen.draft, dtype)
            gather(store, lab, settings, items, what, timed=False, minutes=options.quality_minutes)
        return store

    def decisions(self) -> dict[str, tuple[settings_of.DecisionFile, dict[str, Any]]]:
        """A decision model for each draft, given or trained."""
        options, found = self.options, {}
        teacher = self.pair.target if options.quality_from is None else pair(options.quality_from).target
        given = dict(zip(self.drafts, (options.decision, options.other_decision), strict=False))
        for draft, place in self.drafts.items():
            found[draft] = decision_file(
                given[draft], teacher, place, options.kind, options.decision_prompts, options.tokens
            )
        return found

    def part(self, part: str) -> None:
        """Run a part, conclude, write."""
        options = self.options
        items = settings_of.prompts(options.limit, options.repeats, options.tokens, options.domains)
        judged = settings_of.judged(
            options.quality_limit, options.quality_prose, options.quality_repeats, options.tokens, options.domains
        )
        entry: dict[str, Any] = {"arguments": {k: v for k, v in vars(options).items() if k not in HIDDEN}, "speed": {}}
        if part == "static":
            settings = settings_of.static(options.temperatures, options.paper_only)
            store = self.timed(self.pair.name, settings, items, "static, speed", options.minutes)
            entry["speed"][self.pair.name] = speeds(settings, store, items)
            entry["headline"] = headlines(settings, store, items)
        else:
            settings = settings_of.widths(options.widths, options.width_temperature)
            decisions, entry["decision"] = self.decisions(), {}
            for draft, (file, said) in decisions.items():
                chosen = settings_of.widths(options.widths, options.width_temperature, file)
                minutes = options.minutes / len(decisions)
                store = self.timed(draft, chosen, items, f"widths, draft of {draft}", minutes)
                entry["speed"][draft] = speeds(chosen, store, items)
                entry["decision"][draft] = {key: said.get(key) for key in ("kind", "judgement", "recorded", "digest")}
            entry["drafts"] = {
                draft: Pair(draft, self.pair.target, place, place).describe()["draft"]
                for draft, place in self.drafts.items()
            }
        entry["quality"] = qualities(settings, self.judged(settings, judged, f"{part}, quality"), judged)
        for row in entry.get("headline", ()):
            row["quality"] = losses(entry["quality"], row["over"], row["temperature"])
        entry["quality_from"] = options.quality_from or self.pair.name
        entry["environment"] = environment(options.dtype)
        entry["commits"] = sorted({r["commit"] for store in self.stores.values() for r in store.records.values()})
        self.result["environment"] = entry["environment"]
        self.result["parts"][part] = entry
        write(self.name, self.result, options.out)


def main() -> None:
    options = options_of()
    torch.set_num_threads(options.threads)
    bench = Bench(options)
    console = Console(width=max(120, Console().width))  # room for labels in a log file
    for part in options.part:
        bench.part(part)
        show(console, part, bench.result["parts"][part])
    console.print(f"written: {options.out / f'{bench.name}.json'}")
    draw("candidates_figures", bench.name, bench.result, options.out / "figures", console)


if __name__ == "__main__":
    main()
