"""Logits to probabilities, and random numbers: one warper for target and drafts, one lazy table of distributions.

Knows sampling parameters, truncation and counter-based random streams. Knows no models and no verification rules.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.core.row_tops import LogitsRow, RowTops
from draftwood.errors import NonFiniteError
from draftwood.sampling import rows, truncation
from draftwood.sampling.drawing import Weights
from draftwood.sampling.params import SamplingParams
from draftwood.sampling.rows import Leading, as_rows, best, element, log_prob, normalised, softmax

LEADING = 12  # tokens of a row that are looked for together
FEW = 128  # so many numbers are added up sooner than NumPy begins


def warp(logits: Tensor, params: SamplingParams) -> Tensor:
    """T∘softmax over the last dimension: [..., V] -> probabilities of the same shape and dtype.

    For the warped *joint* of beams (DSBD §2.1), pass joint log-likelihoods flattened to one last dimension.
    Temperature 0 gives the one-hot argmax (first index among ties).
    """
    if params.greedy:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    if not params.truncates:
        return softmax(logits, params.temperature)
    if logits.is_cuda:
        return _warp_on_device(logits, params)
    if logits.dim() > 1:
        return torch.stack(list(warped(logits.reshape(-1, logits.shape[-1]), params))).view(logits.shape)
    places, probs = truncated(logits, params)
    return probs if places is None else torch.zeros_like(logits).index_copy_(0, places, probs)


def truncated(logits: Tensor, params: SamplingParams, dtype: torch.dtype | None = None) -> tuple[Tensor | None, Tensor]:
    """The tokens that `warp` keeps of one row of logits [V] on the CPU: ascending (None: all), and their probabilities.

    These sum to 1; `dtype` is theirs, if not the logits', and with top-k that of all that is computed of the few.
    """
    count = params.top_k if params.top_k < len(logits) else 0
    places = torch.from_numpy(truncation.leading(logits.numpy(), count)) if count else None
    some = logits if places is None else logits[places].to(dtype or logits.dtype)
    probs = softmax(some, params.temperature)
    kept = truncation.kept(probs.numpy(), count, params.top_p, params.min_p)
    if kept is not None:
        within = torch.from_numpy(kept)
        probs, places = probs[within].to(dtype or logits.dtype), within if places is None else places[within]
        probs = probs / probs.sum()
    return places, probs


def warped(logits: Tensor, params: SamplingParams) -> Sequence[Tensor]:
    """The rows [V] of `warp` of logits [n, V], with the same bits as one after the other."""
    if not (params.greedy or params.truncates) and (start := rows.address(logits)) is not None:
        count, size = logits.shape
        return [rows.softmax_at(start + 4 * size * row, size, params.temperature) for row in range(count)]
    if logits.is_cuda or params.greedy or not params.truncates:
        return warp(logits, params).unbind()
    return [warp(row, params) for row in logits]  # what lies between is as large as one row, and stays in the caches


def _warp_on_device(logits: Tensor, params: SamplingParams) -> Tensor:
    """The same where the numbers do not lie in this machine's memory: few operations, whatever they read."""
    probs = softmax(logits, params.temperature)
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
    if threshold is not None:
        probs = torch.where(probs >= threshold, probs, 0.0)
    return probs / probs.sum(-1, keepdim=True)


def _nucleus(top: Tensor, mass: Tensor | float) -> Tensor:
    """Probability [..., 1] of the last token in the smallest set of the descending `top` whose sum reaches `mass`."""
    before = top.cumsum(-1) - top  # probability in front of each token
    inside = (before < mass).sum(-1, keepdim=True).clamp_(min=1)
    return top.gather(-1, inside - 1)


Edit: TypeAlias = Callable[[Tensor, Forest, Sequence[int]], Tensor]  # of logits [n, V] after n nodes of a forest


def chained(*edits: Edit) -> Edit:
    """Edits one after the other."""
    return lambda logits, forest, nodes: reduce(lambda rows, edit: edit(rows, forest, nodes), edits, logits)


