"""A run of `draftwood train eesd` or `medusa`: prepared, carried out with a bar, and what came of it."""

from __future__ import annotations

import json as text
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.errors import ConfigurationError

if TYPE_CHECKING:
    from draftwood.models.decoder import Decoder
    from draftwood.train.exit_layer import ExitRun, Rank, Settings

NO_PLOT = "; no plot without matplotlib: pip install 'draftwood[train]'"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much text there is, and how often a run is saved and measured."""

    rows: int
    held_out: int
    context: int
    save_every: int
    measure_every: int

    def check(self, *precisions: str) -> None:
        """Raise ConfigurationError where a flag is out of range."""
        unknown = set(precisions) - {"bfloat16", "float32"}
        if unknown:
            raise ConfigurationError(f"precision and store are bfloat16 or float32, not {unknown.pop()}")
        if min(self.save_every, self.measure_every, self.rows, self.held_out) < 1 or self.context < 2:
            raise ConfigurationError("save-every, measure-every, rows and held-out must be at least 1, and context 2")


def carried_out(run: ExitRun, sizes: Sizes, store: str, color: bool | None) -> dict[str, Any] | None:
    """Train to the end, draw the curve and say what came out; None in all processes but the first."""
    import torch

    from draftwood.train.exit_layer import plot

    rank, out, began = run.rank, run.out, run.progress.step
    stored = torch.bfloat16 if store == "bfloat16" else torch.float32
    with _bar(run, rank, color) as shown:
        for figures in run.train(sizes.save_every, sizes.measure_every, stored):
            shown(figures)
    if rank.count > 1:
        torch.distributed.destroy_process_group()
    if rank.number:
        return None
    curve = run.progress.curve
    (out / "curve.json").write_text(text.dumps(curve, indent=1) + "\n", "utf-8")
    drawn = plot(curve, out / "curve.png")
    return {
        "out": str(out),
        "layers": run.settings.layers,
        "parameters": sum(part.numel() for part in run.exit.weights().values()),
        "steps": run.progress.step,
        "new": run.progress.step - began,
        "tokens": run.progress.tokens,
        "seconds": run.progress.seconds,
        **{name: value for name, value in curve[-1].items() if name != "step"},
        "plot": str(out / "curve.png") if drawn else None,
    }


def prepared(
    target: str | None,
    data: str,
    out: Path,
    device: str | None,
    dtype: str,
    settle: Callable[[Decoder], Settings],
    kind: type[ExitRun],
    sizes: Sizes,
) -> ExitRun:
    """Load what is needed for a run of a `kind`; `settle` makes its settings when the target is known."""
    import torch

    from draftwood.loading import EMBEDDED
    from draftwood.models import checkpoint
    from draftwood.models.tokenizer import Tokenizer
    from draftwood.train.exit_layer import Rank
    from draftwood.train.texts import CORPUS, read_texts

    rank = Rank.here()
    if data != CORPUS and not Path(data).is_file():
        raise ConfigurationError(f"there is no file {data}; give a file of texts, or corpus")
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if rank.count > 1:
        if place == "cuda":
            import os

            place = f"cuda:{os.environ.get('LOCAL_RANK', rank.number)}"
            torch.cuda.set_device(place)
        torch.distributed.init_process_group("nccl" if place.startswith("cuda") else "gloo")
    directory = EMBEDDED / "target" if target is None else checkpoint.locate(target)
    model = checkpoint.load(directory, dtype, place, packed=False)
    made = settle(model)
    made.check(rank.count)
    end, context = min(checkpoint.end_tokens(directory), default=0), min(sizes.context, model.context)
    texts = read_texts(data, Tokenizer.load(directory), end, context, sizes.rows, sizes.held_out, made.seed)
    return kind(model, texts, made, out, rank)


@contextmanager
def _bar(run: ExitRun, rank: Rank, color: bool | None) -> Iterator[Any]:
    """A bar on stderr with loss and held-out figures, where stderr is a terminal; else a line for each measurement."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from draftwood.explain.terminal import console

    err = console(color, stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = rank.number > 0
    with Progress(*columns, console=err, transient=True, disable=hidden or not err.is_terminal) as bar:
        task = bar.add_task("training", total=run.settings.steps, completed=run.progress.step)

        def shown(figures: dict[str, float]) -> None:
            last = run.progress.curve[-1]
            said = f"loss {figures['loss']:.3f}, held-out acceptance {last['acceptance']:.3f}"
            bar.update(task, completed=run.progress.step, description=said)
            if "held_out/loss" in figures and not hidden:
                held = f"held out: acceptance {last['acceptance']:.4f}, same best token {last['agreement']:.4f}"
                line = f"step {run.progress.step}: loss {figures['loss']:.4f}, {held}, loss {last['loss']:.4f}"
                err.print(line, soft_wrap=True, highlight=False, markup=False)

        yield shown
