"""Rates of acceptance, estimated from verified drafts: by the draft's confidence, and by the number of siblings.

Rates fade: with a discount d a trial that is n rounds old counts d^n. Instead of every old trial being made smaller,
the unit in which new ones are counted grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwood.core.records import Round
from draftwood.depth.rules import DraftState

CONFIDENCE_BINS = 8
UNKNOWN_BIN = CONFIDENCE_BINS  # of layers whose confidence is not known, and of what stands before a first layer
PRIOR_RATE = 0.7  # acceptance before anything was seen: rather high, so that drafting is tried
PRIOR_TRIALS = 4.0  # trials that such a guess counts for
MEASURED_TRIALS = 24.0  # the same of what was measured in training, for a request that learns of its own rounds alone
MAX_RATE = 0.985  # of a guess
MAX_UNIT = 1e100  # of new trials, beyond which all counts are divided by it


def guessed_rates(at_zero: float, slope: float) -> list[float]:
    """Acceptance by bin of confidence before any trial, on a line; PRIOR_RATE where the confidence is not known."""
    return [min(MAX_RATE, at_zero + slope * (i + 0.5) / CONFIDENCE_BINS) for i in range(CONFIDENCE_BINS)] + [PRIOR_RATE]


GREEDY_RATES = guessed_rates(0.1, 1.0)  # of a draft's best tokens: about their confidence (EAGLE-2, Li et al. 2024)
SAMPLED_RATES = guessed_rates(0.4, 0.6)  # of drawn tokens, which the target may find as unlikely as the draft did


def bin_of(confidence: float) -> int:
    """The bin of a confidence in [0, 1]."""
    return min(CONFIDENCE_BINS - 1, int(confidence * CONFIDENCE_BINS))


@dataclass(slots=True)
class ConfidenceRates:
    """Discounted counts of trials and acceptances, by bin of confidence."""

    accepted: list[float] = field(default_factory=lambda: [0.0] * (CONFIDENCE_BINS + 1))
    tried: list[float] = field(default_factory=lambda: [0.0] * (CONFIDENCE_BINS + 1))
    unit: float = 1.0  # what a trial counts for now

    def add(self, bin_: int, accepted: bool) -> None:
        """Count a trial."""
        self.tried[bin_] += self.unit
        if accepted:
            self.accepted[bin_] += self.unit

    def fade(self, discount: float) -> None:
        """Let all trials so far count less by the factor `discount`."""
        self.unit /= discount
        if self.unit > MAX_UNIT:
            self.accepted, self.tried = ([n / self.unit for n in each] for each in (self.accepted, self.tried))
            self.unit = 1.0

    def rate(self, prior: float = PRIOR_RATE) -> float:
        """Acceptance over all bins, with the prior."""
        weight = PRIOR_TRIALS * self.unit
        return (sum(self.accepted) + weight * prior) / (sum(self.tried) + weight)

    def chances(
        self, guesses: Sequence[float] = (), prior: float = PRIOR_RATE, trials: float = PRIOR_TRIALS
    ) -> list[float]:
        """Acceptance by bin, pulled towards a guess for each, which counts for so many trials.

        Without guesses a bin is pulled towards the rate of all other bins.
        """
        bins, weight = list(zip(self.accepted, self.tried, strict=True)), trials * self.unit
        accepted, tried = sum(self.accepted) + weight * prior, sum(self.tried) + weight
        guesses = guesses or [(accepted - a) / (tried - n) for a, n in bins]
        return [(a + weight * guess) / (n + weight) for (a, n), guess in zip(bins, guesses, strict=True)]


@dataclass(slots=True)
class LayerRates:
    """Acceptance of drafted layers by the draft's confidence: in the layer itself, and in the layer before it.

    The first is known once a layer is drafted, the second before it is.
    """

    own: ConfidenceRates = field(default_factory=ConfidenceRates)
    next: ConfidenceRates = field(default_factory=ConfidenceRates)


@dataclass(slots=True)
class SiblingAcceptance:
    """Discounted acceptance by place among siblings, where all before were rejected: what another sibling is worth."""

    taken: list[float] = field(default_factory=list)
    met: list[float] = field(default_factory=list)
    unit: float = 1.0  # what a draw counts for now

    def add(self, round_: Round, discount: float, by_model: Sequence[bool] = ()) -> None:
        """Add the layers of a round; of beams, which do not tell siblings apart, each counts as one draw.

        Layers that `by_model` marks as drafted by lookup alone are left out.
        """
        self.unit /= discount
        if self.unit > MAX_UNIT:
            self.taken, self.met = ([n / self.unit for n in each] for each in (self.taken, self.met))
            self.unit = 1.0
        layers = round_.siblings or [(int(i >= round_.depth_accepted), 1) for i in range(round_.attempted)]
        for layer, (place, draws) in enumerate(layers):
            if layer < len(by_model) and not by_model[layer]:
                continue
            for counts in (self.taken, self.met):
                counts += [0.0] * (draws - len(counts))
            for i in range(min(place + 1, draws)):
                self.met[i] += self.unit
            if place < draws:
                self.taken[place] += self.unit

    def chances(self, max_width: int, prior: float = PRIOR_RATE, trials: float = PRIOR_TRIALS) -> list[float]:
        """The chance that one of 0, 1, ... `max_width` siblings is accepted; the prior counts for so many trials.

        A place that was never met is held to be half as likely as the one before.
        """
        chances, none_accepted, guess, weight = [0.0], 1.0, prior, trials * self.unit
        for i in range(max_width):
            taken, met = (self.taken[i], self.met[i]) if i < len(self.met) else (0.0, 0.0)
            chance = (taken + weight * guess) / (met + weight)
            none_accepted *= 1 - chance
            chances.append(1 - none_accepted)
            guess = chance / 2
        return chances


@dataclass(slots=True)
class RoundPath:
    """The layers that a round has drafted so far, and the chance that all of them are accepted.

    A layer's chance is that of earlier layers of about the same confidence; the confidence of a layer is the draft's
    probability of its token, in trees and beams the largest. The next layer's chance is that of layers behind one of
    the last layer's confidence. What lookup drafts alone has the chances that lookup gives, and teaches nothing of the
    draft model.
    """

    own: Sequence[float] = ()  # chances by confidence
    next: Sequence[float] = ()  # chances by the confidence of the layer before
    by_model: list[bool] = field(default_factory=list)  # for each layer that was agreed to: whether a model drafts it
    reach: float = 1.0  # chance that all drafted layers are accepted
    _bins: list[int] = field(default_factory=list)  # of the layers that were drafted

    def agree(self, state: DraftState) -> None:
        """The layer after `state` is to be drafted."""
        self.by_model.append(not state.ahead)

    def next_chance(self, state: DraftState) -> float:
        """The chance that the layer after `state` is accepted if all before are; takes note of the last layer."""
        last = UNKNOWN_BIN
        if state.depth:
            if self.by_model[state.depth - 1]:
                confidences = state.confidences()
                last = bin_of(max(confidences)) if confidences else UNKNOWN_BIN
                self.reach *= self.own[last]
            else:
                self.reach *= state.chances[0]
            self._bins.append(last)
        return state.ahead[0] if state.ahead else self.next[last]

    def learn(self, round_: Round, rates: LayerRates, discount: float) -> None:
        """Add to `rates` which layers were accepted."""
        rates.own.fade(discount)
        rates.next.fade(discount)
        for layer, by_model in zip(range(round_.attempted), self.by_model, strict=False):
            accepted = layer < round_.depth_accepted
            if not by_model:
                continue
            if layer < len(self._bins):
                rates.own.add(self._bins[layer], accepted)
            if layer <= len(self._bins):
                rates.next.add(self._bins[layer - 1] if layer else UNKNOWN_BIN, accepted)
