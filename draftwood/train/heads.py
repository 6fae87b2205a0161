"""Training Medusa heads (Cai et al. 2024, "Medusa-1"): the target frozen, its last hidden states read once per step.

The run, its saved state and several processes are those of an exit layer's training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from draftwood.models.decoder import Decoder
from draftwood.models.heads.medusa import Heads, save
from draftwood.train.distillation import chosen
from draftwood.train.exit_layer import ExitRun, Place
from draftwood.train.settings import HeadSettings
from draftwood.train.texts import tokens_of


class HeadRun(ExitRun):
    """Heads in training, as an `ExitRun` trains an exit layer."""

    settings: HeadSettings
    kind = "heads"
    numbered = True

    @classmethod
    def settled(cls, target: Decoder, settings: HeadSettings) -> HeadSettings:
        return settings

    def made(self) -> Heads:
        self.target.requires_grad_(False)  # a shared head is read with gradients, but has none
        return Heads.of(self.target, self.settings.heads, self.settings.shared)

    def write(self, stored: torch.dtype, trained: dict[str, float]) -> None:
        ranks = self.progress.ranks
        save(self.exit.weights(), self.out, self.facts["target"], stored, ranks=ranks, trained=trained)

    @property
    def reads(self) -> Sequence[int]:
        return (self.target.n_layers,)

    def inputs(self, states: Mapping[int, Tensor], tokens: Tensor) -> Tensor:
        return states[self.target.n_layers].to(self.exit.dtype)

    @property
    def layers_below(self) -> int:
        return 0

    @property
    def longest(self) -> int:
        """A token of each head."""
        return len(self.factors)

    def drafting_time(self, tokens: int) -> float:
        """That of all heads, which are computed together."""
        return self.cost

    @property
    def min_context(self) -> int:
        """As for an exit; the first token behind that which is read is the target's."""
        return len(self.factors) + 2

    @property
    def factors(self) -> list[float]:
        return [self.settings.decay**k for k in range(1, self.settings.heads + 1)]

    def counted(self, rows: Tensor) -> list[Tensor]:
        """As for an exit, without places where a text ends before the predicted token: nothing is drafted there."""
        places, here, goes_on = [], torch.ones_like(rows[:, 1:], dtype=torch.bool), ~self.texts.is_end(tokens_of(rows))
        for k in range(1, self.settings.heads + 1):
            here = here[:, :-1] & goes_on[:, k:-1]
            places.append(here & (rows[:, k + 1 :] >= 0))
        return places

    def _places(self, logits: Tensor, rows: Tensor, answer: Tensor | None) -> list[Place]:
        """As for an exit; logits [K, B, T, V]. log p is that of the token k places ahead of the next.

        p is conditioned on tokens that the head does not see, so q_k learns its mean.
        """
        places = []
        for k, here in enumerate(self.counted(rows), 1):
            log_p = None if answer is None else answer[:, k:-1][here]
            places.append((chosen(logits[k - 1], here), rows[:, k + 1 :][here], log_p))
        return places
