"""What a training step costs for an exit layer, for Medusa's heads and for a draft model (EESD Table 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows
from benchmarks.kinds.learned import SEED
from draftwood.models.checkpoints import checkpoint
from draftwood.models.heads.exit import share
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.train.exit_layer import ExitRun
from draftwood.train.heads import HeadRun
from draftwood.train.optim import Optimizers
from draftwood.train.settings import ExitSettings, HeadSettings
from draftwood.train.texts import read_texts

NOWHERE = Path("never-written")  # runs that are not saved


class Training(Kind):
    """So many timed steps of each, in turns after one to warm up, on `batch` rows of `context` tokens."""

    steps: int = 3
    batch: int = 4
    context: int = 128

    def measure(self, bench: Bench) -> dict[str, Rows]:
        pair = bench.pair
        rows = costs(pair.target, pair.draft, bench.run.dtype, self.steps, self.batch, self.context, bench.track)
        return {"cost": rows}


def costs(
    target_home: Path,
    draft_home: Path | None,
    dtype: str,
    steps: int,
    batch: int,
    context: int,
    track: Callable[[Iterable[int], str], Iterable[int]] = lambda turns, what: turns,
) -> Rows:
    """A row for an exit, for heads and for a draft model: weights that are loaded and trained, seconds of a step.

    Products are of `dtype`, float32 or bfloat16, which processors without instructions for it compute slowly.
    """
    place, steps = "cuda" if torch.cuda.is_available() else "cpu", steps + 1
    target = checkpoint.load(target_home, dtype, place, packed=False)
    end = min(checkpoint.end_tokens(target_home), default=0)
    texts = read_texts("corpus", Tokenizer.load(target_home), end, min(context, target.context), batch, 1, SEED)
    behind = share(target.n_layers)
    alike: dict[str, Any] = {"steps": steps, "batch": batch, "warmup": 0, "precision": dtype}
    settings = ExitSettings(layers=behind, **alike)
    plain = ExitRun(target, texts, settings, NOWHERE)
    distilled = ExitRun(target, texts, settings.model_copy(update={"distill": 1.0}), NOWHERE)
    medusa = HeadRun(target, texts, HeadSettings(**alike), NOWHERE)
    first = _count(target.embed) + sum(_count(layer) for layer in list(target.layers)[:behind])
    made: dict[str, tuple[Callable[[], object], int, Any]] = {  # an exit needs the target's first layers only
        f"eesd, N={behind}": (plain.step, first + _count(plain.exit), plain.exit),
        f"eesd, N={behind}, distilled": (distilled.step, _count(target) + _count(plain.exit), distilled.exit),
        "medusa, 4 heads": (medusa.step, _count(target) + _count(medusa.exit), medusa.exit),
    }
    if draft_home is not None:
        draft = checkpoint.load(draft_home, "float32", place, packed=False)
        made["draft model"] = (_draft_step(draft, texts.train, dtype), _count(draft), draft)
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for turn in track(range(steps), "steps of training"):
        for name, (step, _, _) in made.items():
            began = perf_counter()
            step()
            if turn:
                seconds[name].append(perf_counter() - began)
    return [
        {
            "method": name,
            "loaded": loaded,
            "trained": sum(part.numel() for part in model.parameters() if part.requires_grad),
            "seconds": median(seconds[name]),
            "step": f"{batch}x{texts.train.shape[1]} tokens",
        }
        for name, (_, loaded, model) in made.items()
    ]


def _count(model: Any) -> int:
    return sum(part.numel() for part in model.parameters())


def _draft_step(model: Any, rows: Any, dtype: str) -> Callable[[], object]:
    """A step of training a draft model on the text itself: vanilla speculative decoding's preparation."""
    model.float().requires_grad_(True).train()
    optimizers = Optimizers(model, muon=False)
    tokens = torch.from_numpy(rows.astype(np.int64)).to(model.device)

    def step() -> None:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model.train_forward(tokens)
        loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizers.step(1e-3)

    return step
