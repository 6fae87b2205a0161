"""Runs every setting on every item in turns, once, and keeps what it saw in a file that survives a kill.

Knows how one run is measured. Refuses to know what settings mean and what is concluded.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import torch
from beams_settings import HUGGING_FACE, Item, Setting
from record import commit
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import draftwood
from draftwood.corpus import score
from draftwood.results import Round
from draftwood.tune.shapes import sequence_alpha

Record = dict[str, Any]
Key = tuple[str, str, int, int, int]
GROUP_SIZE = 32  # runs at once where no clock is needed


@dataclass
class Store:
    """Records of runs, a line of JSON each, appended as they are made. A line that was cut by a kill is dropped."""

    path: Path
    threads: int
    records: dict[Key, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = 0
        if self.path.exists():
            for line in self.path.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                record = json.loads(line)
                self.records[self._key(record["setting"], record["item"])] = record
            with self.path.open("r+b") as file:
                file.truncate(whole)

    @staticmethod
    def _key(setting: str, item: Sequence[Any]) -> Key:
        task, number, repeat, tokens = item
        return setting, str(task), int(number), int(repeat), int(tokens)

    def get(self, setting: Setting, item: Item, timed: bool = True) -> Record | None:
        """What a run gave, if it was made; if `timed`, alone, by the clock and with as many threads."""
        record = self.records.get(self._key(setting.key, item.key))
        if record is None or (timed and not (record["timed"] and record["threads"] == self.threads)):
            return None
        return record

    def add(self, setting: Setting, item: Item, record: Record) -> None:
        """Keep a run."""
        record = {"setting": setting.key, "item": item.key, "threads": self.threads, **record}
        self.records[self._key(setting.key, item.key)] = record
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def missing(
        self, settings: Sequence[Setting], items: Sequence[Item], timed: bool = True
    ) -> list[tuple[Item, list[Setting]]]:
        """Turns that are not complete, with the settings to run in each, in an order drawn for the turn."""
        turns = []
        for item in items:
            todo = [setting for setting in settings if self.get(setting, item, timed) is None]
            if todo:
                random.Random(f"{item.key}").shuffle(todo)
                turns.append((item, todo))
        return turns

    def matrix(
        self, settings: Sequence[Setting], items: Sequence[Item], timed: bool = True
    ) -> tuple[list[Item], list[list[Record]]]:
        """Items that all settings have run on, and their records [item][setting]."""
        found, rows = [], []
        for item in items:
            row = [self.get(setting, item, timed) for setting in settings]
            if all(record is not None for record in row):
                found.append(item)
                rows.append([record for record in row if record is not None])
        return found, rows


@dataclass
class Lab:
    """Models to measure with, loaded when something is to be run."""

    target: Path
    draft: Path
    dtype: str
    _engine: draftwood.Engine | None = None
    _theirs: Callable[[list[int], int, int], list[int]] | None = None

    @property
    def engine(self) -> draftwood.Engine:
        if self._engine is None:
            quantize = self.dtype if self.dtype == "int8" else None
            dtype = "float32" if quantize else self.dtype
            self._engine = draftwood.load(self.target, self.draft, dtype=dtype, quantize=quantize)
        return self._engine

    def together(self, settings: Sequence[Setting], item: Item) -> list[Record]:
        """Run settings on an item at once, without a clock: texts are those of runs alone."""
        requests = [
            {
                "prompt": item.document.prompt,
                "method": setting.method,
                "sampling": setting.sampling,
                "ignore_eos": setting.ignore_eos,
            }
            for setting in settings
        ]
        results = self.engine.batch(requests, GROUP_SIZE, max_new_tokens=item.tokens, seed=item.seed)
        return [
            described(result, setting, item) | {"timed": False}
            for setting, result in zip(settings, results, strict=True)
        ]

    def run(self, setting: Setting, item: Item) -> Record:
        """Measure one run."""
        if setting.method["name"] == HUGGING_FACE:
            return self._hugging_face(setting, item)
        return measured(self.engine, setting, item)

    def _hugging_face(self, setting: Setting, item: Item) -> Record:
        try:
            if self._theirs is None:
                self._theirs = hugging_face(self.target, self.dtype)
        except ImportError as error:
            return {"timed": True, "unavailable": f"transformers is not installed: {error}"}
        except (ValueError, AttributeError) as error:  # a dtype or an architecture that it does not have
            return {"timed": True, "unavailable": str(error)}
        prompt = self.engine.tokens(item.document.prompt)
        began = perf_counter()
        tokens = self._theirs(prompt, item.tokens, setting.method["num_beams"])
        seconds = perf_counter() - began
        return {
            "timed": True,
            "seconds": seconds,
            "tokens": len(tokens),
            "text_ids": tokens,
            "prompt": len(prompt),
        }


def hugging_face(target: Path, dtype: str) -> Callable[[list[int], int, int], list[int]]:
    """Beam search of transformers over the same checkpoint: (prompt, most tokens, beams) -> tokens."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if not hasattr(torch, dtype) or not getattr(torch, dtype).is_floating_point:
        raise ValueError(f"transformers has no {dtype} on this device")
    place = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(str(target), dtype=getattr(torch, dtype)).eval().to(place)

    def generate(prompt: list[int], count: int, beams: int) -> list[int]:
        ids = torch.tensor([prompt], device=place)
        options = {"num_beams": beams, "do_sample": False, "length_penalty": 1.0, "early_stopping": False}
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, pad_token_id=0, **options
            )
        return [int(token) for token in out[0, len(prompt) :]]

    return generate


