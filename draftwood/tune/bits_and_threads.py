"""Compares the bits that a target's weights can be held in, and numbers of threads, by the time of its forwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from draftwood.engine.calibration import Int4Calibration
from draftwood.engine.engine import Engine
from draftwood.engine.loading import EMBEDDED, load
from draftwood.errors import DraftwoodError
from draftwood.models import int4
from draftwood.models.base import CausalModel
from draftwood.models.checkpoints import checkpoint
from draftwood.models.decoder import Decoder
from draftwood.models.memory_budget import free_bytes
from draftwood.tune.measuring import forward_seconds

ROWS = (1, 8)  # of plain decoding, and of a round with seven drafts
CONTEXT = 32  # cached tokens before them
REPEATS = 2  # forwards of each number of rows in a turn
MIN_TURNS, MAX_TURNS = 3, 9
MIN_SPEED_UP = 1.05  # less is not recommended
MIN_WINS = 0.8  # share of the turns
WEIGHTS: dict[str, dict[str, Any]] = {  # what an option of the command changes of the arguments of `load`
    "--quantize int8": {"quantize": "int8", "calibration": None},
    "--quantize int4": {"quantize": "int4"},
    "--dtype bfloat16": {"dtype": "bfloat16", "quantize": None, "calibration": None},
    "no --quantize": {"quantize": None, "calibration": None},
}

OnStep = Callable[[str], None]
Loader = Callable[[], CausalModel]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a target was computed, with its median seconds of a forward by rows and its speed-ups by them.

    `speed_up` is over the target as it was loaded, with as many threads as there were.
    """

    weights: str  # the option that gives them; "": as loaded
    threads: int
    seconds: Mapping[int, float]
    speed_up: Mapping[int, float]
    faster: bool  # than what it was in turns with: in most turns, and not slower with 8 rows


@dataclass(slots=True)
class SettingComparison:
    """The settings that were compared, the first one as loaded, and what was left out."""

    settings: list[Setting] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> Setting | None:
        """The fastest one that was faster than what it was compared with, else the first; None: nothing was timed."""
        worth = [one for one in self.settings if one.faster]
        return max(worth, key=lambda one: one.speed_up[1], default=self.settings[0] if self.settings else None)

    @property
    def options(self) -> list[str]:
        """The options of the command that give the best setting, as far as they change something."""
        best = self.best
        if best is None:
            return []
        threads = [f"--threads {best.threads}"] if best.threads != self.settings[0].threads else []
        return [*([best.weights] if best.weights else []), *threads]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"settings": [asdict(one) for one in self.settings], "recommended_options": self.options}


def other_weights(engine: Engine, options: Mapping[str, Any]) -> tuple[dict[str, Loader], list[str]]:
    """The target in other bits than those that `options`, the arguments of `load`, gave it, by option; and notes.

    int4 takes minutes to make, so it is there only where it was made before.
    """
    target = engine.target
    if not isinstance(target, Decoder) or target.device.type != "cpu" or options.get("compile"):
        return {}, []
    if target.own_bits:
        return {}, ["the weights stay in the bits of their GGUF file"]
    quantize, notes = options.get("quantize"), list[str]()
    names = [name for name in ("--quantize int8", "--quantize int4") if WEIGHTS[name]["quantize"] != quantize]
    if quantize is not None:
        names.append("no --quantize")
    elif target.dtype == torch.float32:
        names.append("--dtype bfloat16")
    home = checkpoint.locate(str(options.get("target") or EMBEDDED / "target"))
    if "--quantize int4" in names and not _int4_is_made(engine, home, options.get("calibration")):
        names.remove("--quantize int4")
        notes.append("int4 was not compared: `--quantize int4` makes such weights, once, in minutes for large models")
    if names and free_bytes(target.device) < 2 * engine.weight_bytes:
        return {}, [f"{', '.join(names)}: not compared, since there is no memory for the weights once more"]

    def loader(change: Mapping[str, Any]) -> Loader:
        alone: dict[str, Any] = {"target": str(home), "draft": [], "draft_device": None, "draft_dtype": None}
        return lambda: load(**{**options, **change, **alone}).target

    return {name: loader(WEIGHTS[name]) for name in names}, notes


