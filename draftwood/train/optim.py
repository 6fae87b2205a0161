"""Which parameter gets which optimizer, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Schedule:
    """Warm-up, a constant rate, then a fall to zero: linear from step `decay_from` on, without one half a cosine.

    The constant part lets a run be shortened or lengthened when it is resumed: only the last part depends on where the
    run ends.
    """

    peak: float
    warmup: int
    steps: int
    decay_from: int | None = None

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        begin = self.warmup if self.decay_from is None else self.decay_from
        done = min(1.0, max(0.0, (step - begin) / max(1, self.steps - begin)))
        return self.peak * (0.5 * (1 + math.cos(math.pi * done)) if self.decay_from is None else 1 - done)


class Optimizers:
    """Muon for the matrices of the layers, AdamW for embeddings and norms; AdamW for all with ``muon=False``.

    Muon is scaled so that one learning rate serves both. Frozen parameters get none.
    """

    def __init__(self, model: nn.Module, *, muon: bool) -> None:
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        matrices = [p for n, p in trained.items() if muon and p.ndim == 2 and "layers." in n]
        rest = [p for n, p in trained.items() if not (muon and p.ndim == 2 and "layers." in n)]
        self._names = {p: n for n, p in trained.items()}
        adam = torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        self._both: tuple[torch.optim.Optimizer, ...] = (adam,)
        if matrices:
            self._both = (
                torch.optim.Muon(
                    matrices, lr=0.0, momentum=0.95, nesterov=True, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
                ),
                adam,
            )

    def step(self, rate: float) -> None:
        """Make one step at a learning rate and drop the gradients."""
        for optimizer in self._both:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Return the state as named tensors, ready for safetensors."""
        return {
            f"{name}:{key}": value
            for optimizer in self._both
            for parameter, name in self._names.items()
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over the state of a run that was broken off."""
        for optimizer in self._both:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    prefix = f"{self._names[parameter]}:"
                    for key, value in state.items():
                        if key.startswith(prefix):
                            name = key.removeprefix(prefix)
                            place = value.device if name == "step" else parameter.device  # counted on the CPU
                            optimizer.state[parameter][name] = value.to(place, copy=True)
