"""A whole training run of an exit layer or of heads: target and texts are loaded, it is trained, saved and drawn."""

from __future__ import annotations

import ctypes
import json
import logging
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ConfigurationError
from draftwood.models.checkpoints import checkpoint
from draftwood.models.memory_budget import free_bytes
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.train.card import Origin, write_card
from draftwood.train.exit_layer import ExitRun, Rank, plot
from draftwood.train.prompts import CORPUS
from draftwood.train.settings import Saving, TextSource, TrainSettings
from draftwood.train.target_states import PackedReader
from draftwood.train.texts import read_texts

log = logging.getLogger(__name__)
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of mallopt(3)


@dataclass(frozen=True, slots=True)
class StepReport:
    """The figures of a run after a step; the last report has the results as `document`."""

    step: int
    figures: dict[str, float]  # of the step; `held_out/...` are among them where they were measured
    held_out: dict[str, float]  # the last that were measured
    document: dict[str, Any] | None = None


MakeRun = Callable[[], tuple[ExitRun, Origin]]
Trainer = Callable[
    [MakeRun, Saving], Generator[StepReport, None, None]
]  # carries out the run that it is shown how to make


def prepare(
    kind: type[ExitRun],
    settings: TrainSettings,
    out: Path,
    source: TextSource | None = None,
    target: str | Path | None = None,
    device: str | None = None,
    dtype: str = "auto",
) -> tuple[ExitRun, Origin]:
    """A run of a `kind`, new or resumed from `out`, and what was asked for. One process of several joins the others.

    Raises ConfigurationError for data, settings or an `out` that do not fit.
    """
    rank, source = Rank.here(), source or TextSource()
    data = source.data
    if data != CORPUS and not Path(data).is_file():
        raise ConfigurationError(f"there is no file {data}; give a file of texts, or {CORPUS}")
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if rank.count > 1:
        if place == "cuda":
            place = f"cuda:{os.environ.get('LOCAL_RANK', rank.number)}"
            torch.cuda.set_device(place)
        torch.distributed.init_process_group("nccl" if place.startswith("cuda") else "gloo")
    directory = EMBEDDED / "target" if target is None else checkpoint.locate(target)
    model = checkpoint.load(directory, dtype, place, packed=False)
    kind.settled(model, settings).check(rank.count)  # before texts are read
    words, ends = Tokenizer.load(directory), checkpoint.end_tokens(directory)
    sizes = min(source.context, model.context), source.rows, source.held_out
    ended = ends | words.end_tokens
    texts = read_texts(data, words, min(ends, default=0), *sizes, settings.seed, model.vocab_size, ended, source.whole)
    log.info("%d rows to train on, %d held out", len(texts.train), len(texts.held_out))
    packed = checkpoint.load(directory, dtype, place) if place == "cpu" and not model.recurrent_shapes else None
    again = settings.steps * settings.batch > len(texts.train)  # whether rows come more than once
    room = free_bytes(model.device) // (2 * rank.count) if again else 0
    reader = PackedReader(packed, room) if packed is not None and packed.by_program else None
    return kind(model, texts, settings, out, rank, reader), Origin(directory, target is None, settings, source)


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for this process, where it can be told so (glibc).

    Each step frees and takes hundreds of megabytes, which the system would fill with zeros again: a fifth of its time.
    """
    with suppress(OSError, AttributeError, TypeError):  # TypeError: there is no CDLL(None) on Windows
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, -1)


def train(make: MakeRun, saving: Saving) -> Generator[StepReport, None, None]:
    """Make a run, train to its end and draw the curve. Of several processes only the first reports."""
    if not torch.cuda.is_available():
        keep_freed_memory()
    run, origin = make()
    run.on_save = partial(_write_card, run, origin)
    rank, began, progress = run.rank, run.progress.step, run.progress
    stored = getattr(torch, saving.store)
    with closing(run.train(saving.save_every, saving.measure_every, stored, saving.patience)) as steps:
        for figures in steps:
            if not rank.number:
                yield StepReport(progress.step, figures, progress.curve[-1])
    if rank.count > 1:
        torch.distributed.destroy_process_group()
    if not rank.number:
        yield StepReport(progress.step, {}, progress.curve[-1], _finished(run, began, saving))


def _write_card(run: ExitRun, origin: Origin, trained: Mapping[str, float]) -> None:
    """Write the card of what a run has trained; a full disk loses the card alone."""
    try:
        write_card(run.out, run.kind, origin, run.facts["target"], trained)
    except OSError as error:
        log.warning("the card of %s was not written: %s", run.out, error)


def _finished(run: ExitRun, began: int, saving: Saving) -> dict[str, Any]:
    """The results of a run that is over; its curve is written and drawn."""
    out, curve = run.out, run.progress.curve
    (out / "curve.json").write_text(json.dumps(curve, indent=1) + "\n", "utf-8")
    drawn = plot(curve, out / "curve.png")
    return {
        "out": str(out),
        **run.settings.model_dump(include={"layers", "heads", "shared", "unroll", "block", "kept", "vocabulary"}),
        "target_layers": run.target.n_layers,
        "parameters": sum(part.numel() for part in run.exit.weights().values()),
        "steps": run.progress.step,
        "new": run.progress.step - began,
        "stopped_early": not run.done and run.stalled(saving.patience),
        "tokens": run.progress.tokens,
        "seconds": run.progress.seconds,
        "gain_before": curve[0].get("gain", 1.0),
        **{name: value for name, value in curve[-1].items() if name != "step"},
        "plot": str(out / "curve.png") if drawn else None,
    }
