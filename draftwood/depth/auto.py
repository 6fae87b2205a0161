"""Depth and width by what drafts are worth at the present load: the default of chains and trees.

Learns from rounds: of all requests of an engine and method, or of its own where texts must repeat. No randomness.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth.load import ALONE, Load
from draftwood.depth.rules import LOAD, LOGITS, DepthController, Growth
from draftwood.depth.stopping import PRIOR, PRIOR_WEIGHT, WEIGHT, Experience, Path
from draftwood.sampling import Streams

TRIED = 0.01  # share of the time that drafting is tried with where it does not pay
LEAST, MOST = 8, 4096  # rounds between two such trials


@dataclass(slots=True)
class Places:
    """Discounted acceptance by place among siblings, of draws whose earlier siblings were rejected."""

    taken: list[float] = field(default_factory=list)
    met: list[float] = field(default_factory=list)
    idle: int = 0  # rounds without drafts since the last one with drafts

    def add(self, round_: Round, discount: float) -> None:
        """Add a round's layers; those of beams, whose siblings are not told, count as one draw each."""
        self.taken, self.met = [discount * n for n in self.taken], [discount * n for n in self.met]
        layers = round_.siblings or [(int(i >= round_.depth_accepted), 1) for i in range(round_.attempted)]
        for place, draws in layers:
            more = [0.0] * (draws - len(self.met))
            self.taken, self.met = self.taken + more, self.met + more
            for i in range(min(place + 1, draws)):
                self.met[i] += 1
            if place < draws:
                self.taken[place] += 1

    def chances(self, most: int) -> list[float]:
        """That one of 0, 1, ... `most` siblings is accepted; a later place is half as likely until it was met."""
        found, rest, guess, weight = [0.0], 1.0, PRIOR, PRIOR_WEIGHT
        for i in range(most):
            taken, met = (self.taken[i], self.met[i]) if i < len(self.met) else (0.0, 0.0)
            chance = (taken + weight * guess) / (met + weight)
            rest *= 1 - chance
            found.append(1 - rest)
            guess, weight = chance / 2, WEIGHT
        return found


@dataclass(slots=True)
class Auto(DepthController):
    """Draft on while that raises the tokens per second of the machine (runtime.md §3).

    A round is planned before it begins: of all trees `widths` with at most so many children per node, and all depths,
    the one with the most tokens per second, lambda, if all requests that decide like this one choose the same and
    layers are accepted as they were before. Then, before each layer, go on if some number of layers more yields more
    than lambda for its time: (reach of the path so far) x (chances of the next layers) > lambda x (their seconds),
    where reach and the next layer's chance follow from the draft's probabilities of what was drafted (`Path`).

    Nothing depends on tokens that are not drawn yet, so the law of the output stays as it is at any load. Where
    drafting does not pay it is tried now and then, with a hundredth of the time.
    """

    most: int
    widths: tuple[int, ...] = (1,)  # children per node, layer by layer; the last one repeats
    roots: int = 1  # nodes that the first layer hangs on, or beams
    discount: float = 0.99
    shared: bool = True
    places: Places = field(default_factory=Places)
    seen: Experience = field(default_factory=Experience)
    needs: frozenset[str] = LOGITS | LOAD
    _path: Path = field(init=False, default_factory=Path)
    _widths: list[int] = field(init=False, default_factory=list)  # of the round's plan
    _seconds: list[float] = field(init=False, default_factory=list)  # of a step with 0, 1, ... layers
    _chances: list[float] = field(init=False, default_factory=list)  # of a layer, by its width
    _rate: float = field(init=False, default=0.0)  # lambda
    _tries: bool = field(init=False, default=False)

    def for_request(self) -> Auto:
        return replace(self)

    def repeatable(self) -> Auto:
        """The same for a request whose text depends on its drafts: decided by its own rounds and nominal costs."""
        return replace(self, shared=False, needs=self.needs - LOAD)

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self._path = Path.begin(self.seen)
        self._chances = chances = self.places.chances(max(self.widths))
        full = [self.widths[min(layer, len(self.widths) - 1)] for layer in range(self.most)]
        self._rate = 0.0
        for cap in sorted(set(self.widths)):
            widths = [min(cap, width) for width in full]
            layers, rows = [], self.roots
            for width in widths:
                rows *= width
                layers.append(rows)
            seconds = load.seconds(layers)
            tokens, reach = load.tokens + 1, 1.0
            for depth in range(self.most + 1):
                if depth:
                    reach *= chances[widths[depth - 1]]
                    tokens += reach
                if tokens > self._rate * seconds[depth]:
                    self._rate = tokens / seconds[depth]
                    self._widths, self._seconds = widths, seconds
        price = (load.draft(1) + self._seconds[min(1, self.most)] - self._seconds[0]) / self._seconds[0]
        self._tries = self.places.idle >= min(MOST, max(LEAST, price / TRIED))

    def deeper(self, growth: Growth) -> bool:
        path, depth = self._path, growth.depth
        chance = path.follow(growth)
        if depth >= self.most or not ((self._tries and not depth) or self._pays(depth, path.reach * chance)):
            return False
        path.asked = depth + 1
        return True

    def _pays(self, depth: int, reach: float) -> bool:
        """Whether some number of layers more is worth its time; `reach`: the chance that the next one is accepted."""
        seconds, gain = self._seconds, 0.0
        for layer in range(depth, self.most):
            gain += reach
            if gain > self._rate * (seconds[layer + 1] - seconds[depth]):
                return True
            reach *= self._chances[self._widths[min(layer + 1, self.most - 1)]]
        return False

    def width(self, most: int) -> int:
        return min(most, self._widths[self._path.asked - 1])

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        if not round_.attempted:
            self.places.idle += 1
            return
        self.places.idle = 0
        self.places.add(round_, self.discount)
        self._path.learn(round_, self.seen, self.discount)
