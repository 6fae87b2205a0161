"""Depth by a confidence threshold that follows the acceptance rate: Draft & Verify's adaptive draft exiting.

Learns from the request's own rounds only; no randomness, no time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth.load import ALONE, Load
from draftwood.depth.rules import LOGITS, DepthController, DraftState
from draftwood.sampling.distributions import Streams


@dataclass(slots=True)
class AdaptiveConfidence(DepthController):
    """Stop when the draft's probability of its last token is below a threshold that is moved towards a wanted rate.

    After a round that drafted k layers, a of them accepted (Zhang et al. 2023, "Draft & Verify", adaptive exiting):

        AR <- rate_memory AR + (1 - rate_memory) a / k
        wanted <- threshold + step if AR < target, else threshold - step
        threshold <- memory threshold + (1 - memory) wanted

    so a rate below `target` makes drafting more careful. As in the authors' program the threshold stays where it is
    when the rate is high enough and all `most` layers were drafted: a lower one would change nothing. AR starts at
    `target`, which favours no direction (the program starts at 0). The threshold is kept within [0, 1].
    Of trees and beams the most probable node of the last layer counts, as in `Confidence`.
    """

    most: int
    threshold: float = 0.6
    target: float = 0.9
    step: float = 0.01
    rate_memory: float = 0.5
    memory: float = 0.9
    needs: frozenset[str] = LOGITS
    rate: float = field(init=False)
    _asked: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.rate = self.target

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self._asked = 0

    def deeper(self, state: DraftState) -> bool:
        if state.depth >= self.most:
            return False
        confidences = state.confidences()
        if confidences and max(confidences) < self.threshold:
            return False
        self._asked = state.depth + 1
        return True

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        drafted = max(self._asked, round_.depth_accepted)
        if not round_.attempted or not drafted:
            return
        self.rate = self.rate_memory * self.rate + (1 - self.rate_memory) * round_.depth_accepted / drafted
        if self.rate < self.target:
            wanted = self.threshold + self.step
        elif drafted < self.most:
            wanted = self.threshold - self.step
        else:
            wanted = self.threshold
        self.threshold = min(1.0, max(0.0, self.memory * self.threshold + (1 - self.memory) * wanted))
