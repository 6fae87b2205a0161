"""The protocol of depth controllers, what they see of a draft, and the simplest one.

A controller only decides whether to draft one layer more: a token that was drafted stays in the forest, since dropping
it would bias the output. Of beams it may decide when the layer's distribution is known, before anything is drawn.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from draftwood.core.records import Round
from draftwood.core.row_tops import RowTops
from draftwood.depth.load import ALONE, Load
from draftwood.sampling.distributions import Streams
from draftwood.sampling.rows import element

NOTHING: frozenset[str] = frozenset()
LOGITS = frozenset({"logits"})
LOAD = frozenset({"load"})
UNCAPPED = 1023  # layers of a round that nothing but the controller bounds: what one forward can verify
STATES = frozenset({"hidden", "target"})  # what the heads of draft and target read


@dataclass(slots=True)
class DraftState:
    """The draft of a round when a controller is asked about it: layers so far, the last layer's nodes and logits.

    `logits` and `picked` are given when the controller needs anything of it, `hidden` when it needs 'hidden'; beams,
    which ask the draft of some nodes only, give no hidden states. The logits are the draft's before temperature and
    truncation, so that they say something in greedy decoding too. `drawn` has the probabilities that the picked tokens
    were drawn with, where all were drawn.

    Where lookup drafts, `chances` are its own that the last layer's drafts are accepted, and `ahead` those of the
    layers to come that it drafts alone.
    """

    depth: int
    nodes: Sequence[int] = ()
    logits: Tensor | None = None  # [n, V] that the last layer was drawn from
    picked: Sequence[tuple[int, int]] = ()  # (row of `logits`, token) of each node of the last layer that is not over
    hidden: Tensor | None = None  # [n, D] what the draft's head read for the same rows
    chances: Sequence[float] = ()
    ahead: Sequence[float] = ()
    drawn: Sequence[float] = ()
    tops: RowTops | None = None  # of the logits, where they are known

    def confidences(self) -> list[float]:
        """The draft's probability of each picked token, as drawn or of its softmax, and lookup's of its own."""
        return [*(self.drawn or self._confidences()), *self.chances]

    def _confidences(self) -> list[float]:
        if self.logits is None or not self.picked:
            return []
        if self.tops is not None:
            log_sums = self.tops.log_sums
            return [math.exp(element(self.logits[row], token) - log_sums[row]) for row, token in self.picked]
        if len(self.picked) == 1:  # the same without lists as indices, which cost more than the sums
            ((row, token),) = self.picked
            return [element(self.logits[row].softmax(-1), token)]
        rows, tokens = (list(each) for each in zip(*self.picked, strict=True))
        chances: list[float] = torch.softmax(self.logits, -1)[rows, tokens].tolist()
        return chances

    def entropies(self) -> list[float]:
        """Entropy, in nats, of the distribution that each picked token was drawn from."""
        if self.logits is None or not self.picked:
            return []
        log_q = torch.log_softmax(self.logits, -1).clamp_(min=-1e4)  # 0 log 0 is 0
        each: list[float] = (-(log_q.exp() * log_q).sum(-1)).tolist()
        return [each[row] for row, _ in self.picked]


class DepthController(Protocol):
    """Asked before each layer whether to draft it.

    `most` is how many layers a round may have. `needs` says what it reads: of `DraftState` 'logits' and 'hidden', of
    `Round` 'target', the target's hidden state, and 'load', the measured one, which changes from run to run.
    """

    most: int
    needs: frozenset[str]

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        """A round begins at a load; use only the stream 'depth'."""
        return None

    @property
    def rests(self) -> bool:
        """Whether the round has no layers, whatever the draft would say: nothing need be prepared to ask it."""
        return False

    @property
    def prepares(self) -> bool:
        """Whether a model may soon draft, so that what it reads of the target is asked for in this round, too."""
        return True

    def width(self, most: int) -> int:
        """Children of each node in the layer that was agreed to last, at most `most`."""
        return most

    def copies(self, chances: Sequence[float]) -> int:
        """How many tokens that lookup has found to draft before a model does; chances as in `DraftState.ahead`.

        Those before the place at which what was found most likely ends.
        """
        ends, reach = [], 1.0
        for chance in chances:
            ends.append(reach * (1 - chance))
            reach *= chance
        return max(range(len(chances) + 1), key=[*ends, reach].__getitem__)

    @property
    def asks(self) -> bool:
        """Whether the model that drafts beams is to be asked for the next layer; else the memory drafts it alone."""
        return True

    def keeps(self, sureness: Callable[[float], float]) -> bool:
        """Whether to draft the next layer of beams, whose distribution is known but none of its tokens is.

        `sureness(least)` is e^-H of its entropy H given the beam, in nats, or anything below `least` where that is.
        """
        return True

    @abstractmethod
    def deeper(self, state: DraftState) -> bool:
        """Whether to draft the layer after `state`."""

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        """A round ended; `state` [D] is what the target's head read at the end of the accepted path, if needed."""
        return None


@runtime_checkable
class Learner(DepthController, Protocol):
    """A controller that learns from rounds: of its own request or, where `shared`, of all requests of an engine."""

    shared: bool

    def for_request(self) -> DepthController:
        """A controller for another request that learns into the same posterior; what a round is about is its own."""


@dataclass(slots=True)
class Fixed(DepthController):
    """Draft `most` layers in every round."""

    most: int
    needs: frozenset[str] = NOTHING

    def deeper(self, state: DraftState) -> bool:
        return state.depth < self.most