def _int4_is_made(engine: Engine, home: Path, calibration: str | Path | None) -> bool:
    try:
        text = Int4Calibration.read(calibration, engine.tokenizer)
        return (
            int4.saved(home, text.text(home, home.name, home.parent == EMBEDDED, lambda what, share: None)) is not None
        )
    except DraftwoodError:
        return False


def compare_settings(
    target: CausalModel,
    others: Mapping[str, Loader],
    seconds: float,
    load_seconds: float = 0.0,
    on_progress: OnStep = lambda what: None,
) -> SettingComparison:
    """Time forwards on one thread, half of the cores, all of them, and with the weights of `others`, in turns.

    It takes about `seconds`. Weights are loaded one after another, if `load_seconds`, which the target took, are left.
    On other devices than the CPU nothing is compared. The number of threads is as before at the end.
    """
    began, result = perf_counter(), SettingComparison()
    if target.device.type != "cpu":
        return result
    threads, cores = torch.get_num_threads(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    on_progress("threads")
    _forwards(target, threads)
    once = perf_counter() - began
    affordable = int(seconds / 2 / once / MIN_TURNS)
    counts = [threads, *(one for one in dict.fromkeys((max(1, cores // 2), cores, 1)) if one != threads)]
    if affordable < 2 <= len(counts):
        result.notes.append(f"threads were not compared, since forwards take long ({once:.1f} s); raise --seconds")
    result.settings = _race([("", target, count) for count in counts[: max(1, affordable)]], seconds / 2)
    base = result.best
    assert base is not None
    for number, (name, make) in enumerate(others.items()):
        left = seconds - (perf_counter() - began)
        if left < load_seconds + 2 * MIN_TURNS * once:
            late = ", ".join(list(others)[number:])
            result.notes.append(f"{late}: not compared, since there was no time; raise --seconds")
            break
        on_progress(name)
        try:
            other = make()
        except DraftwoodError as error:
            result.notes.append(f"{name}: not compared: {error}")
            continue
        share = (left - load_seconds) / (len(others) - number)
        entries = [("", target, base.threads), (name, other, base.threads)]
        result.settings += _race(entries, share, base.speed_up)[1:]
        del other, entries  # before the next one takes its room
    return result


def _race(
    entries: Sequence[tuple[str, CausalModel, int]], seconds: float, reference: Mapping[int, float] | None = None
) -> list[Setting]:
    """(weights, model, threads) in turns, the first the reference of the others, whose own speed-ups are given."""
    before, began = torch.get_num_threads(), perf_counter()
    turns: list[list[dict[int, float]]] = []
    try:
        while len(turns) < MIN_TURNS or (len(turns) < MAX_TURNS and perf_counter() - began < seconds):
            order = list(range(len(entries)))
            turn = {i: _forwards(*entries[i][1:]) for i in (order if len(turns) % 2 else order[::-1])}
            turns.append([turn[i] for i in order])
    finally:
        torch.set_num_threads(before)
    settings = []
    for place, (weights, _, threads) in enumerate(entries):
        gains = {rows: [turn[0][rows] / turn[place][rows] for turn in turns] for rows in ROWS}
        gain = {rows: median(gains[rows]) for rows in ROWS}
        wins = sum(each > 1 for each in gains[1])
        faster = wins >= MIN_WINS * len(turns) and gain[1] >= MIN_SPEED_UP and gain[8] >= 1
        took = {rows: median(turn[place][rows] for turn in turns) for rows in ROWS}
        speed_up = {rows: gain[rows] * (reference[rows] if reference else 1.0) for rows in ROWS}
        settings.append(Setting(weights, threads, took, speed_up, faster))
    return settings


def _forwards(model: CausalModel, threads: int) -> dict[int, float]:
    torch.set_num_threads(threads)
    with torch.inference_mode():
        return forward_seconds(model, ROWS, CONTEXT, REPEATS)
