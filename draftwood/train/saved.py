"""The saved state of a training run: one file, written aside and moved into place.

A kill, or a disk that is full, leaves the old file or the new one, never half of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.train.optim import Optimizers


def write_state(path: Path, weights: Mapping[str, Tensor], optimizers: Optimizers, facts: Mapping[str, str]) -> None:
    """Write weights, the optimizers' state and facts of a run; ModelError where the file cannot be written."""
    tensors = {f"weight/{n}": p.detach() for n, p in weights.items()}
    tensors |= {f"state/{n}": t for n, t in optimizers.state().items()}
    partial = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_file({n: t.cpu().contiguous() for n, t in tensors.items()}, partial, dict(facts))
        partial.replace(path)
    except (SafetensorError, OSError) as error:
        partial.unlink(missing_ok=True)
        kept = "the last good one is still there" if path.exists() else "there is none before it"
        raise ModelError(f"the run cannot be saved to {path} ({error}); {kept}: make room and start again") from error


def read_facts(path: Path) -> dict[str, str]:
    """The facts of a saved run, without its tensors; ModelError where the file is damaged."""
    try:
        with safe_open(str(path), "pt") as stored:
            return dict(stored.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged ({error}); remove it to begin anew") from error


def read_state(path: Path, weights: Mapping[str, Tensor], optimizers: Optimizers) -> dict[str, str]:
    """Take weights (in place) and the optimizers' state over from a saved run; returns its facts."""
    facts = read_facts(path)
    with safe_open(str(path), "pt") as stored:
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a dictionary
    with torch.no_grad():
        for name, parameter in weights.items():
            parameter.copy_(tensors[f"weight/{name}"])
    optimizers.load({n.removeprefix("state/"): t for n, t in tensors.items() if n.startswith("state/")})
    return facts
