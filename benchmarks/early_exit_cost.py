"""Table 6 of EESD: what a training step costs for an exit layer, for Medusa's heads and for a draft model.

Knows steps by the clock, on the same rows. Trains nothing that is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from early_exit_models import SEED
from pairs import Pair
from rich.progress import track

from draftwood.models import checkpoint
from draftwood.models.decoder import Decoder
from draftwood.models.exit import share
from draftwood.models.tokenizer import Tokenizer
from draftwood.train.exit_layer import ExitRun, Settings
from draftwood.train.heads import HeadRun, HeadSettings
from draftwood.train.optim import Optimizers
from draftwood.train.texts import read_texts

NOWHERE = Path("never-written")  # runs that are not saved


def _count(model: Any, trained: bool = False) -> int:
    return sum(part.numel() for part in model.parameters() if part.requires_grad or not trained)


class DraftRun:
    """A draft model in training on the text itself: vanilla speculative decoding's preparation."""

    def __init__(self, model: Decoder, rows: np.ndarray[tuple[int, int], np.dtype[np.int32]]) -> None:
        self.model = model.float().requires_grad_(True).train()
        self.rows, self.optimizers = rows, Optimizers(self.model, muon=False)

    def step(self) -> None:
        tokens = torch.from_numpy(self.rows.astype(np.int64)).to(self.model.device)
        with torch.autocast(self.model.device.type, torch.bfloat16):
            logits = self.model.train_forward(tokens)
        loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizers.step(1e-3)


def training_cost(chosen: Pair, dtype: str, steps: int, batch: int, context: int) -> list[dict[str, Any]]:
    """Seconds of a step of each, in turns after one to warm up; weights that are loaded, and that are trained.

    An exit layer needs the target's first layers only, unless it is distilled on what the whole target says.
    """
    place = "cuda" if torch.cuda.is_available() else "cpu"
    kind = dtype if dtype in ("float32", "bfloat16") else "float32"
    target = checkpoint.load(chosen.target, kind, place, packed=False)
    end = min(checkpoint.end_tokens(chosen.target), default=0)
    texts = read_texts("corpus", Tokenizer.load(chosen.target), end, min(context, target.context), batch, 1, SEED)
    behind = share(target.n_layers)
    plain = Settings(behind, 1, steps + 1, batch, warmup=0)
    heads = HeadSettings(target.n_layers, 1, steps + 1, batch, warmup=0)
    distilled = Settings(behind, 1, steps + 1, batch, warmup=0, distill=1.0)
    run, told = ExitRun(target, texts, plain, NOWHERE), ExitRun(target, texts, distilled, NOWHERE)
    medusa = HeadRun(target, texts, heads, NOWHERE)
    draft = DraftRun(checkpoint.load(chosen.draft, "float32", place, packed=False), texts.train)
    first = _count(target.embed) + sum(_count(layer) for layer in list(target.layers)[:behind])
    made: dict[str, tuple[Callable[[], object], int, int]] = {
        f"eesd, N={behind}": (run.step, first + _count(run.exit), _count(run.exit, True)),
        f"eesd, N={behind}, distilled": (told.step, _count(target) + _count(told.exit), _count(told.exit, True)),
        "medusa, 4 heads": (medusa.step, _count(target) + _count(medusa.exit), _count(medusa.exit, True)),
        "draft model": (draft.step, _count(draft.model), _count(draft.model, True)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for turn in track(range(steps + 1), "steps of training"):
        for name, (step, _, _) in made.items():
            began = perf_counter()
            step()
            if turn:
                seconds[name].append(perf_counter() - began)
    return [
        {
            "method": name,
            "loaded": loaded,
            "trainable": trained,
            "seconds_per_step": median(seconds[name]),
            "steps": steps,
            "batch": batch,
            "context": int(texts.train.shape[1]),
        }
        for name, (_, loaded, trained) in made.items()
    ]
