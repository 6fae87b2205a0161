"""Training Medusa heads (Cai et al. 2024, "Medusa-1"): the target frozen, its last hidden states read once per step.

The run, its saved state and several processes are those of an exit layer's training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from draftwood.models.decoder import Decoder
from draftwood.models.heads import RANKS, Heads, save
from draftwood.train.exit_layer import ExitRun
from draftwood.train.settings import HeadSettings


class HeadRun(ExitRun):
    """Heads in training, as an `ExitRun` trains an exit layer."""

    settings: HeadSettings
    ranks: Sequence[Sequence[float]] = ()  # of each head: how often its best, second, ... token was right

    @classmethod
    def settled(cls, target: Decoder, settings: HeadSettings) -> HeadSettings:
        return settings

    def made(self) -> Heads:
        self.target.requires_grad_(False)  # a shared head is read with gradients, but has none
        return Heads.of(self.target, self.settings.heads, self.settings.shared)

    def write(self, stored: torch.dtype, trained: dict[str, float]) -> None:
        save(self.exit.weights(), self.out, self.facts["target"], stored, ranks=self.ranks, trained=trained)

    @torch.no_grad()
    def _read(self, tokens: Tensor, answered: bool) -> tuple[Tensor, Tensor | None]:
        """What the target's head reads [B, T, D] and, if asked for, its log-probabilities [B, T, V]."""
        with self._autocast():
            x = self.target.embedded(tokens, torch.arange(tokens.shape[1], device=tokens.device)[None])
            last = self.target.train_layers(x, 0, self.target.n_layers)
            hidden = self.target.normed(last).to(self.exit.dtype)
            return hidden, torch.log_softmax(self.target.logits(last), -1) if answered else None

    def loss(self, logits: Tensor, tokens: Tensor, answer: Tensor | None) -> Tensor:
        """sum_k decay^k L_k, L_k the mean over places of (1 - w) * -log q_k(token k + 1 ahead) + w * KL(p || q_k).

        logits [K, B, T, V], tokens [B, T], answer = log p [B, T, V] of the next token; p is the one k places ahead,
        which knows the tokens that the head does not see: q_k is drawn towards its mean. w = `distill`.
        """
        weight = self.settings.distill
        loss = logits.new_zeros(())
        for k, (log_q, ahead, log_p) in enumerate(self._places(logits, tokens, answer), 1):
            each = (1 - weight) * F.nll_loss(log_q, ahead)
            if log_p is not None:
                each = each + weight * F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
            loss = loss + self.settings.decay**k * each
        return loss

    def _places(
        self, logits: Tensor, tokens: Tensor, answer: Tensor | None
    ) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Of each head, at the places that count: log q [n, V], the token predicted [n], log p of it [n, V].

        Not where a text ends before the token that is predicted: nothing is drafted behind an end.
        """
        found = []
        here = torch.ones_like(tokens[:, 1:], dtype=torch.bool)
        for k in range(1, len(logits) + 1):
            here = here[:, :-1] & (tokens[:, k:-1] != self.texts.end)
            log_q = torch.log_softmax(logits[k - 1][:, : -k - 1].float(), -1)[here]
            log_p = None if answer is None else answer[:, k:-1][here]
            found.append((log_q, tokens[:, k + 1 :][here], log_p))
        return found

    @torch.no_grad()
    def measure(self, rows: int = 4) -> dict[str, float]:
        """Held-out figures, added to the curve: of head k `loss_k`, `acceptance_k` and `agreement_k`; of head 1 plain.

        loss: cross-entropy in nats; acceptance: mean of sum_x min(p(x), q(x)); agreement: share of places where both
        have the same most probable token.
        """
        count = self.settings.heads
        sums = np.zeros((count, 3))
        ranked = np.zeros((count, min(RANKS, self.target.vocab_size)))
        places = np.zeros(count)
        for first in range(0, len(self.texts.held_out), rows):
            part = self.texts.held_out[first : first + rows].astype(np.int64)
            tokens = torch.from_numpy(part).to(self.target.device)
            hidden, answer = self._read(tokens, True)
            with self._autocast():
                logits = self.exit.train_forward(hidden)
            for k, (log_q, ahead, log_p) in enumerate(self._places(logits, tokens, answer)):
                assert log_p is not None
                sums[k, 0] += F.nll_loss(log_q, ahead, reduction="sum").item()
                sums[k, 1] += torch.minimum(log_p, log_q).exp().sum().item()
                sums[k, 2] += (log_p.argmax(-1) == log_q.argmax(-1)).sum().item()
                best = log_q.topk(ranked.shape[1], -1).indices == ahead[:, None]
                ranked[k] += best.sum(0).cpu().numpy()
                places[k] += len(ahead)
        self.ranks = (ranked / places.clip(min=1)[:, None]).round(4).tolist()
        point: dict[str, Any] = {"step": float(self.progress.step)}
        for k in range(count):
            for name, value in zip(("loss", "acceptance", "agreement"), sums[k] / max(1.0, places[k]), strict=True):
                point[f"{name}_{k + 1}"] = float(value)
                if not k:
                    point[name] = float(value)
        self.progress.curve.append(point)
        return point
