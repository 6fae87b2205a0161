"""Penalties, logit bias and tokens that may not come yet: edits of logits that depend on a node's own path."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.sampling.params import SamplingParams


class Penalties:
    """Repetition, presence and frequency penalties and logit bias for one request, each node seeing its own path only.

    The tokens `late` are impossible among the first `least` generated ones, all but `allowed` (None: all) are always,
    and the last token of each of the `bad_words` is behind the others of it. Keeps counts of the trunk's tokens and
    adds those of a node's ancestors, so that the prefix is never re-counted; of a row only those tokens' logits are
    touched.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt_length: int,
        device: torch.device,
        least: int = 0,
        late: Collection[int] = (),
        allowed: Collection[int] | None = None,
        bad_words: Collection[tuple[int, ...]] = (),
    ) -> None:
        self.params = params
        self.least, self.late = least, [token for token in late if token < vocab_size]
        self.prompt_length = prompt_length
        self._place: dict[int, int] = {}  # token of the trunk -> place in the two below
        self._tokens = array("q")
        self._made = array("f")  # how often it was generated
        self._length = 0
        biases = params.logit_bias
        self._biased = torch.tensor(list(biases), dtype=torch.int64, device=device)
        self._bias = torch.tensor(list(biases.values()), device=device)
        self._never: Tensor | None = None  # [V]: tokens that are impossible everywhere
        if allowed is not None or bad_words:
            self._never = torch.full((vocab_size,), allowed is not None, device=device)
            self._never[list(allowed or ())] = False
            self._never[[word[0] for word in bad_words if len(word) == 1]] = True
        self._bad_words = [(list(word[:-1]), word[-1]) for word in bad_words if len(word) > 1]

    def __call__(self, logits: Tensor, forest: Forest, nodes: Sequence[int]) -> Tensor:
        """Edited copy of logits [len(nodes), V], whose rows predict the token after each node."""
        logits = logits.clone()
        if self.params.repetition_penalty != 1 or self.params.frequency_penalty or self.params.presence_penalty:
            self._count_trunk(forest.trunk)
            seen = torch.from_numpy(np.array(self._tokens)).to(logits.device)
            made = torch.from_numpy(np.array(self._made)).to(logits.device)
            for row, node in zip(logits, nodes, strict=True):
                path, often = self._counted(forest, node)
                here = torch.tensor(path, dtype=torch.int64, device=row.device)
                below = self._pressed(row[here], torch.tensor(often, device=row.device))
                row[seen] = self._pressed(row[seen], made)
                row[here] = below
        if len(self._bias):
            logits[:, self._biased] += self._bias
        early = [row for row, node in enumerate(nodes) if forest.position(node) + 1 < self.prompt_length + self.least]
        if early and self.late:
            logits[torch.tensor(early, device=logits.device)[:, None], self.late] = -torch.inf
        if self._never is not None:
            logits.masked_fill_(self._never, -torch.inf)
        for row, node in zip(logits, nodes, strict=True) if self._bad_words else ():
            text = self._generated(forest, node)
            row[[last for first, last in self._bad_words if text[-len(first) :] == first]] = -torch.inf
        return logits

    def _generated(self, forest: Forest, node: int) -> list[int]:
        """The generated tokens down to a node, whose path may begin with the end of the prompt."""
        path = [forest.token[one] for one in forest.path(node)]
        return [*forest.trunk[self.prompt_length :], *path[max(0, self.prompt_length - len(forest.trunk)) :]]

    def _counted(self, forest: Forest, node: int) -> tuple[list[int], list[float]]:
        """The tokens from the trunk down to a node, and how often each was generated, in the trunk too."""
        count: dict[int, float] = {}
        for ancestor in forest.path(node):
            token = forest.token[ancestor]
            if token not in count:
                count[token] = self._made[self._place[token]] if token in self._place else 0.0
            count[token] += forest.position(ancestor) >= self.prompt_length
        return list(count), list(count.values())

    def _pressed(self, values: Tensor, made: Tensor) -> Tensor:
        """Logits [m] of tokens that have come before and were generated `made` [m] times."""
        params = self.params
        if params.repetition_penalty != 1:
            values = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        if params.frequency_penalty or params.presence_penalty:
            values = values - params.frequency_penalty * made - params.presence_penalty * (made > 0)
        return values

    def _count_trunk(self, trunk: list[int]) -> None:
        for position in range(self._length, len(trunk)):
            place = self._place.setdefault(trunk[position], len(self._place))
            if place == len(self._tokens):
                self._tokens.append(trunk[position])
                self._made.append(0.0)
            self._made[place] += position >= self.prompt_length
        self._length = len(trunk)
