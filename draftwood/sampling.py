"""Logits to probabilities, and random numbers. One warper serves target and drafts alike.

Knows sampling parameters, truncation, penalties and counter-based random streams. Refuses to know models
and verification rules.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.errors import NonFiniteError
from draftwood.params import SamplingParams as SamplingParams


def warp(logits: Tensor, params: SamplingParams) -> Tensor:
    """T∘softmax over the last dimension: [..., V] -> probabilities of the same shape and dtype.

    For the warped *joint* of beams (DSBD §2.1), pass joint log-likelihoods flattened to one last dimension.
    Temperature 0 gives the one-hot argmax (first index among ties).
    """
    if params.greedy:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    if params.temperature != 1:  # the largest becomes 0 first, so that no temperature overflows
        logits = (logits - logits.amax(-1, keepdim=True)) / params.temperature
    probs = torch.softmax(logits, -1)
    threshold = None
    if 0 < params.top_k < probs.shape[-1]:
        top = probs.topk(params.top_k, -1).values  # [..., k], descending
        threshold = top[..., -1:]
        if params.top_p < 1:
            threshold = _nucleus(top, params.top_p * top.sum(-1, keepdim=True))
    elif params.top_p < 1:
        top = probs.topk(min(128, probs.shape[-1]), -1).values  # the nucleus is nearly always this small
        if not bool((top.sum(-1) >= params.top_p).all()):
            top = probs.sort(-1, descending=True).values
        threshold = _nucleus(top, params.top_p)
    if params.min_p > 0:
        floor = probs.amax(-1, keepdim=True) * params.min_p
        threshold = floor if threshold is None else torch.maximum(threshold, floor)
    if threshold is None:
        return probs
    probs = torch.where(probs >= threshold, probs, 0.0)
    return probs / probs.sum(-1, keepdim=True)


def _nucleus(top: Tensor, mass: Tensor | float) -> Tensor:
    """Probability [..., 1] of the last token in the smallest set of the descending `top` whose sum reaches `mass`."""
    before = top.cumsum(-1) - top  # probability in front of each token
    inside = (before < mass).sum(-1, keepdim=True).clamp_(min=1)
    return top.gather(-1, inside - 1)


class Penalties:
    """Repetition, presence and frequency penalties and logit bias for one request, each node seeing its own path only.

    Keeps counts of the trunk's tokens and adds those of a node's ancestors, so that the prefix is never re-counted.
    """

    def __init__(self, params: SamplingParams, vocab_size: int, prompt_length: int, device: torch.device) -> None:
        self.params = params
        self.prompt_length = prompt_length
        self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._count = torch.zeros(vocab_size, dtype=torch.float32, device=device)
        self._length = 0
        self._bias: Tensor | None = None
        if params.logit_bias:
            bad = [token for token in params.logit_bias if not 0 <= token < vocab_size]
            if bad:
                raise ValueError(f"logit_bias names token {bad[0]}, but token ids go from 0 to {vocab_size - 1}")
            self._bias = torch.zeros(vocab_size, device=device)
            for token, value in params.logit_bias.items():
                self._bias[token] = value

    def __call__(self, logits: Tensor, forest: Forest, nodes: Sequence[int]) -> Tensor:
        """Edited copy of logits [len(nodes), V], whose rows predict the token after each node."""
        self._count_trunk(forest.trunk)
        rows, tokens, made = [], [], []
        for row, node in enumerate(nodes):
            for ancestor in forest.path(node):
                rows.append(row)
                tokens.append(forest.token[ancestor])
                made.append(float(forest.position(ancestor) >= self.prompt_length))
        seen = self._seen.repeat(len(nodes), 1)
        seen[rows, tokens] = True
        count = self._count.repeat(len(nodes), 1)
        index = (torch.tensor(rows, device=logits.device), torch.tensor(tokens, device=logits.device))
        count.index_put_(index, torch.tensor(made, device=logits.device), accumulate=True)
        p = self.params
        if p.repetition_penalty != 1:
            pressed = torch.where(logits > 0, logits / p.repetition_penalty, logits * p.repetition_penalty)
            logits = torch.where(seen, pressed, logits)
        logits = logits - p.frequency_penalty * count - p.presence_penalty * (count > 0)
        return logits if self._bias is None else logits + self._bias

    def _count_trunk(self, trunk: list[int]) -> None:
        new = trunk[self._length :]
        if new:
            self._seen[new] = True
            made = trunk[max(self._length, self.prompt_length) :]
            if made:
                index = torch.tensor(made, device=self._count.device)
                self._count.index_put_((index,), torch.ones(len(made), device=index.device), accumulate=True)
            self._length = len(trunk)


MASK64 = (1 << 64) - 1
PURPOSES = {"draft": 1, "accept": 2, "depth": 3, "noise": 4}


def _mix(x: int) -> int:
    """The splitmix64 finaliser: 64 bits to 64 well-mixed bits."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK64
    return x ^ (x >> 31)


