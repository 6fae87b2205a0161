"""One training run: it can be killed at any time and goes on where it was saved."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from draftwood.models.decoder import Decoder, DecoderConfig
from draftwood.train.optim import Optimizers, Schedule
from draftwood.train.saved import read_state, write_state

# Rows of packed tokens, uint16 [rows, context].
Rows = np.ndarray[tuple[int, int], np.dtype[np.uint16]]


def initialise(config: DecoderConfig, seed: int) -> Decoder:
    """Return a new decoder whose weights depend on the seed alone.

    Projections back into the residual stream start at zero, so that every layer
    starts as the identity and a deep narrow model begins to learn at once.
    """
    torch.manual_seed(seed)
    decoder = Decoder(config)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith(("o.weight", "down.weight")):
                parameter.zero_()
            elif name.startswith("layers.") and parameter.ndim == 2:
                parameter.normal_(std=0.7 * parameter.shape[1] ** -0.5)
            elif parameter.ndim == 2:
                parameter.normal_(std=0.05)
    return decoder


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean cross entropy in nats per token.

    logits [B, T, V], tokens [B, T]. End-of-sequence after end-of-sequence is
    the filling of a row and does not count; the token is number 0.
    """
    targets = tokens[:, 1:]
    targets = targets.masked_fill((targets == 0) & (tokens[:, :-1] == 0), -100)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets.flatten())


@dataclass
class Progress:
    """Where a run stands: what is saved beside the tensors."""

    step: int = 0
    tokens: int = 0
    # The next row to be read, for each context length.
    cursor: dict[str, int] | None = None
    curve: list[dict[str, float]] | None = None


class Run:
    """A decoder in training, with its optimizers, its place in the data and its curve."""

    def __init__(self, config: DecoderConfig, seed: int, path: Path, *, fast: bool = True) -> None:
        """Start anew, or go on from ``path`` where it exists.

        ``fast`` compiles the forward pass and computes it in bfloat16.
        """
        self.decoder = initialise(config, seed)
        self.optimizers = Optimizers(self.decoder)
        self.progress = Progress(cursor={}, curve=[])
        self._path = path
        self._fast = fast
        forward: Callable[[Tensor], Tensor] = self.decoder.train_forward
        self._forward = torch.compile(forward, dynamic=False) if fast else forward
        if path.exists():
            self._load()

    def _load(self) -> None:
        facts = read_state(self._path, dict(self.decoder.named_parameters()), self.optimizers)
        self.progress = Progress(**json.loads(facts["progress"]))

    def save(self) -> None:
        """Write everything into one file, in one move: a kill leaves the old one or the new."""
        facts = {"progress": json.dumps(self.progress.__dict__)}
        write_state(self._path, dict(self.decoder.named_parameters()), self.optimizers, facts)

    def _batch(self, rows: Rows, size: int) -> Tensor:
        cursor: dict[str, Any] = self.progress.cursor if self.progress.cursor is not None else {}
        context = str(rows.shape[1])
        start = cursor.get(context, 0)
        cursor[context] = (start + size) % len(rows)
        self.progress.cursor = cursor
        chosen = np.arange(start, start + size) % len(rows)
        return torch.from_numpy(rows[chosen].astype(np.int64))

    def step(self, rows: Rows, size: int, schedule: Schedule) -> dict[str, float]:
        """Train on the next ``size`` rows; return loss, gradient norm and tokens per second."""
        began = time.perf_counter()
        tokens = self._batch(rows, size)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._fast):
            logits = self._forward(tokens)
        loss = loss_of(logits, tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), 1.0)
        self.optimizers.step(schedule.rate(self.progress.step))
        self.progress.step += 1
        self.progress.tokens += tokens.numel()
        return {
            "loss": loss.item(),
            "norm": norm.item(),
            "tokens_per_s": tokens.numel() / (time.perf_counter() - began),
        }

    def measure(self, monitor: Callable[[Callable[[Tensor], Tensor]], dict[str, float]]) -> None:
        """Add a point of held-out figures to the learning curve."""

        def forward(tokens: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=self._fast):
                return self.decoder.train_forward(tokens)

        point = {"step": self.progress.step, "tokens": self.progress.tokens} | monitor(forward)
        assert self.progress.curve is not None
        self.progress.curve.append(point)
