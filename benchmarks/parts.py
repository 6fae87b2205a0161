"""Benchmarks that run in parts on a pair: options, the pair, parts of earlier calls, figures.

Knows no setting and no measurement.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pairs import NAMES, Pair, pair
from record import RESULTS, arguments
from rich.console import Console


def part_arguments(description: str, parts: Sequence[str]) -> argparse.ArgumentParser:
    """Options that benchmarks in parts share."""
    parser = arguments(description)
    parser.add_argument("--pair", choices=NAMES, default="embedded")
    parser.add_argument("--part", choices=parts, action="append", help="may be given several times; default: all")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each setting on each document, own seeds")
    parser.add_argument("--out", type=Path, default=None, help="directory of results; default: benchmarks/results")
    parser.add_argument("--no-runs", action="store_true", help="conclude from the runs that are there")
    parser.add_argument(
        "--quick", action="store_true", help="seconds: few settings, items, tokens; in a directory aside"
    )
    return parser


def parsed(
    parser: argparse.ArgumentParser, words: Sequence[str] | None, parts: Sequence[str], name: str
) -> argparse.Namespace:
    """The command line of the benchmark `name`: parts in their order, and where results go."""
    options = parser.parse_args(words)
    if (options.target is None) != (options.draft is None):
        parser.error(f"{name} need both a target and a draft: give --target and --draft, or --pair")
    aside = Path(tempfile.gettempdir()) / f"draftwood-{name}-quick"
    options.out = options.out or (aside if options.quick else RESULTS)
    options.part = [part for part in parts if part in (options.part or parts)]
    return options


def pair_of(options: argparse.Namespace) -> Pair:
    """The pair of --target and --draft, or of --pair."""
    if options.target is None:
        return pair(options.pair)
    place = Path(options.target)
    return Pair(options.name or place.name, place, Path(options.draft), place)


def begun(chosen: Pair, path: Path) -> dict[str, Any]:
    """A result to go on with: parts that are not run now stay as they are in the file."""
    parts = json.loads(path.read_text("utf-8"))["parts"] if path.exists() else {}
    return {"pair": chosen.describe(), "parts": parts}


def draw(module: str, name: str, result: dict[str, Any], folder: Path, console: Console) -> None:
    """Figures by the `draw` of a module, where there is what it needs."""
    try:
        figures = import_module(module)
    except ImportError as error:
        console.print(f"no figures: {error}; they need the extra draftwood[bench]")
        return
    for figure in figures.draw(name, result, folder):
        console.print(f"drawn: {figure}")
