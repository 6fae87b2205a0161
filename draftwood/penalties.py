"""Penalties, logit bias and tokens that may not come yet: edits of logits that depend on a node's own path."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.params import SamplingParams


class Penalties:
    """Repetition, presence and frequency penalties and logit bias for one request, each node seeing its own path only.

    The tokens `late` are impossible among the first `least` generated ones. Keeps counts of the trunk's tokens and adds
    those of a node's ancestors, so that the prefix is never re-counted.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt_length: int,
        device: torch.device,
        least: int = 0,
        late: Collection[int] = (),
    ) -> None:
        self.params = params
        self.least, self.late = least, [token for token in late if token < vocab_size]
        self.prompt_length = prompt_length
        self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._count = torch.zeros(vocab_size, dtype=torch.float32, device=device)
        self._length = 0
        self._bias: Tensor | None = None
        if params.logit_bias:
            self._bias = torch.zeros(vocab_size, device=device)
            for token, value in params.logit_bias.items():
                self._bias[token] = value

    def __call__(self, logits: Tensor, forest: Forest, nodes: Sequence[int]) -> Tensor:
        """Edited copy of logits [len(nodes), V], whose rows predict the token after each node."""
        self._count_trunk(forest.trunk)
        p, width = self.params, len(self._seen)
        places: list[int] = []  # of the ancestors' tokens among all elements of [len(nodes), V]
        made: list[float] = []
        for row, node in enumerate(nodes):
            for ancestor in forest.path(node):
                places.append(row * width + forest.token[ancestor])
                made.append(float(forest.position(ancestor) >= self.prompt_length))
        index = torch.tensor(places, dtype=torch.int64, device=logits.device)
        if p.repetition_penalty != 1:
            seen = self._seen.expand(len(nodes), -1).clone()
            seen.view(-1).index_fill_(0, index, True)
            pressed = torch.where(logits > 0, logits / p.repetition_penalty, logits * p.repetition_penalty)
            logits = torch.where(seen, pressed, logits)
        if p.frequency_penalty or p.presence_penalty:
            count = self._count.expand(len(nodes), -1).clone()
            count.view(-1).index_add_(0, index, torch.tensor(made, device=logits.device))
            logits = logits - p.frequency_penalty * count - p.presence_penalty * (count > 0)
        if self._bias is not None:
            logits = logits + self._bias
        early = [row for row, node in enumerate(nodes) if forest.position(node) + 1 < self.prompt_length + self.least]
        if early and self.late:
            logits = logits.clone()
            logits[torch.tensor(early, device=logits.device)[:, None], self.late] = -torch.inf
        return logits

    def _count_trunk(self, trunk: list[int]) -> None:
        new = trunk[self._length :]
        if new:
            self._seen[new] = True
            made = trunk[max(self._length, self.prompt_length) :]
            if made:
                index = torch.tensor(made, device=self._count.device)
                self._count.index_put_((index,), torch.ones(len(made), device=index.device), accumulate=True)
            self._length = len(trunk)
