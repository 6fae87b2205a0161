"""Depth of beams by what their drafts are worth: the default of methods that draft layers of beams.

- Known: what passes cost at the load (`Load`), and how sure the draft is of a layer, before it is drawn.
- Estimated: how often layers stand by how sure the draft was of them, and what rounds have gained that drafted with the
  model, or with the memory alone (`draft.row_memory`).
- Decided: whether a round drafts with the model, with the memory alone or not at all, and each layer once its
  distribution is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise

from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth.acceptance import CONFIDENCE_BINS, ConfidenceRates, bin_of
from draftwood.depth.load import ALONE, READ_SECONDS, Load
from draftwood.depth.rules import LOAD, DepthController, DraftState
from draftwood.sampling.distributions import Streams

STANDING_RATES = (0.02, 0.08, 0.12, 0.26, 0.33, 0.45, 0.58, 0.74, 0.3)  # by how sure the draft is, of SmolLM2's beams
KNOWN_SHARE = 0.8  # of a layer that fails: rows that are known in the next round, and make its drafts surer
OLDER = 0.99  # what older rounds count for, for each later one
GUESS_ROUNDS = 60.0  # that a first guess counts for
WORTH_ROUNDS = 60.0  # that what others gained counts for, to a request that goes by its own
MEMORY_WORTH = 0.06  # tokens that the memory's drafts are held to gain in a round, but for the time that it takes
MODEL_WORTH = 0.1  # the same of a model's
MEMORY_SECONDS = 2e-4  # what the memory takes of a round
LAYER_SECONDS = 3e-4  # what a drafted layer takes beside its rows, where that is not measured
GUESS_LAYERS = 10.0  # that the guess of a layer's beams counts for
CHEAP_READING = 0.005  # of the time of a round
OTHER_ROUNDS = 16  # of so many rounds one goes another way than the one that has gained most


class Way(IntEnum):
    """How a round drafts."""

    REST = 0
    MEMORY = 1
    MODEL = 2


@dataclass(slots=True)
class Mean:
    """A mean of numbers seen, of which older ones count less."""

    weight: float = 0.0
    total: float = 0.0

    def add(self, number: float) -> None:
        """Count a number."""
        self.weight = OLDER * self.weight + 1
        self.total = OLDER * self.total + number

    def mean(self, guess: float, weight: float) -> float:
        """The mean; the guess counts for so many numbers."""
        return (self.total + weight * guess) / (self.weight + weight)


@dataclass(slots=True)
class BeamEvidence:
    """The outcomes of rounds so far: those of a request while it runs alone, or of all requests that run at once."""

    standing: ConfidenceRates = field(default_factory=ConfidenceRates)
    worth: dict[Way, Mean] = field(default_factory=lambda: {Way.MEMORY: Mean(), Way.MODEL: Mean()})  # tokens of a round
    breadth: Mean = field(default_factory=Mean)  # beams of a drafted layer, over those that it was held to have
    rounds: int = 0


@dataclass(slots=True)
class AutoBeams(DepthController):
    """Draft a layer of beams where it saves more time than it takes.

    A layer stands if all beams that the target goes on with were drafted. A layer that stands saves a round; of one
    that fails the drafts among the next beams have their rows already. So with R the chance that all layers before
    stand and P the chance of the layer itself, it is drafted if, in the time of a round without drafts,

        R P  >  (its time) (1 - R (1 - P) KNOWN_SHARE).

    P is that of earlier layers of which the draft was about as sure; its time is that of as many rows as earlier layers
    had beams, and of what goes beside a layer's rows. Whose rounds count is as in `Auto`; so is what is
    nominal where texts must repeat. No decision depends on a token that is not drawn yet.
    """

    most: int
    roots: int = 1  # drafted beams of a layer
    hypotheses: int = 1  # beams that a round begins with
    model: bool = True  # whether a model drafts
    memory: bool = True  # whether the memory does, alone or beside the model
    shared: bool = True  # whether requests learn together and follow the load
    discount: float = 0.99
    shared_evidence: BeamEvidence = field(default_factory=BeamEvidence)
    needs: frozenset[str] = LOAD
    own_evidence: BeamEvidence = field(init=False, default_factory=BeamEvidence)
    _evidence: BeamEvidence = field(init=False, default_factory=BeamEvidence)  # which the round goes by
    _load: Load | None = field(init=False, repr=False, compare=False, default=None)
    _way: Way = field(init=False, default=Way.REST)
    _prices: list[float] = field(init=False, default_factory=list)  # of each layer's rows, in rounds without drafts
    _handling: float = field(init=False, default=0.0)  # price of a layer beside its rows, likewise
    _breadth: float = field(init=False, default=1.0)  # beams of a layer, over `roots`
    _asking: float = field(init=False, default=0.0)  # price of asking the model for a layer, likewise
    _searching: float = field(init=False, default=0.0)  # price of asking the memory, likewise
    _round_seconds: float = field(init=False, default=1.0)  # of one without drafts
    _reading: float = field(init=False, default=0.0)  # price of having the target show what the model reads, likewise
    _chances: list[float] = field(init=False, default_factory=list)  # of a layer, by how sure the draft is
    _bins: list[int] = field(init=False, default_factory=list)  # of the layers that the round drafts
    _reach: float = field(init=False, default=1.0)  # chance that these stand
    _begun: bool = field(init=False, default=False)  # whether the model has drafted
    _asked: int = field(init=False, default=0)  # layers that the model was asked for

    def for_request(self) -> AutoBeams:
        return replace(self)

    def repeatable(self) -> AutoBeams:
        """A controller for a request whose text depends on its drafts: by its own rounds and nominal costs alone."""
        return replace(self, shared=False, needs=self.needs - LOAD)

    # -- what is decided -----------------------------------------------------------------------------------------------

    @property
    def rests(self) -> bool:
        return self._way == Way.REST

    @property
    def prepares(self) -> bool:
        """Where a model drafts, or where rounds without it take next to nothing for it to begin later."""
        return self.asks or (self.model and self._reading <= CHEAP_READING)

    @property
    def asks(self) -> bool:
        return self._way == Way.MODEL

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        evidence = self._evidence = self.own_evidence if load.drafting == 1 else self.shared_evidence
        evidence.rounds += 1
        if load is not self._load or evidence.rounds % OTHER_ROUNDS == 0:
            self._price(load)
        self._load = load
        self._bins, self._reach, self._asked = [], 1.0, 0
        guesses: Sequence[float] = STANDING_RATES
        if self.shared and evidence is self.own_evidence:
            guesses = self.shared_evidence.standing.chances(STANDING_RATES)
        self._chances = evidence.standing.chances(guesses)
        self._breadth = evidence.breadth.mean(1.0, GUESS_LAYERS)
        self._way = self._best_way(evidence, load)

    def _price(self, load: Load) -> None:
        """The prices at a load."""
        drafts, passes = load.steps([self.roots] * self.most)
        self._prices = [(after - before) / passes[0] for before, after in pairwise(passes)]
        self._handling = 0.0 if self.shared else LAYER_SECONDS / passes[0]
        self._asking = drafts[1] / passes[0] if self.most and self.model else 0.0
        self._searching = MEMORY_SECONDS / passes[0] if self.memory else 0.0
        self._round_seconds, self._reading = passes[0], READ_SECONDS / passes[0]

    def _best_way(self, evidence: BeamEvidence, load: Load) -> Way:
        """The way that has gained most, and now and then the next best."""
        worth = {Way.REST: 0.0}
        for way in [Way.MEMORY] * self.memory + [Way.MODEL] * self.model:
            guess = MEMORY_WORTH - self._searching if way == Way.MEMORY else MODEL_WORTH - self._asking
            if self.shared and evidence is self.own_evidence:
                guess = self.shared_evidence.worth[way].mean(guess, GUESS_ROUNDS)
            worth[way] = evidence.worth[way].mean(guess, WORTH_ROUNDS)
        best, *others = sorted(worth, key=lambda way: -worth[way])
        way = next(filter(None, others), best) if evidence.rounds % OTHER_ROUNDS == 0 else best
        if way == Way.MODEL and self._too_late(worth, load):
            return Way.MEMORY if self.memory and worth[Way.MEMORY] > 0 else Way.REST
        return way

    def _too_late(self, worth: dict[Way, float], load: Load) -> bool:
        """Whether what the model must read before it can draft takes longer than it may still gain.

        A request whose text must repeat asks that until the model has begun: what is read then differs from run to run.
        """
        if self._way == Way.MODEL or (self._begun and not self.shared):  # it has read almost all
            return False
        rounds = load.tokens_left() * max(0.0, worth[Way.MODEL] - max(0.0, worth.get(Way.MEMORY, 0.0)))
        return load.catch_up_seconds() > rounds * self._round_seconds

    def deeper(self, state: DraftState) -> bool:
        """Whether a layer may pay, as far as is known before its distribution is."""
        if self.rests or state.depth >= self.most:
            return False
        goes_on = self._pays(len(self._bins), max(self._chances), self._asking if self.asks else 0.0)
        self._asked += goes_on and self.asks
        self._begun |= goes_on and self.asks
        return goes_on

    def keeps(self, sureness: Callable[[float], float]) -> bool:
        paying = [bin_ for bin_ in range(CONFIDENCE_BINS) if self._pays(len(self._bins), self._chances[bin_])]
        if not paying or (bin_ := bin_of(sureness(paying[0] / CONFIDENCE_BINS))) not in paying:
            return False
        self._bins.append(bin_)
        self._reach *= self._chances[bin_]
        return True

    def _pays(self, layer: int, chance: float, more: float = 0.0) -> bool:
        stands = self._reach * chance
        return stands > more + self._price_of(layer) * (1 - (self._reach - stands) * KNOWN_SHARE)

    def _price_of(self, layer: int) -> float:
        return self._handling + self._breadth * self._prices[layer]

    # -- what is learned -----------------------------------------------------------------------------------------------

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        if self.rests:
            return
        stood = min(round_.depth_accepted, len(self._bins))
        gained = stood - self._asked * self._asking - self._searching
        for layer in range(len(self._bins)):
            gained -= self._price_of(layer) * (1 - KNOWN_SHARE * (layer == stood))
        both = self.shared and self._evidence is self.own_evidence
        for evidence in (self._evidence, self.shared_evidence) if both else (self._evidence,):
            evidence.standing.fade(self.discount)
            for layer, bin_ in enumerate(self._bins[: stood + 1]):
                evidence.standing.add(bin_, layer < stood)
            evidence.worth[self._way].add(gained)
            if self._bins:
                evidence.breadth.add(round_.drafted / (self.roots * len(self._bins)))