class Distributions:
    """The target's next-token distributions after the nodes of one forest, each computed when somebody first asks.

    `logits` [n, V] (and `hidden` [n, D], what the head read, where it was asked for) answer the forest's fresh nodes in
    order; what the forest knows from earlier rounds is found, too. `read` has what the drafter reads of the target, as
    (layer, nodes, output [n, D]), `tops` what is known of the logits. `edit` is what happens to logits before the
    temperature, if anything: `edit(rows [m, V], forest, nodes)`. Rows that nobody visits are never
    edited, warped or normalised.
    """

    def __init__(
        self,
        forest: Forest,
        logits: Tensor,
        params: SamplingParams,
        edit: Edit | None = None,
        hidden: Tensor | None = None,
        read: Sequence[tuple[int, Sequence[int], Tensor]] = (),
        tops: RowTops | None = None,
    ) -> None:
        self.forest = forest
        self.params = params
        self._logits = logits
        self._edit = edit
        self._hidden = hidden
        self.read = read
        self._tops = tops
        self._probs: dict[int, Tensor] = {}
        self._leading: dict[int, Leading] = {}
        self._best: list[int] | None = None  # of each fresh node
        self._drawn: dict[tuple[int, int], float] = {}  # log T∘p of (node, token) that was drawn from the logits
        self._address: int | None = None  # of the logits; 0: PyTorch reads them

    def logits(self, nodes: Sequence[int]) -> Tensor:
        """Untouched logits [len(nodes), V]."""
        first, end = nodes[0], nodes[-1] + 1
        fresh = self.forest.fresh
        if first >= fresh and list(nodes) == list(range(first, end)):  # a view costs less than an index
            return self._logits[first - fresh : end - fresh]
        return torch.stack([self.row(node).logits for node in nodes])

    def normalised(self, nodes: Sequence[int]) -> list[LogitsRow]:
        """As `normalised` of the untouched logits after some nodes."""
        return normalised([self.row(node) for node in nodes])

    def normalised_edited(self, nodes: Sequence[int]) -> list[LogitsRow]:
        """The same of the edited logits."""
        if self._edit is None:
            return self.normalised(nodes)
        return as_rows(torch.log_softmax(self.edited(nodes), -1))

    def row(self, node: int) -> LogitsRow:
        """Untouched logits after a node."""
        row = node - self.forest.fresh
        if row < 0:
            return self.forest.known[node]
        return LogitsRow(self._logits[row], None if self._tops is None else self._tops.log_sums[row])

    def edited(self, nodes: Sequence[int]) -> Tensor:
        """Logits [len(nodes), V] after penalties and biases."""
        logits = self.logits(nodes)
        return logits if self._edit is None else self._edit(logits, self.forest, nodes)

    def leading(self, node: int, count: int) -> Leading:
        """The `count` most probable tokens or more by the untouched logits after a node, or all that are possible."""
        found = self._leading.get(node)
        if found is None or len(found.tokens) < count <= self._logits.shape[-1]:
            forest = self.forest  # all that are fresh are wanted soon, and one call takes less
            fresh = range(forest.fresh, len(forest)) if found is None and node >= forest.fresh else ()
            nodes = [one for one in fresh if one not in forest.finished] or [node]
            self._leading.update(zip(nodes, self._leading_of(nodes, count), strict=True))
            found = self._leading[node]
        return found

    def _leading_of(self, nodes: Sequence[int], count: int) -> list[Leading]:
        known = self._tops.leading if self._tops is not None and nodes[0] >= self.forest.fresh else ()
        if known and len(known[0][0]) >= count:
            return [rows.leading_of(self.row(node), *known[node - self.forest.fresh]) for node in nodes]
        return rows.leading(self.normalised(nodes), max(count, LEADING))

    @property
    def leads(self) -> int:
        """How many of the leading tokens it is worth to ask the model for: some, where they were asked for."""
        return LEADING if self._leading else 0

    def leading_edited(self, nodes: Sequence[int]) -> Callable[[int], list[Leading]]:
        """A function that gives as many as it is asked for by the edited logits after some nodes."""
        if self._edit is None:
            return lambda count: [self.leading(node, count) for node in nodes]
        edited = self.normalised_edited(nodes)
        return lambda count: rows.leading(edited, count)

    @property
    def edits(self) -> bool:
        """Whether logits are edited before the temperature."""
        return self._edit is not None

    def prepare(self, nodes: Sequence[int]) -> None:
        """Compute T∘p after several nodes in one go, with the same bits, for less than one after the other.

        Where logits are edited each waits for its turn: a grammar has a word on what is asked for.
        """
        if self._edit is None and self._start(nodes[0]) is None:
            self._probs.update(zip(nodes, warped(self.logits(nodes), self.params), strict=True))

    def probs(self, node: int) -> Tensor:
        """T∘p after a node [V], the distribution that is decoded."""
        result = self._probs.get(node)
        if result is None and self._untouched and (start := self._start(node)) is not None:
            result = self._probs[node] = rows.softmax_at(start, self._logits.shape[-1], self.params.temperature)
        if result is None:
            result = self._probs[node] = warp(self.edited([node])[0], self.params)
        return result

    @property
    def _untouched(self) -> bool:
        """Whether T∘p is the softmax of the model's logits over the temperature."""
        return self._edit is None and not self.params.truncates and not self.params.greedy

    def prob(self, node: int, token: int) -> float:
        """T∘p of a token after a node."""
        return math.exp(self.logprobs([(node, token)])[0]) if self._summed(node) else element(self.probs(node), token)

    def _summed(self, node: int) -> bool:
        """Whether T∘p after a node is the softmax of the model's logits, whose sum the model has told."""
        return self._untouched and self.params.temperature == 1 and self._start(node) is not None

    def draw(self, node: int, u: float) -> int:
        """The token of T∘p after a node at u in [0, 1), as `draw` has it."""
        if node in self._probs or not self._untouched or (start := self._start(node)) is None:
            return draw(self.probs(node), u)
        assert self._tops is not None
        best, size = self._tops.best[node - self.forest.fresh], self._logits.shape[-1]
        token, log_prob = rows.draw_logits(start, size, best, self.params.temperature, u)
        self._drawn[node, token] = log_prob
        return token

    def _start(self, node: int) -> int | None:
        """Where the untouched logits after a node lie, if a model of the native library has made them."""
        row = node - self.forest.fresh
        if row < 0 or self._tops is None:
            return None
        if self._address is None:
            self._address = rows.address(self._logits) or 0
        return self._address + 4 * row * self._logits.shape[-1] if self._address else None

    def logprobs(self, edges: Sequence[tuple[int, int]]) -> list[float]:
        """The log-probability of each (node, token) by the untouched logits after the node."""
        result = []
        for node, token in edges:
            if (start := self._start(node)) is None:
                break
            assert self._tops is not None
            result.append(rows.number(start, token) - self._tops.log_sums[node - self.forest.fresh])
        else:
            return result
        nodes = list(dict.fromkeys(node for node, _ in edges))
        by_node = dict(zip(nodes, self.normalised(nodes), strict=True))
        return [log_prob(by_node[node], token) for node, token in edges]

    def log_prob(self, node: int, token: int) -> float:
        """log T∘p of a token after a node; -inf where it is impossible."""
        if (drawn := self._drawn.get((node, token))) is not None:
            return drawn
        if self._summed(node):
            return self.logprobs([(node, token)])[0]
        prob = element(self.probs(node), token)
        return math.log(prob) if prob > 0 else -math.inf

    def best(self, node: int) -> int:
        """The most probable token after a node, the first among ties: greedy decoding."""
        row = node - self.forest.fresh
        if self._edit is not None or row < 0:
            return best(self.edited([node]))[0]
        if self._tops is not None:
            return self._tops.best[row]
        if self._best is None:  # of all rows at once, which costs hardly more than one
            self._best = best(self._logits)
        return self._best[row]

    def hidden(self, node: int) -> Tensor | None:
        """The hidden state [D] after a fresh node that the head read, where the run asked for it."""
        row = node - self.forest.fresh
        return self._hidden[row] if self._hidden is not None and row >= 0 else None

    def fresh(self) -> dict[int, LogitsRow]:
        """The logits of each fresh node whose sequence goes on."""
        nodes = range(self.forest.fresh, len(self.forest))
        return {node: self.row(node) for node in nodes if node not in self.forest.finished}


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
        self._position = 0
        self._counter: dict[str, int] = {}  # of the purposes that this round has used
        self._arrivals: dict[int, Tensor] = {}

    def at(self, position: int) -> None:
        """Begin the round whose root stands at `position`."""
        self._position = position
        self._counter.clear()
        if self._arrivals:
            self._arrivals = {at: times for at, times in self._arrivals.items() if at >= position}

    def _next(self, purpose: str) -> int:
        before = self._counter.get(purpose)
        if before is None:
            before = _mix((self._keys[purpose] + self._position * 0xD1342543DE82EF95) & MASK64)
        state = self._counter[purpose] = (before + 0x9E3779B97F4A7C15) & MASK64
        return _mix(state)

    def uniform(self, purpose: str) -> float:
        """The stream's next number in [0, 1), with 48 random bits so that u * total stays below total."""
        return (self._next(purpose) >> 16) * 2.0**-48

    def arrivals(self, position: int, size: int, device: torch.device) -> Tensor:
        """Independent Exp(1) numbers [size], float32, of the tokens that may stand at `position`.

        The same for target and every draft. The token whose p / arrival is largest follows p: it is the one of largest
        log p + Gumbel noise, the noise being -log(arrival).
        """
        times = self._arrivals.get(position)
        if times is None or times.shape[0] != size:
            key = _mix((self._keys["noise"] + position * 0xD1342543DE82EF95) & MASK64)
            bits = np.random.SFC64(key).random_raw((size + 1) // 2).view(np.uint32)[:size]
            u = torch.from_numpy(bits.astype(np.float32)).add_(0.5).mul_(2.0**-32)  # the small ones are the finest
            times = self._arrivals[position] = u.clamp_(max=1 - 2.0**-24).neg_().log1p_().neg_().to(device)
        return times


def draw(probs: Tensor, u: float) -> int:
    """Inverse-CDF draw from weights [V] >= 0 of any sum, with u in [0, 1); a token of weight 0 is never drawn."""
    return draws(probs, [u])[0]


def draws(probs: Tensor, us: Sequence[float]) -> list[int]:
    """`draw` for several u, which share the sums."""
    if (tokens := rows.draws(probs, us)) is not None:
        return tokens
    if len(probs) > FEW:
        weights = Weights(probs)
        return [weights.draw(u) for u in us]
    sums = list(accumulate(probs.tolist()))
    if not 0 < (whole := sums[-1]) < math.inf:
        raise NonFiniteError(rows.NOT_FINITE)
    return [bisect_right(sums, min(u * whole, math.nextafter(whole, 0.0))) for u in us]


def draw_iid(probs: Iterable[Tensor], count: int, streams: Streams) -> list[list[int]]:
    """`count` independent draws from each row of probs [n, V], in drawn order."""
    return [draws(row, [streams.uniform("draft") for _ in range(count)]) for row in probs]


def draw_distinct(probs: Iterable[Tensor], count: int, streams: Streams, purpose: str = "draft") -> list[list[int]]:
    """Up to `count` draws without replacement from each row of probs [n, V], in drawn order.

    A row with fewer than `count` tokens of positive probability gives them all.
    """
    drawn: list[list[int]] = []
    for row in probs:
        weights, tokens = Weights(row), list[int]()
        while len(tokens) < count and weights.mass > 0:
            tokens.append(weights.draw(streams.uniform(purpose)))
            weights.remove(tokens[-1])
        drawn.append(tokens)
    return drawn
