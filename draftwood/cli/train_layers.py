"""`draftwood train corpus`, `eesd`, `medusa`, `eagle`, `dflash` and `draft`: texts, and what drafts for a target."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.cli.groups import OUTPUT, OutputOptions, QuantizedOptions, TargetOptions
from draftwood.cli.options import OptionGroup, flag
from draftwood.cli.running import check_directory, check_writable, progress
from draftwood.cli.scaling import RayOptions
from draftwood.train.settings import (
    DFlashSettings,
    DraftSettings,
    EagleSettings,
    ExitSettings,
    HeadSettings,
    Saving,
    TextSource,
    TrainSettings,
    WritingSettings,
)

if TYPE_CHECKING:
    from draftwood.train.exit_layer import ExitRun
    from draftwood.train.runs import StepReport


class _Out(OptionGroup):
    out: Path = flag(..., "Directory of the result.", "DIR", panel=OUTPUT)


class TrainingOptions(OutputOptions, RayOptions, TargetOptions, _Out, Saving, TextSource):
    """The options of every training run besides its kind's own settings."""


def corpus(
    *,
    writing: WritingSettings,
    concurrency: int = flag(16, "Texts written at once.", panel="Writing", ge=1),
    model: QuantizedOptions,
    scaling: RayOptions,
    out: Path = flag(..., "File of the texts, one per line.", "FILE.jsonl", panel=OUTPUT),
    output: OutputOptions,
) -> None:
    """Have the target write text to train its exit layer on.

    The first 3 to 5 tokens after each prompt are greedy, the rest are sampled. The
    same command resumes where the file ends. With --replicas 4 --ray four engines
    write the same file.
    """
    from draftwood.train.self_distillation import write_texts

    check_writable(out)
    engine = model.load()
    counts = []
    with progress(output.color, "writing", writing.count) as update, scaling.engines(model) as engines:
        for written in write_texts(engine, writing, out, concurrency, engines):
            counts.append(written)
            update(completed=written)
    lines = out.read_bytes().splitlines()
    by_target = sum(b'"source": "target"' in line for line in lines)
    document = {"out": str(out), "texts": len(lines), "by_target": by_target, "new": len(lines) - counts[0]}
    output.give(document, f"{out}: {len(lines)} texts, {by_target} by the target, {document['new']} of them new")


def eesd(*, settings: ExitSettings, training: TrainingOptions) -> None:
    """Train an exit layer, with which a target drafts for itself (method eesd).

    The target's first layers are frozen; a layer, norm and head above them learn to
    predict the next token. After any stop the same command resumes from the last
    save. --replicas 4 --ray, or torchrun, split each step across processes.
    """
    from draftwood.train.exit_layer import ExitRun

    def report(made: dict[str, Any]) -> tuple[str, str]:
        return f"an exit after layer {made['layers']} of {made['target_layers']}", (
            f"acceptance {made['acceptance']:.3f}, same best token {made['agreement']:.3f}, loss {made['loss']:.3f}"
        )

    _train(ExitRun, settings, training, report)


def medusa(*, settings: HeadSettings, training: TrainingOptions) -> None:
    """Train Medusa heads, which predict several tokens at once (method medusa).

    The target is frozen; heads on its last hidden state learn to predict the tokens
    after the next one. After any stop the same command resumes from the last save.
    --replicas 4 --ray, or torchrun, split each step across processes.
    """
    from draftwood.train.heads import HeadRun

    def report(made: dict[str, Any]) -> tuple[str, str]:
        each = ", ".join(f"{made[f'acceptance_{k}']:.3f}" for k in range(1, settings.heads + 1))
        return f"{settings.heads} heads", f"acceptance head by head {each}"

    _train(HeadRun, settings, training, report)


def eagle(*, settings: EagleSettings, training: TrainingOptions) -> None:
    """Train an EAGLE-3 head, which drafts from the target's hidden states (eagle).

    The target is frozen; a layer that reads its hidden states learns to draft
    several tokens in a row, then reading its own states. After any stop the same
    command resumes from the last save. --replicas 4 --ray, or torchrun, split each
    step across processes.
    """
    from draftwood.train.eagle import EagleRun

    def report(made: dict[str, Any]) -> tuple[str, str]:
        each = ", ".join(f"{made[f'acceptance_{k}']:.3f}" for k in range(1, settings.unroll + 1))
        return "an EAGLE head", f"acceptance step by step {each}"

    _train(EagleRun, settings, training, report)


