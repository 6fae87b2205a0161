"""Training an EAGLE-3 head (Li et al. 2025): the target frozen, drafting over several steps ("training-time test").

The run, its saved state and several processes are those of an exit layer's training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.errors import ConfigurationError
from draftwood.models.decoder import Decoder
from draftwood.models.heads.eagle import load, save
from draftwood.models.heads.eagle_head import EagleHead
from draftwood.models.quantise import seen_divided
from draftwood.train.distillation import UNKNOWN, chosen
from draftwood.train.exit_layer import ExitRun, Place
from draftwood.train.settings import EagleSettings
from draftwood.train.texts import tokens_of


class EagleRun(ExitRun):
    """A head in training, as an `ExitRun` trains an exit layer; its figures are those of each step of drafting."""

    settings: EagleSettings
    kind = "eagle"
    numbered = True

    @classmethod
    def settled(cls, target: Decoder, settings: EagleSettings) -> EagleSettings:
        return settings

    def made(self) -> nn.Module:
        known = None
        if self.settings.vocabulary is not None and self.settings.vocabulary < self.target.vocab_size:
            known = self.texts.frequent(self.settings.vocabulary)
        self.target.requires_grad_(False)
        head = EagleHead.of(self.target, words=known)
        if self.settings.start is not None:
            begin_with(head, load(self.settings.start, self.target, packed=False), self.target)
        return _Steps(head, self.settings.unroll, self.settings.quantize is not None)

    def write(self, stored: torch.dtype, trained: dict[str, float]) -> None:
        head = self.exit.head
        whose, quantize = self.facts["target"], self.settings.quantize
        save(head.weights(), self.out, whose, head.reads, stored, quantize, trained=trained)

    @property
    def reads(self) -> Sequence[int]:
        layers: Sequence[int] = self.exit.head.reads
        return layers

    def inputs(self, states: Mapping[int, Tensor], tokens: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([states[layer].float() for layer in self.reads], -1), tokens

    @property
    def layers_below(self) -> int:
        return 0

    @property
    def min_context(self) -> int:
        """As for an exit; the first token behind that which is read is the target's."""
        return len(self.factors) + 2

    @property
    def factors(self) -> list[float]:
        return [self.settings.decay**k for k in range(self.settings.unroll)]

    def _ahead(self, rows: Tensor) -> Tensor:
        """The tokens from the second on [B, T - 1], by their number in the head's vocabulary, or UNKNOWN."""
        words, ahead = self.exit.head.words, tokens_of(rows)[:, 1:]
        if words is None:
            return ahead
        place = torch.full((self.target.vocab_size,), UNKNOWN, device=rows.device)
        place[words] = torch.arange(len(words), device=rows.device)
        return place[ahead]

    def counted(self, rows: Tensor) -> list[Tensor]:
        """As for an exit, for each step: where all tokens that the steps before it draft are in the vocabulary."""
        (here,) = super().counted(rows)
        known, each = self._ahead(rows) != UNKNOWN, []
        for _ in range(self.settings.unroll):
            here = here[:, 1:]
            each.append(here)
            here = here & known[:, : here.shape[1]]
        return each

    def _places(self, logits: Tensor, rows: Tensor, answer: Tensor | None) -> list[Place]:
        """As for an exit; logits [steps, B, T - 1, V_head] of the tokens from the second on. Step k begins at the k-th.

        With a restricted vocabulary log p is not renormalised to it.
        """
        words, ahead, places = self.exit.head.words, self._ahead(rows), []
        if words is not None and answer is not None:
            answer = answer[..., words]
        for k, (predicted, here) in enumerate(zip(logits, self.counted(rows), strict=True), 1):
            log_p = None if answer is None else answer[:, k:-1][here]
            places.append((chosen(predicted, here, k - 1), ahead[:, k:][here], log_p))
        return places


@torch.no_grad()
def begin_with(head: EagleHead, trained: EagleHead, target: Decoder) -> None:
    """Give a new head the weights of a trained one that reads the same layers.

    The row of a token that the trained head does not know is the target's, moved as its known rows were moved from the
    target's: by least squares. Raises ConfigurationError where the heads are of other kinds.
    """
    own, given = (
        {name: part for name, part in one.named_parameters() if name != "decoder.embed.weight"}
        for one in (head, trained)
    )
    table = "decoder.head.weight"
    alike = own.keys() == given.keys() and all(own[name].shape == given[name].shape for name in own if name != table)
    if not alike or (head.reads, head.norms) != (trained.reads, trained.norms):
        raise ConfigurationError(
            "the head to start from has other layers or norms, or reads other states, than one that is trained here; "
            "leave --start out"
        )
    rows, learned = target.head.weight.float().cpu(), given[table].float().cpu()
    known = torch.arange(len(learned)) if trained.words is None else trained.words.cpu()
    before = F.pad(rows[known], (0, 1), value=1.0)
    moved = torch.linalg.solve(before.T @ before + torch.eye(before.shape[1]), before.T @ (learned - rows[known]))
    every = rows + F.pad(rows, (0, 1), value=1.0) @ moved
    every[known] = learned
    given[table] = every if head.words is None else every[head.words.cpu()]
    for name, part in own.items():
        part.copy_(given[name])


class _Steps(nn.Module):
    """A head as `ExitRun` trains one."""

    def __init__(self, head: EagleHead, steps: int, rounded: bool) -> None:
        super().__init__()
        self.head, self.steps, self.rounded = head, steps, rounded

    @property
    def dtype(self) -> torch.dtype:
        return self.head.dtype

    def forward(self, states: Tensor, tokens: Tensor) -> Tensor:
        return self.head.train_forward(states, tokens, self.steps)

    def train_forward(self, read: tuple[Tensor, Tensor]) -> Tensor:
        """Logits, as those of an `EagleHead`; matrices are rounded if it is trained for that."""
        matrices = {
            f"{name}.weight": seen_divided(module.weight)
            for name, module in (self.named_modules() if self.rounded else ())
            if isinstance(module, nn.Linear)
        }
        logits: Tensor = torch.func.functional_call(self, matrices, read)
        return logits

    def weights(self) -> dict[str, Tensor]:
        return self.head.weights()
