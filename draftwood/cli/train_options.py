"""The options that the `train` commands share: of recording drafts, and of training against a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict

from draftwood.cli.groups import TargetOptions
from draftwood.cli.options import OptionGroup, flag
from draftwood.cli.progress import progress
from draftwood.errors import ConfigurationError

if TYPE_CHECKING:
    from draftwood.models.decoder import Decoder
    from draftwood.train.exit_layer import ExitRun, Settings

RECORDING, TRAINING = "Recording", "Training"
NO_PLOT = "; no plot without matplotlib: pip install 'draftwood[plots]'"
SUFFIX = ".safetensors"
Precision = Literal["bfloat16", "float32"]


class RecordingOptions(OptionGroup):
    """What is decoded so that something can be learned of its drafts."""

    model_config = ConfigDict(title=RECORDING)

    prompts: str = flag(
        "corpus",
        "Prompts, one per line; corpus: those that the embedded pair was trained on, of every domain.",
        "FILE|corpus",
    )
    limit: int = flag(280, "Most prompts.", ge=1)
    max_new_tokens: int = flag(96, "Tokens to decode for each prompt.", ge=1)
    epochs: int = flag(60, "Most of them; the best counts.", panel=TRAINING, ge=1)
    seed: int = flag(0, "Of prompts, texts and training.", panel=TRAINING)

    def texts(self) -> list[str]:
        """The prompts."""
        from draftwood.prompts import prompts_of

        return prompts_of(self.prompts, self.limit, self.seed)


class TrainingOptions(OptionGroup):
    """A training run against a target."""

    model_config = ConfigDict(title=TRAINING)

    data: str = flag(
        "corpus",
        "What `draftwood train corpus` wrote, or any text: .jsonl with text or tokens; or the embedded pair's corpus.",
        "FILE|corpus",
    )
    steps: int = flag(1000, "Steps.", ge=1)
    batch: int = flag(16, "Rows of a step.", ge=1)
    context: int = flag(256, "Tokens of a row.", ge=2)
    accumulate: int = flag(1, "Parts that a step is computed in.", ge=1)
    rate: float = flag(1e-3, "Peak learning rate.", gt=0)
    warmup: int = flag(50, "Steps of warm-up.", ge=0)
    distill: float = flag(
        0.0,
        "Weight of distillation on the target's own distributions; the rest is cross-entropy on the text.",
        ge=0,
        le=1,
    )
    precision: Precision = flag("bfloat16", "Of products: bfloat16 or float32.", "TYPE")
    store: Precision = flag("bfloat16", "Of the file: bfloat16 or float32.", "TYPE")
    rows: int = flag(20_000, "Rows to train on at most; then they are read again.", ge=1)
    held_out: int = flag(32, "Rows that are measured and not trained on.", ge=1)
    save_every: int = flag(100, "Steps between two saves.", ge=1)
    measure_every: int = flag(100, "Steps between two measurements.", ge=1)
    seed: int = flag(0, "Of the order of rows, and of the corpus.")
    out: Path = flag(..., "Where what is trained goes.", "DIR", panel="Output")

    def settings(self) -> dict[str, Any]:
        """What `Settings` takes of them."""
        names = {"steps", "batch", "accumulate", "rate", "warmup", "distill", "seed"}
        return {**self.model_dump(include=names), "bfloat16": self.precision == "bfloat16"}

    def trained(
        self, kind: type[ExitRun], model: TargetOptions, settle: Callable[[Decoder], Settings], color: bool | None
    ) -> tuple[ExitRun, dict[str, Any] | None]:
        """Prepare and carry out a run, with a bar; the run, and what came out in the first process."""
        from draftwood.train.runs import TextSizes, prepare, train

        if self.out.exists() and not self.out.is_dir():
            raise ConfigurationError(f"--out is {self.out}, which is a file; name a directory")
        sizes = TextSizes(self.rows, self.held_out, self.context)
        run = prepare(kind, settle, self.out, self.data, model.target, sizes, model.device, model.dtype)
        with _bar(run, color) as told:
            return run, train(run, self.save_every, self.measure_every, self.store, told)


def check_name(out: Path, controller: str) -> None:
    """Raise ConfigurationError where depth=CONTROLLER:PATH could not name the file."""
    if out.suffix != SUFFIX:
        raise ConfigurationError(f"--out is {out}, but {controller} reads a {SUFFIX} file")
    if any(sign in str(out) for sign in ",="):
        raise ConfigurationError(
            f"--out is {out}, but depth={controller}:PATH takes a path without commas and =; rename it"
        )


@contextmanager
def _bar(run: ExitRun, color: bool | None) -> Iterator[Callable[[dict[str, float]], None]]:
    """A bar on stderr with loss and held-out figures, where stderr is a terminal; a line for each measurement."""
    from draftwood.explain.terminal import console

    err = console(color, stderr=True)
    with progress(color, "training", run.settings.steps) as update:
        update(completed=run.progress.step)

        def told(figures: dict[str, float]) -> None:
            if run.rank.number:
                return
            last = run.progress.curve[-1]
            shown = f"loss {figures['loss']:.3f}, held-out acceptance {last['acceptance']:.3f}"
            update(completed=run.progress.step, description=shown)
            if "held_out/loss" in figures:
                held = f"held out: acceptance {last['acceptance']:.4f}, same best token {last['agreement']:.4f}"
                line = f"step {run.progress.step}: loss {figures['loss']:.4f}, {held}, loss {last['loss']:.4f}"
                err.print(line, soft_wrap=True, highlight=False, markup=False)

        yield told
