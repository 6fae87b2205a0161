"""A draft model on another device than the target, whose logits are moved to the device of the target's."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwood.errors import ConfigurationError
from draftwood.models.base import Batch, CausalModel
from draftwood.models.cache import Cache
from draftwood.models.delegate import Delegate


class OnOtherDevice(Delegate):
    """A model whose logits and returned states are moved to the device `answers`; all else is the model's own."""

    def __init__(self, model: CausalModel, answers: torch.device) -> None:
        super().__init__(model)
        self._answers = answers

    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        """The model's forward; only forwards of all layers, as drafts are made, are supported."""
        out = self._model.forward(batch, cache).to(self._answers)
        batch.kept = {layer: states.to(self._answers) for layer, states in batch.kept.items()}
        return out


def checked_device(device: str | torch.device | None, option: str = "device") -> torch.device:
    """The device of a name, by default the first GPU or else the CPU; ConfigurationError where it is not there."""
    try:
        place = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:  # an unknown name; no CUDA; no such index
        raise ConfigurationError(f"{option} {str(device)!r} is not there; use cpu, or one that torch sees") from error
    return place