def dflash(*, settings: DFlashSettings, training: TrainingOptions) -> None:
    """Train a DFlash head, which drafts a block of tokens in one pass (dflash).

    The target is frozen; a few layers that read its hidden states learn to predict
    the tokens of a block side by side. After any stop the same command resumes from
    the last save. --replicas 4 --ray, or torchrun, split each step across processes.
    """
    from draftwood.train.dflash import DFlashRun

    def report(made: dict[str, Any]) -> tuple[str, str]:
        each = ", ".join(f"{made[f'acceptance_{k}']:.3f}" for k in range(1, settings.block))
        return f"a DFlash head of {settings.layers} layers", f"acceptance place by place {each}"

    _train(DFlashRun, settings, training, report)


def draft(*, settings: DraftSettings, training: TrainingOptions) -> None:
    """Train a draft model that is made of the target (read with --draft DIR).

    Some of the target's layers, cut to the most frequent tokens of the texts, learn to
    write as it does. After any stop the same command resumes from the last save.
    --replicas 4 --ray, or torchrun, split each step across processes.
    """
    from draftwood.train.draft import DraftRun

    def report(made: dict[str, Any]) -> tuple[str, str]:
        kept = ", ".join(map(str, made["kept"]))
        return f"a draft of the layers {kept} of {made['target_layers']}, {made['vocabulary']:,} tokens", (
            f"acceptance {made['acceptance']:.3f}, same best token {made['agreement']:.3f}, loss {made['loss']:.3f}"
        )

    _train(DraftRun, settings, training, report)


def _train(
    kind: type[ExitRun],
    settings: TrainSettings,
    training: TrainingOptions,
    report: Callable[[dict[str, Any]], tuple[str, str]],
) -> None:
    """Carry out a run with a bar, and a line for each measurement; `report` says what came out of it."""
    from draftwood.train.exit_layer import STATE
    from draftwood.train.runs import prepare

    out = training.out
    check_directory(out)  # else what was trained before the first save would be lost
    make = partial(prepare, kind, settings, out, training, training.target, training.device, training.dtype)
    document = None
    try:
        with (
            progress(training.color, "training", settings.steps) as update,
            training.trainer(training) as trained,
            closing(trained(make, training)) as steps,
        ):
            for now in steps:
                if (document := now.document) is None:
                    _tell(now, update, training)
    except KeyboardInterrupt:
        if (out / STATE).exists():
            training.say(f"what was trained is saved in {out}; the same command goes on from there", stderr=True)
        raise
    if document is None:  # another process than the first one of torchrun
        return
    made, figures = report(document)
    no_plot = "" if document["plot"] else "; no plot without matplotlib: pip install 'draftwood[plots]'"
    early = "; stopped early, held-out acceptance no longer rose" if document["stopped_early"] else ""
    training.give(
        document,
        f"{out}: {made}, {document['parameters']:,} parameters, {document['steps']} steps, "
        f"{document['tokens']:,} tokens, {document['seconds']:.0f} s{early}",
        f"held out: {figures}{no_plot}",
        f"expected gain over plain decoding at temperature 1: {document['gain_before']:.2f} times before, "
        f"{document['gain']:.2f} times now, where the time is that of reading weights; `draftwood plan` measures it",
    )


def _tell(now: StepReport, update: Callable[..., None], output: OutputOptions) -> None:
    """Show a step in the bar, and in a line of its own where something was measured."""
    figures, last = now.figures, now.held_out
    description = f"loss {figures['loss']:.3f}, held-out acceptance {last['acceptance']:.3f}"
    update(completed=now.step, description=description)
    if "held_out/loss" in figures:
        held_out = f"held out: acceptance {last['acceptance']:.4f}, same best token {last['agreement']:.4f}"
        output.say(f"step {now.step}: loss {figures['loss']:.4f}, {held_out}, loss {last['loss']:.4f}", stderr=True)
