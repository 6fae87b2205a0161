"""The sequential head of DSpark: what a token adds to the logits of the next place of a block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftwood.models.modules import Embedding, Linear


class MarkovHead(nn.Module):
    """Adds w2(w1[token before]) to logits; with a gate, w1's row is first multiplied by a sigmoid of it and the state.

    Of the tokens before `vocabulary` are known, and `words` are what logits are of; `rank` is the width between.
    """

    def __init__(self, vocabulary: int, words: int, rank: int, width: int, gated: bool) -> None:
        super().__init__()
        self.w1 = Embedding(vocabulary, rank)
        self.w2 = Linear(rank, words, bias=False)
        self.gate = Linear(width + rank, rank) if gated else None

    def forward(self, tokens: Tensor, states: Tensor) -> Tensor:
        """The bias of logits [n, words] behind tokens [n], with the block's states [n, D] in the rows of these."""
        before = self.w1(tokens.clamp(max=self.w1.num_embeddings - 1)).to(states.dtype)
        if self.gate is not None:
            before = torch.sigmoid(self.gate(torch.cat((states, before), -1))) * before
        made: Tensor = self.w2(before)
        return made
