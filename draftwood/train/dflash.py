"""Training a DFlash head (Chen et al. 2026): the target frozen, blocks behind many anchors of each text at once.

The run, its saved state and several processes are those of an exit layer's training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from draftwood.models.decoder import Decoder
from draftwood.models.heads.dflash import save
from draftwood.models.heads.dflash_head import DFlashHead
from draftwood.train.distillation import chosen
from draftwood.train.exit_layer import ExitRun, Place
from draftwood.train.settings import DFlashSettings
from draftwood.train.texts import tokens_of


class DFlashRun(ExitRun):
    """A head in training, as an `ExitRun` trains an exit layer; its figures are those of each place of a block.

    Anchors lie a block apart; where the first is changes from step to step.
    """

    settings: DFlashSettings
    kind = "dflash"
    numbered = True
    _first = 0  # position of the first anchor

    @classmethod
    def settled(cls, target: Decoder, settings: DFlashSettings) -> DFlashSettings:
        return settings

    def made(self) -> nn.Module:
        self.target.requires_grad_(False)
        return _Blocks(DFlashHead.of(self.target, self.settings.layers, self.settings.block))

    def write(self, stored: torch.dtype, trained: dict[str, float]) -> None:
        save(self.exit.head, self.out, stored, trained=trained)

    @property
    def reads(self) -> Sequence[int]:
        layers: Sequence[int] = self.exit.head.reads
        return layers

    def step(self) -> dict[str, float]:
        chosen = np.random.default_rng([self.settings.seed, self.progress.step, self.settings.block])
        self._first = int(chosen.integers(self.settings.block))
        return super().step()

    def measure(self, rows: int = 4) -> dict[str, float]:
        self._first = 0
        return super().measure(rows)

    def _anchors(self, tokens: Tensor) -> Tensor:
        """Positions [A] of anchors in rows of tokens [B, T]: a token follows each."""
        last = tokens.shape[1] - 1
        return torch.arange(min(self._first, last - 1), last, self.settings.block, device=tokens.device)

    def inputs(self, states: Mapping[int, Tensor], tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        anchors = self._anchors(tokens).expand(len(tokens), -1)
        return torch.cat([states[layer].float() for layer in self.reads], -1), tokens, anchors

    @property
    def layers_below(self) -> int:
        return 0

    @property
    def longest(self) -> int:
        """The places of a block but the first, which is the last token."""
        return len(self.factors)

    def drafting_time(self, tokens: int) -> float:
        """That of a block, which is one pass."""
        return self.cost

    @property
    def factors(self) -> list[float]:
        return [self.settings.decay**k for k in range(self.settings.block - 1)]

    def counted(self, rows: Tensor) -> list[Tensor]:
        """For place k of a block the anchors [B, A] at which it counts: no text ends before the token, nor the row."""
        anchors, end, places = self._anchors(rows), rows.shape[1], []
        here, tokens = torch.ones(len(rows), len(anchors), dtype=torch.bool, device=rows.device), tokens_of(rows)
        for k in range(1, self.settings.block):
            before = tokens[:, (anchors + k - 1).clamp(max=end - 1)]
            here = here & ~self.texts.is_end(before) & (anchors + k < end)
            places.append(here & (rows[:, (anchors + k).clamp(max=end - 1)] >= 0))
        return places

    def _places(self, logits: Tensor, rows: Tensor, answer: Tensor | None) -> list[Place]:
        """As for an exit, place by place; logits [B, A, block - 1, V].

        p is conditioned on tokens of the block that the head does not see, so q_k learns its mean.
        """
        anchors, places = self._anchors(rows), []
        for k, here in enumerate(self.counted(rows), 1):
            at = (anchors + k).clamp(max=rows.shape[1] - 1)
            log_p = None if answer is None else answer[:, at - 1][here]
            places.append((chosen(logits.flatten(1, 2), here, k - 1, logits.shape[2]), rows[:, at][here], log_p))
        return places


class _Blocks(nn.Module):
    """A head as `ExitRun` trains one."""

    def __init__(self, head: DFlashHead) -> None:
        super().__init__()
        self.head = head

    @property
    def dtype(self) -> torch.dtype:
        return self.head.dtype

    def train_forward(self, read: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return self.head.train_forward(*read)

    def weights(self) -> dict[str, Tensor]:
        return self.head.weights()