def measured(engine: draftwood.Engine, setting: Setting, item: Item) -> Record:
    """One run by the clock."""
    result = engine.generate(
        item.document.prompt,
        setting.method,
        setting.sampling,
        max_new_tokens=item.tokens,
        seed=item.seed,
        ignore_eos=setting.ignore_eos,
    )
    return described(result, setting, item)


def drafted_length(round_: Round) -> int:
    """Drafts on the longest path of a round; roots, which are the target's, do not count."""
    depths: list[int] = []
    for parent in round_.forest_parent:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return max(depths, default=0)


def described(result: draftwood.GenerationResult, setting: Setting, item: Item) -> Record:
    """How long a run took, where the time went, how many beams there were, and how good the answer is.

    The first round's forwards hold the prompt's and are kept apart.
    """
    metrics, first, later = result.metrics, result.rounds[0], result.rounds[1:]
    layers = [layer for round_ in result.rounds for layer in round_.layers]
    drafted = [layer for layer in layers if layer.judged]
    lengths = [drafted_length(round_) for round_ in result.rounds]
    drafting = [round_.depth_accepted for round_, length in zip(result.rounds, lengths, strict=True) if length]
    alpha = sequence_alpha(drafting, [length for length in lengths if length])
    scored = score(item.document, result.text)
    return {
        "timed": True,
        "seconds": metrics.seconds,
        "first_forwards": first.draft_seconds + first.verify_seconds,
        "draft_seconds": sum(round_.draft_seconds for round_ in later),  # from here on without the first round
        "verify_seconds": sum(round_.verify_seconds for round_ in later),
        "sampling_seconds": sum(round_.sampling_seconds for round_ in later),
        "other_seconds": sum(round_.other_seconds for round_ in later),
        "later_rounds": len(later),
        "rounds": metrics.rounds,
        "tokens": len(result.tokens),
        "prompt": len(result.prompt_tokens),
        "nats": -sum(result.logprobs),  # of the answer under the target's untouched softmax
        "score": None if scored is None else float(scored),
        "width": fmean(layer.width for layer in layers) if layers else 1.0,
        "distinct": fmean(len(layer.distinct) for layer in layers) if layers else 1.0,
        "accepted": fmean(layer.accepted for layer in drafted) if drafted else 0.0,
        "accepted_shares": alpha * len(drafting),  # accepted over drafted length, summed over rounds with drafts
        "drafting_rounds": len(drafting),
        "drafted_lengths": sum(lengths),
        "target_rows": metrics.target_rows,
        "draft_rows": metrics.draft_rows,
        "draft_forwards": metrics.draft_forwards,
        "slots": metrics.peak_slots,
        "text_ids": result.tokens if setting.part == "search" else [],
    }


def gather(
    store: Store,
    lab: Lab,
    settings: Sequence[Setting],
    items: Sequence[Item],
    what: str,
    timed: bool = True,
    minutes: float = math.inf,
) -> None:
    """Make all runs that are missing, item by item with every setting, so that a slow moment hits all alike.

    After so many minutes no further item is begun.
    """
    turns = store.missing(settings, items, timed)
    if not turns:
        return
    at = commit()
    families = {setting.family: setting for setting in settings}  # the last, which is the widest, of each
    for setting in families.values() if timed else ():
        lab.run(setting, turns[0][0])  # warms up: caches grow, kernels are chosen
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TimeRemainingColumn()) as progress:
        bar = progress.add_task(what, total=sum(len(todo) for _, todo in turns))
        began = perf_counter()
        for item, todo in turns:
            if perf_counter() - began > minutes * 60:
                break
            if not timed:
                for setting, record in zip(todo, lab.together(todo, item), strict=True):
                    store.add(setting, item, {"commit": at, **record})
                progress.advance(bar, len(todo))
                continue
            for setting in todo:
                store.add(setting, item, {"commit": at, **lab.run(setting, item)})
                progress.advance(bar)
