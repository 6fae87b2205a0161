"""A training run that can be killed at any time: weights, optimizers and progress in one file, replaced as one.

Ctrl-C leaves a run between two steps: never with half of its weights updated.
"""

from __future__ import annotations

import json
import math
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from draftwood.errors import ConfigurationError, ModelError
from draftwood.models.checkpoints.files import write_tensors
from draftwood.util.safe_parsing import parse_json


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
        adam = torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
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
                            optimizer.state[parameter][name] = value.to(parameter.device, copy=True)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the body is over. Where it is handled by somebody else, that stays as it is."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@dataclass
class Progress:
    """The progress of a run."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)  # held-out figures
    ranks: list[list[float]] = field(default_factory=list)  # see `ExitRun.measure`
    cursor: dict[str, int] = field(default_factory=dict)  # the next row to be read, by the rows' length


class TrainingRun:
    """A module in training; resumes from the file at `path` where there is one.

    `facts` decide the result: a run is only resumed with the same ones, else ConfigurationError is raised.
    """

    def __init__(self, module: nn.Module, path: Path, facts: Mapping[str, Any], muon: bool = False) -> None:
        self.weights = {name: part for name, part in module.named_parameters() if part.requires_grad}
        self.optimizers = Optimizers(module, muon=muon)
        self.progress = Progress()
        self.path, self.facts = path, dict(facts)
        if path.exists():
            self._load()

    def update(self, rate: float, tokens: int, seconds: float) -> float:
        """One optimizer step at a learning rate on the gradients, clipped to norm 1; the norm before."""
        norm = torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        with uninterrupted():
            self.optimizers.step(rate)
            self.progress.step += 1
            self.progress.tokens += tokens
            self.progress.seconds += seconds
        return norm.item()

    def save_state(self) -> None:
        """Write the run. ModelError where it cannot be written; the last file is then left as it was."""
        tensors = {f"weight/{name}": part.detach() for name, part in self.weights.items()}
        tensors |= {f"state/{name}": part for name, part in self.optimizers.state().items()}
        header = {"settings": json.dumps(self.facts), "progress": json.dumps(asdict(self.progress))}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_tensors(self.path, tensors, header)
        except (SafetensorError, OSError) as error:
            kept = "the last good one is still there" if self.path.exists() else "there is none before it"
            raise ModelError(
                f"the run cannot be saved to {self.path} ({error}); {kept}: make room and start again"
            ) from error

    def _load(self) -> None:
        try:
            with safe_open(str(self.path), "pt") as stored:
                header = stored.metadata() or {}
                before, progress = parse_json(header["settings"]), Progress(**parse_json(header["progress"]))
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a dictionary
        except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
            raise ModelError(f"{self.path} is damaged ({error}); remove it to begin anew") from error
        if unsaid := [name for name in self.facts if name not in before]:
            raise ConfigurationError(
                f"{self.path.parent} holds a run that does not say its {', '.join(unsaid)}: it is of another kind, or "
                "was saved by an earlier version; give another directory"
            )
        if other := [
            f"{name} is {before[name]}, not {value}" for name, value in self.facts.items() if before[name] != value
        ]:
            raise ConfigurationError(
                f"{self.path.parent} holds a run whose {', and whose '.join(other)}; give the same settings to go on, "
                "or another directory"
            )
        with torch.no_grad():
            for name, parameter in self.weights.items():
                parameter.copy_(tensors[f"weight/{name}"])
        self.optimizers.load({n.removeprefix("state/"): t for n, t in tensors.items() if n.startswith("state/")})
        self.progress = progress