class Streams:
    """Counter-based randomness of one request: every number is a function of (seed, position, purpose, counter).

    The position is that of the round's root, so numbers do not depend on the batch, on other requests or on how many
    numbers an earlier round used. Drafting, accepting and depth control never share numbers.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed & MASK64
        self._keys = {
            purpose: _mix((self.seed ^ code * 0x9E3779B97F4A7C15) & MASK64) for purpose, code in PURPOSES.items()
        }
        self._counter: dict[str, int] = {}
        self._generator: torch.Generator | None = None
        self._gumbel: dict[int, Tensor] = {}
        self.at(0)

    def at(self, position: int) -> None:
        """Begin the round whose root stands at `position`."""
        self._counter = {
            purpose: _mix((key + position * 0xD1342543DE82EF95) & MASK64) for purpose, key in self._keys.items()
        }
        self._gumbel = {at: noise for at, noise in self._gumbel.items() if at >= position}

    def _next(self, purpose: str) -> int:
        state = self._counter[purpose] = (self._counter[purpose] + 0x9E3779B97F4A7C15) & MASK64
        return _mix(state)

    def uniform(self, purpose: str) -> float:
        """The stream's next number in [0, 1), with 48 random bits so that u * total stays below total."""
        return (self._next(purpose) >> 16) * 2.0**-48

    def exponential(self, purpose: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Independent Exp(1) numbers of a shape, float32, made on `device`."""
        return self._filled(self._next(purpose), shape, device)

    def gumbel(self, position: int, size: int, device: torch.device) -> Tensor:
        """Gumbel noise [size] that belongs to the token at `position`, the same for target and every draft."""
        noise = self._gumbel.get(position)
        if noise is None or noise.shape[0] != size:
            key = _mix((self._keys["noise"] + position * 0xD1342543DE82EF95) & MASK64)
            noise = self._gumbel[position] = -self._filled(key, (size,), device).log()
        return noise

    def _filled(self, key: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
        if self._generator is None or self._generator.device != device:
            self._generator = torch.Generator(device)
        self._generator.manual_seed(key >> 1)
        return torch.empty(shape, dtype=torch.float32, device=device).exponential_(generator=self._generator)


def draw(probs: Tensor, u: float) -> int:
    """Inverse-CDF draw from weights [V] >= 0 of any sum, with u in [0, 1); a token of weight 0 is never drawn."""
    return draws(probs, [u])[0]


def draws(probs: Tensor, us: Sequence[float]) -> list[int]:
    """`draw` for several u, which share the sums."""
    total = probs.cumsum(-1, dtype=torch.float64)
    mass = float(total[-1])
    if not 0 < mass < float("inf"):
        raise NonFiniteError("a next-token distribution is not finite (NaN or infinite logits)")
    if len(us) == 1:
        return [int(torch.searchsorted(total, us[0] * mass, right=True))]
    sought = torch.tensor([u * mass for u in us], dtype=torch.float64, device=total.device)
    places: list[int] = torch.searchsorted(total, sought, right=True).tolist()
    return places


def draw_iid(probs: Tensor, count: int, streams: Streams) -> list[list[int]]:
    """`count` independent draws from each row of probs [n, V], in drawn order."""
    return [[draw(row, streams.uniform("draft")) for _ in range(count)] for row in probs]


def draw_distinct(probs: Tensor, count: int, streams: Streams) -> list[list[int]]:
    """Up to `count` draws without replacement from each row of probs [n, V], in drawn order (Gumbel-top-k).

    A row with fewer than `count` tokens of positive probability gives them all.
    """
    count = min(count, probs.shape[-1])
    race = streams.exponential("draft", tuple(probs.shape), probs.device)  # the smallest arrival time is drawn first
    keys = probs / race
    if not bool(torch.isfinite(keys).all()):
        raise NonFiniteError("a next-token distribution is not finite (NaN or infinite logits)")
    best = keys.topk(count, -1)
    return [
        [token for token, key in zip(tokens, values, strict=True) if key > 0]
        for tokens, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
