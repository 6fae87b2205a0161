"""Early exits and depth control: EESD's Tables 1-8 and Figures 3-5, on the embedded target and on grown ones.

Parts: `tables` (1-3: plain, vanilla, self-spec, medusa, eesd under its controllers), `ablations` (Table 4, Figure 3:
fixed K against controllers, Table 5: controllers on other methods), `exits` (Figure 4: behind how many layers, 5:
how many exit layers, Table 6: what training costs), `tree` (Table 7), `breakdown` (Table 8, from the runs of `tables`).
Speed-ups are ratios inside turns: all settings of a group run on an item before the next item comes. Exits of part
`exits` and the predictor of cali-ts are trained once and kept beside the pairs; runs are kept in a file beside the
result, so a killed benchmark goes on where it was.

Run: python benchmarks/early_exit.py --minutes 0          # trains what is missing: needs no quiet machine
     python benchmarks/early_exit.py --limit 8
     python benchmarks/early_exit.py --pair grown-22x2048 --dtype bfloat16 --threads 2 --part tables --minutes 8
     python benchmarks/early_exit.py --pair grown-22x2048 --dtype bfloat16 --part tables --no-runs
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import early_exit_settings as settings_of
import torch
from beams_items import Store, gather
from beams_settings import Item
from candidates_settings import prompts
from early_exit_cost import training_cost
from early_exit_items import ExitLab
from early_exit_models import kept, learned, sizes, trained_for
from early_exit_report import ablated, against_fixed, speeds, targets
from early_exit_shown import show
from pairs import NAMES, Pair, pair
from record import RESULTS, arguments, environment, listed, write
from rich.console import Console

from draftwood.corpus import DOMAINS

HIDDEN = ("out", "name", "minutes", "no_runs")


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--pair", choices=NAMES, default="embedded")
    parser.add_argument("--part", choices=settings_of.PARTS, action="append", help="may be repeated; default: all")
    parser.add_argument("--limit", type=int, default=8, help="documents of each domain")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each setting on each document, own seeds")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of a text; scored answers have fewer")
    parser.add_argument("--domains", type=listed(str), default=DOMAINS)
    parser.add_argument("--temperatures", type=listed(float), default=settings_of.TEMPERATURES)
    parser.add_argument("--behind", type=listed(int), default=(1, 2, 3, 4, 6), help="N of the exits of part exits")
    parser.add_argument("--depths", type=listed(int), default=(1, 2, 3), help="layers of exits behind the first N")
    parser.add_argument("--steps", type=int, default=250, help="of training each of them")
    parser.add_argument("--batch", type=int, default=8, help="rows of a step")
    parser.add_argument("--cost-steps", type=int, default=3, help="timed steps of Table 6")
    parser.add_argument("--cost-batch", type=int, default=4)
    parser.add_argument("--cost-context", type=int, default=128)
    parser.add_argument("--calibration-prompts", type=int, default=280, help="that cali-ts is trained on")
    parser.add_argument("--calibration-tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, default=None, help="directory of results; default: benchmarks/results")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of runs, for each part; 0: only train")
    parser.add_argument("--no-runs", action="store_true", help="conclude from the runs that are there")
    parser.add_argument("--quick", action="store_true", help="few items, tokens, steps; in a directory aside")
    options = parser.parse_args(words)
    if (options.target is None) != (options.draft is None):
        parser.error("tables need both a target and a draft: give --target and --draft, or --pair")
    if unknown := set(options.domains) - set(DOMAINS):
        parser.error(f"there is no domain {sorted(unknown)[0]!r}; there are {', '.join(DOMAINS)}")
    if min((*options.behind, *options.depths)) < 1:
        parser.error("exits lie behind at least 1 layer and have at least 1 layer")
    if options.quick:
        options.limit, options.tokens, options.steps, options.batch = 1, 12, 2, 2
        options.behind, options.depths, options.domains = options.behind[:2], (1,), options.domains[:2]
        options.calibration_prompts, options.calibration_tokens = 10, 16
        options.cost_steps, options.cost_batch, options.cost_context = 1, 1, 16
        options.out = options.out or Path(tempfile.gettempdir()) / "draftwood-early-exit-quick"
    options.out = options.out or RESULTS
    options.part = [part for part in settings_of.PARTS if part in (options.part or settings_of.PARTS)]
    return options


class Bench:
    """One call of the benchmark: models, the store of runs and the result file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        if options.target is not None:
            place = Path(options.target)
            self.pair = Pair(options.name or place.name, place, Path(options.draft), place)
        else:
            self.pair = pair(options.pair)
        self.name = options.name or f"early-exit-{self.pair.name}-{options.dtype}"
        exits = {"exits", "ablations"} & set(options.part)
        wanted = settings_of.shapes(options.behind, options.depths) if exits else []
        self.trained, self.digest = trained_for(
            self.pair,
            wanted,
            options.steps,
            options.batch,
            options.calibration_prompts,
            options.calibration_tokens,
            not options.no_runs,
        )
        self.store = Store(options.out / f"{self.name}.items.jsonl", options.threads)
        self.lab = ExitLab(self.pair.target, self.pair.draft, options.dtype, kept=kept(self.pair))
        self.items: list[Item] = prompts(options.limit, options.repeats, options.tokens, options.domains)
        self.result: dict[str, Any] = {"pair": self.pair.describe(), "parts": {}}
        path = options.out / f"{self.name}.json"
        if path.exists():  # parts that are not run now stay
            self.result["parts"] = json.loads(path.read_text("utf-8"))["parts"]
        self.path = path

    @property
    def runs(self) -> bool:
        return not self.options.no_runs and self.options.minutes > 0

    def part(self, part: str) -> bool:
        """Run a part, conclude, write; False where nothing was run yet."""
        options, groups = self.options, settings_of.PARTS[part]
        entry: dict[str, Any] = {
            "arguments": {k: v for k, v in vars(options).items() if k not in HIDDEN},
            "groups": {f"{temperature:g}": {} for temperature in options.temperatures},
            "against_fixed": {},
            "ablated": {},
        }
        minutes = options.minutes / (len(groups) * len(options.temperatures))
        for group in groups:
            for temperature in options.temperatures:
                settings = settings_of.settings(group, self.trained, temperature, self.digest)
                if len(settings) == 1:
                    continue
                what, at = f"{part}, {group}, T={temperature:g}", f"{temperature:g}"
                if self.runs:
                    gather(self.store, self.lab, settings, self.items, what, minutes=minutes)
                entry["groups"][at][group] = speeds(settings, self.store, self.items)
                if group == "controllers":
                    entry["against_fixed"][at] = against_fixed(settings, self.store, self.items)
                    entry["ablated"][at] = ablated(settings, self.store, self.items)
        if not any(rows for found in entry["groups"].values() for rows in found.values()):
            return False
        entry["sizes"] = sizes(self.pair, self.trained)
        if part == "exits":
            entry["exits"] = learned(self.pair, list(self.trained.exits.values()))
            before = self.result["parts"].get(part, {}).get("cost", [])
            entry["cost"] = self._cost() if self.runs else before
        entry["targets"] = targets(part, entry, entry["sizes"]["target"])
        entry["environment"] = environment(options.dtype)
        entry["commits"] = sorted({record["commit"] for record in self.store.records.values()})
        self.result["environment"] = entry["environment"]
        self.result["parts"][part] = entry
        write(self.name, self.result, options.out)
        return True

    def _cost(self) -> list[dict[str, Any]]:
        options = self.options
        return training_cost(self.pair, options.dtype, options.cost_steps, options.cost_batch, options.cost_context)


def main() -> None:
    options = options_of()
    torch.set_num_threads(options.threads)
    bench = Bench(options)
    console = Console(width=max(160, Console().width))  # room for labels in a log file
    for part in options.part:
        if bench.part(part):
            show(console, part, bench.result["parts"][part])
        else:
            console.print(f"{part}: nothing was run yet")
    if not bench.path.exists():
        return
    console.print(f"written: {bench.path}")
    try:
        from early_exit_figures import draw
    except ImportError as error:
        console.print(f"no figures: {error}; they need the extra draftwood[bench]")
    else:
        for figure in draw(bench.name, bench.result, options.out / "figures"):
            console.print(f"drawn: {figure}")


if __name__ == "__main__":
    main()
