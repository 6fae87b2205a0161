"""Beams: speed against quality of DSBD and beam sampling, Table 1, speculative beam search, overhead and memory.

The parts follow DSBD §4 (Figures 4-9, Table 1) on held-out extractive questions (exact match) and SQL (execution
accuracy) of the embedded corpus. All settings run on an item before the next item comes, in an order drawn for the
item; every run is kept in a file beside the result, so a killed benchmark goes on where it was. A grown target says
what the embedded one says, so quality may be taken from many items of the embedded pair (--quality-from embedded) and
speed from fewer of the grown one.

Run: python benchmarks/beams.py --limit 300 --repeats 2
     python benchmarks/beams.py --pair grown-12x768 --dtype bfloat16 --threads 2 --quality-from embedded
     python benchmarks/beams.py --part search --part memory
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

import beams_settings as settings_of
import torch
from beams_items import Lab, Store, gather
from beams_report import memories, overheads, scored, searched, show
from beams_settings import LIMITS, PAPER, PROSE, Grid, Item, Setting, items
from pairs import NAMES, pair
from parts import begun, draw, pair_of, parsed, part_arguments
from record import environment, listed, write
from rich.console import Console

PARTS = ("pareto", "table", "search", "overhead", "memory")
SCORED = ("pareto", "table")
REPORTS: dict[str, Callable[[Sequence[Setting], Store, Sequence[Item]], list[dict[str, Any]]]] = {
    "search": searched,
    "overhead": overheads,
    "memory": memories,
}


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    grid = Grid()
    parser = part_arguments(__doc__.splitlines()[0], PARTS)
    parser.add_argument("--limit", type=int, default=12, help="documents of each task that are timed")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a text where no answer is scored")
    parser.add_argument("--quality-from", choices=NAMES, help="pair whose answers are scored; default: the timed one")
    parser.add_argument("--quality-dtype", default="float32", help="of the pair of --quality-from")
    parser.add_argument("--quality-limit", type=int, default=300, help="documents of each task, with --quality-from")
    parser.add_argument("--quality-repeats", type=int, default=2)
    parser.add_argument("--tasks", type=listed(str), default=tuple(LIMITS))
    parser.add_argument("--draft-widths", type=listed(int), default=grid.draft_widths)
    parser.add_argument("--thresholds", type=listed(float), default=grid.thresholds)
    parser.add_argument("--gammas", type=listed(int), default=grid.gammas)
    parser.add_argument("--root-weights", type=listed(str), default=grid.root_weights)
    parser.add_argument("--min-widths", type=listed(int), default=grid.min_widths)
    for option, value in PAPER.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--minutes", type=float, default=math.inf, help="for each part's speed and for its quality")
    options = parsed(parser, words, PARTS, "beams")
    if unknown := set(options.tasks) - set(LIMITS):
        parser.error(f"there is no task {sorted(unknown)[0]!r}; there are {', '.join(LIMITS)}")
    if options.quick:
        options.limit, options.repeats, options.tokens = 2, 1, 16
        options.quality_limit, options.quality_repeats = 4, 1
    return options


def sampling_of(options: argparse.Namespace) -> dict[str, Any]:
    """The truncation of the scored parts; other parts have their own."""
    return {option: getattr(options, option) for option in PAPER}


def settings_for(part: str, options: argparse.Namespace) -> list[Setting]:
    """What a part compares."""
    grid = Grid(
        options.draft_widths,
        options.thresholds,
        options.gammas,
        options.root_weights,
        options.min_widths,
        sampling=sampling_of(options),
    )
    if part == "pareto":
        return settings_of.pareto(settings_of.coarse(grid) if options.quick else grid)
    if part == "table":
        return settings_of.table(sampling_of(options))
    if part == "search":
        return settings_of.search((2, 4), (2,)) if options.quick else settings_of.search()
    return list(getattr(settings_of, part)())


class Bench:
    """One call of the benchmark: pairs, stores and the result file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.pair = pair_of(options)
        sampling = sampling_of(options)
        other = "" if sampling == PAPER else "-T{temperature:g}-k{top_k}-p{top_p:g}".format(**sampling)
        self.name = options.name or f"beams-{self.pair.name}-{options.dtype}{other}"
        self.store = self._store(self.name)
        self.lab = Lab(self.pair.target, self.pair.draft, options.dtype)
        self.judge: tuple[Store, Lab] | None = None
        if options.quality_from is not None:
            judged = pair(options.quality_from)
            name = f"beams-{judged.name}-{options.quality_dtype}{other}"
            store = self.store if name == self.name else self._store(name)
            self.judge = store, Lab(judged.target, judged.draft, options.quality_dtype)
        self.result = begun(self.pair, options.out / f"{self.name}.json")

    def _store(self, name: str) -> Store:
        return Store(self.options.out / f"{name}.items.jsonl", self.options.threads)

    def _gather(
        self, store: Store, lab: Lab, settings: Sequence[Setting], todo: Sequence[Item], what: str, timed: bool = True
    ) -> None:
        if not self.options.no_runs:
            gather(store, lab, settings, todo, what, timed, self.options.minutes)

    def part(self, part: str) -> None:
        """Run a part, conclude, write."""
        options, settings = self.options, settings_for(part, self.options)
        entry: dict[str, Any] = {
            "arguments": {k: v for k, v in vars(options).items() if k not in ("out", "name", "minutes", "no_runs")}
        }
        stores = [self.store]
        if part in SCORED:
            timed = items(options.tasks, options.limit, options.repeats)
            self._gather(self.store, self.lab, settings, timed, f"{part}, speed")
            judge, judged = self.store, timed
            entry |= {"sampling": sampling_of(options), "quality_from": self.pair.name}
            if self.judge is not None:
                judge, lab = self.judge
                judged = items(options.tasks, options.quality_limit, options.quality_repeats)
                self._gather(judge, lab, settings, judged, f"{part}, quality", timed=False)
                stores.append(judge)
                entry |= {"quality_from": options.quality_from, "quality_dtype": options.quality_dtype}
                entry["note"] = (
                    f"scores, perplexity, tau, widths and slots are of the {options.quality_from} pair, which "
                    f"says what {self.pair.name} says; tokens a second are of {self.pair.name}"
                )
            found: Any = scored(settings, (self.store, timed), (judge, judged))
        else:
            todo = items(PROSE, options.limit, options.repeats, options.tokens)
            self._gather(self.store, self.lab, settings, todo, part)
            found = REPORTS[part](settings, self.store, todo)
        keys = {setting.key for setting in settings}
        entry["commits"] = sorted(
            {record["commit"] for store in stores for record in store.records.values() if record["setting"] in keys}
        )
        entry |= {"environment": environment(options.dtype), "found": found}
        self.result["environment"] = entry["environment"]
        self.result["parts"][part] = entry
        write(self.name, self.result, options.out)


def main() -> None:
    options = options_of()
    torch.set_num_threads(options.threads)
    bench = Bench(options)
    console = Console(width=max(110, Console().width))  # room for labels in a log file
    for part in options.part:
        bench.part(part)
        show(console, {part: bench.result["parts"][part]["found"]})
    path = options.out / f"{bench.name}.json"
    console.print(f"written: {path}; runs: {bench.store.path}")
    if "pareto" in options.part:
        draw("beams_figures", bench.name, bench.result, options.out / "figures", console)


if __name__ == "__main__":
    main()
