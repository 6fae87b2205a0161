"""Depth and width by what drafts are worth at the present load: the default of chains and trees.

Learns from rounds: of the request's own while it runs alone, else of all of an engine and method. No randomness.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import add
from statistics import fmean

from torch import Tensor

from draftwood.core.records import Round
from draftwood.depth.load import ALONE, Load
from draftwood.depth.rules import LOAD, LOGITS, DepthController, DraftState
from draftwood.depth.stopping import CONFIDENT, DRAWN, LARGEST, PRIOR, UNKNOWN, WEIGHT, Experience, Path
from draftwood.sampling.distributions import Streams

TRIED = 0.005  # share of the time that drafting is tried with where it does not pay
EAGER = 0.3  # the same before any trial
HOPELESS = 8  # times as seldom where drafts would not pay if all were accepted, unless costs were measured badly
OFTEN, PACES = 4, 16  # rounds with drafts that tell a request's pace; requests whose paces are remembered
AGE = 64  # rounds of each request that a plan is good for: those at once draft alike
PLANS = 64  # that are kept
FEW, SAME = 8, 0.02  # requests that begin with another one's plan, if what they expect differs by no more
COPIES = 1.5, 2.0  # copies that begin rightly, and those that lookup expects to, before any was tried
UNTRIED = 1.0  # tokens that models' drafts are held to be worth more before any was seen, beside what lookup finds
JOIN = 2  # times what a request saves that it may take to begin, where others draft with it
SURE = 0.02  # share of time that drafting must promise to save


@dataclass(slots=True)
class Places:
    """Discounted acceptance by place among siblings, of draws whose earlier siblings were rejected; as `Rates`."""

    taken: list[float] = field(default_factory=list)
    met: list[float] = field(default_factory=list)
    unit: float = 1.0  # what a draw counts for now

    def add(self, round_: Round, discount: float, drawn: Sequence[bool] = ()) -> None:
        """Add a round's layers, those of beams, whose siblings are not told, as one draw each.

        Without layers that are not `drawn` by a model.
        """
        self.unit /= discount
        if self.unit > LARGEST:
            self.taken, self.met = ([n / self.unit for n in each] for each in (self.taken, self.met))
            self.unit = 1.0
        layers = round_.siblings or [(int(i >= round_.depth_accepted), 1) for i in range(round_.attempted)]
        for layer, (place, draws) in enumerate(layers):
            if layer < len(drawn) and not drawn[layer]:
                continue
            for counts in (self.taken, self.met):
                counts += [0.0] * (draws - len(counts))
            for i in range(min(place + 1, draws)):
                self.met[i] += self.unit
            if place < draws:
                self.taken[place] += self.unit

    def chances(self, most: int, prior: float = PRIOR) -> list[float]:
        """That one of 0, 1, ... `most` siblings is accepted; a later place is half as likely until it was met."""
        found, rest, guess, weight = [0.0], 1.0, prior, WEIGHT * self.unit
        for i in range(most):
            taken, met = (self.taken[i], self.met[i]) if i < len(self.met) else (0.0, 0.0)
            chance = (taken + weight * guess) / (met + weight)
            rest *= 1 - chance
            found.append(1 - rest)
            guess = chance / 2
        return found


@dataclass(slots=True)
class Plan:
    """How rounds draft at a load: the fastest of some trees with at most so many children per node, and of all depths.

    Tokens per second of all requests are compared, where all that decide by this plan draft alike and their layers are
    accepted as they were before.
    """

    until: int  # number of the last round that it is good for
    own: list[float]  # chances of layers, see `Path`
    next: list[float]
    chances: list[float]  # of a layer, by its width
    uneven: float = 0.0  # relative deviation of the paces of requests, which are not done together then
    known: int = 0  # rounds with drafts that it was made after
    often: float = TRIED  # share of the time for trials
    counts: tuple[int, int, int] = ALONE.counts  # of the load
    prior: float = PRIOR
    served: int = 0  # requests that have begun with another one's
    price: float = math.inf  # of a trial, one draft by one request, in rounds without drafts
    widths: list[int] = field(init=False, default_factory=list)
    seconds: list[float] = field(init=False, default_factory=list)  # of a step with 0, 1, ... layers
    rate: float = field(init=False, default=0.0)  # lambda, tokens per second
    saves: float = field(init=False, default=0.0)  # seconds per token, where it drafts
    worth: float = field(init=False, default=0.0)  # tokens that a round with drafts yields beyond what its time would
    spent: dict[tuple[int, ...], tuple[list[float], list[float]]] = field(init=False, default_factory=dict)  # by `of`
    together: bool = field(init=False, default=True)  # see `Auto`
    least: dict[int, float] = field(init=False, default_factory=dict)  # depth -> reach of its layer that pays

    def of(self, load: Load, layers: Sequence[int], free: bool = False) -> list[float]:
        """Seconds of `Load.steps`, with what is lost at the end, where they are shared by few, and what is to be saved.

        Drafts are `free` where lookup makes them. If a step of n requests takes A + n B, all take A (most rounds of
        one) + B (sum of their rounds): late ones cost A, not the whole step. Of n draws the largest is expected at most
        (n - 1) / sqrt(2 n - 1) deviations above the mean (Gumbel 1954; Hartley and David 1954), and A / n is (step of
        one - share of a step) / (n - 1).
        """
        both = self.spent.get(key := tuple(layers))
        if both is None:
            late = self.uneven / math.sqrt(2 * load.drafting - 1)
            last = load if not late else load.last() if load.last is not None else replace(load, drafting=1)
            steps = [each.steps(layers) for each in ((load, last) if late else (load,))]
            both = self.spent[key] = (_stretched(steps, late, False), _stretched(steps, late, True))
        return both[free]

    def consider(self, widths: list[int], roots: int, load: Load) -> None:
        """Take a tree where one of its depths is faster than what was found before."""
        layers, rows = [], roots
        for width in widths:
            rows *= width
            layers.append(rows)
        seconds, tokens, reach = self.of(load, layers), load.tokens + 1, 1.0
        for depth, spent in enumerate(seconds):
            if depth:
                reach *= self.chances[widths[depth - 1]]
                tokens += reach
            if tokens > self.rate * spent:
                self.rate, self.widths, self.seconds = tokens / spent, widths, seconds
        plain = (load.tokens + 1) / seconds[0]
        self.saves = 1 / plain - 1 / self.rate
        self.worth = self.rate * seconds[0] - load.tokens - 1
        pays = any(load.tokens + 1 + depth > plain * spent for depth, spent in enumerate(seconds[1:], 1))
        if layers:
            self.price = min(self.price, (1 if pays else HOPELESS) * load.one / seconds[0])

    def pays(self, depth: int, reach: float, ahead: Sequence[float], load: Load) -> bool:
        """Whether some number of layers more is worth its time; `reach`: the chance that the next one is accepted.

        `ahead` are the chances of the layers that lookup has found from there on, if it drafts them alone.
        """
        if ahead:
            return reach > self._least(self.of(load, [1] * len(self.widths), free=True), depth, ahead)
        if depth not in self.least:
            self.least[depth] = self._least(self.seconds, depth, [self.chances[width] for width in self.widths[depth:]])
        return reach > self.least[depth]

    def _least(self, seconds: Sequence[float], depth: int, chances: Sequence[float]) -> float:
        """The reach of the next layer from which on it pays; `chances` of the layers from there on."""
        least, gain, reach = math.inf, 0.0, 1.0
        for layer, chance in enumerate(chances[: len(self.widths) - depth], depth):
            if layer > depth:
                reach *= chance
            gain += reach
            least = min(least, self.rate * (seconds[layer + 1] - seconds[depth]) / gain) if gain else least
        return least


def _stretched(steps: Sequence[tuple[list[float], list[float]]], late: float, free: bool) -> list[float]:
    """Seconds without layers, with the first, ... by the `steps` of all requests and, where some are late, of one."""
    plain, *mine = steps[0][1] if free else map(add, *steps[0])
    _, *ones = steps[-1][1] if free else map(add, *steps[-1])
    return [plain, *(s * (1 + SURE) + late * max(0.0, one - s) for s, one in zip(mine, ones, strict=True))]


@dataclass(slots=True)
class Pace:
    """Tokens of a request's rounds with drafts."""

    rounds: int = 0
    tokens: int = 0
    squares: int = 0

    def add(self, tokens: int) -> None:
        self.rounds, self.tokens, self.squares = self.rounds + 1, self.tokens + tokens, self.squares + tokens**2

    @property
    def mean(self) -> float:
        return self.tokens / self.rounds

    @property
    def luck(self) -> float:
        """Variance of the mean."""
        return (self.squares / self.rounds - self.mean**2) / (self.rounds - 1)


def deviation(paces: Sequence[Pace], left: float = math.inf) -> float:
    """Relative deviation of the requests' paces over `left` tokens, with the luck of so many; 0 where few are known."""
    if len(paces) < 2:
        return 0.0
    means = [pace.mean for pace in paces]
    mean, lucks = fmean(means), [pace.luck for pace in paces]
    spread = sum((one - mean) ** 2 for one in means) / (len(means) - 1) - fmean(lucks)
    # of left / mean rounds
    luck = fmean(luck * pace.rounds for luck, pace in zip(lucks, paces, strict=True)) * mean / max(1.0, left)
    return math.sqrt(max(0.0, spread) + luck) / mean


@dataclass(slots=True)
class Known:
    """What a request knows, or those that run at once."""

    places: Places = field(default_factory=Places)
    paths: Experience = field(default_factory=Experience)
    paces: deque[Pace] = field(default_factory=lambda: deque(maxlen=PACES))
    drafted: int = 0  # rounds with drafts
    idle: int = 0  # rounds since one last drafted
    rounds: int = 0
    plans: dict[tuple[int, int, int], Plan] = field(default_factory=dict)  # the latest ones, by the counts of the load
    first: dict[bool, Plan] = field(default_factory=dict)  # `shared` -> what the last one alone that planned began with


@dataclass(slots=True)
class Auto(DepthController):
    """Draft on while that raises the tokens per second of the machine.

    With `Plan`'s rate lambda for what a second is worth, before each layer go on if some number of layers more yields
    more: (reach of the path so far) x (chances of the next layers) > lambda x (their seconds at the load), where reach
    and the next layer's chance follow from the draft's probabilities of what was drafted (`Path`). That finds
    B* = argmax (R + sum of the chances of B drafts) / (C_draft + C_verify(B)) layer by layer. Of what lookup
    drafts alone the chances of all layers are known ahead, and no layer costs anything before verification.

    Models may have to read what they have not seen before they draft, and the tokens that may come must save as much.
    Requests begin `together`, if it is saved on average: where some rest, as many passes are made for them as if nobody
    drafted, and few share those of drafts. They begin for more than they go on for.

    What pays differs from text to text, so that a request alone learns anew: the first guess and some rounds of its own
    tell it more than those of other texts, which only raise the guess. Only requests at once, whose drafts share
    passes, learn together.

    Nothing depends on tokens that are not drawn yet, so the law of the output stays as it is at any load. Where
    drafting does not pay it is tried now and then, with a two-hundredth of the time; more often while little is known,
    but hardly so in requests that each begin anew: the first guess is as good as some rounds.
    """

    most: int
    widths: tuple[int, ...] = (1,)  # children per node, layer by layer; the last one repeats
    roots: int = 1  # nodes that the first layer hangs on, or beams
    lookup: bool = False  # whether it drafts too
    discount: float = 0.99
    shared: bool = True
    known: Known = field(default_factory=Known)  # what requests that run at once know together
    needs: frozenset[str] = LOGITS | LOAD
    confident: Sequence[float] = tuple(CONFIDENT)  # chances of layers by their confidence before any was seen
    own: Known = field(init=False, default_factory=Known)  # what the request has learned while it ran alone
    rests: bool = field(init=False, default=False)
    _known: Known = field(init=False, default_factory=Known)  # the one of both that it decides by
    _path: Path = field(init=False, default_factory=Path)
    _plan: Plan = field(init=False, repr=False, compare=False)
    _load: Load = field(init=False, repr=False, compare=False)  # not the plan's, which outlives requests
    _late: Plan | None = field(init=False, default=None)  # the one by which it is too late to begin
    _tries: bool = field(init=False, default=False)
    _price: float = field(init=False, default=0.0)  # of its next trial, with what models have to read first
    _draws: bool = field(init=False, default=False)  # whether models draft, as it seems when the round begins
    _begun: bool = field(init=False, default=False)  # whether models have drafted
    _copies: list[float] = field(init=False, default_factory=lambda: list(COPIES))  # begun rightly, and as was expected
    _copy: float = field(init=False, default=0.0)  # chance that the round's copy begins rightly; 0: there is none
    _pace: Pace = field(init=False, default_factory=Pace)

    def for_request(self) -> Auto:
        return replace(self)

    def repeatable(self) -> Auto:
        """The same for a request whose text depends on its drafts: decided by its own rounds and nominal costs."""
        return replace(self, shared=False, needs=self.needs - LOAD, confident=DRAWN)

    def start(self, streams: Streams, load: Load = ALONE) -> None:
        self._known = known = self.own if load.drafting == 1 else self.known
        known.rounds += 1
        plan = known.plans.get(load.counts) or self._first(load)
        if plan is None or known.rounds > plan.until or known.drafted > 2 * plan.known + 2:  # much is new
            plan = self._planned(load, plan)
            if known is self.own and known.rounds == 1:
                self.known.first[self.shared] = plan
        self._plan, self._load = plan, load
        self._tries = False
        if (idle := known.idle * plan.often) >= max(plan.price, self._price):
            self._price = plan.price + self._behind(load) / plan.seconds[0]
            self._tries = idle >= self._price
        if self._tries:
            known.idle, self._price = 0, 0.0  # others need not try now
        pays = plan.together and plan is not self._late and plan.pays(0, plan.next[UNKNOWN], (), load)
        if pays and not self._draws:  # else models have read almost all
            pays = self._behind(load) <= (JOIN if load.drafting > 1 else 1) * load.left() * plan.saves
            self._late = None if pays else plan
        self._draws = self._tries or pays
        self.rests = not (self._draws or self.lookup)
        if not self.rests:
            self._path = Path(plan.own, plan.next)

    def _behind(self, load: Load) -> float:
        """Seconds before models can draft; where texts must repeat those of the prompt, which others may have saved."""
        return load.behind() if self.shared or not self._begun else 0.0

    def _first(self, load: Load) -> Plan | None:
        """What another request has begun with, where nothing is new; of costs that were measured for a while."""
        plan = self.known.first.get(self.shared)  # costs of sampled requests are always the same
        if plan is None or self._known is not self.own or self.own.rounds > 1:
            return None
        if self.shared and (plan.counts != load.counts or plan.served == FEW or abs(plan.prior - self._prior) > SAME):
            return None
        plan.served += 1
        self.own.plans[load.counts] = plan
        return plan

    @property
    def _prior(self) -> float:
        """The rate of acceptance where nothing was seen."""
        return max(PRIOR, self.known.paths.next.rate) if self.shared else PRIOR

    def _planned(self, load: Load, last: Plan | None) -> Plan:
        known, prior = self._known, self._prior
        own, after = known.paths.own.chances(self.confident), known.paths.next.chances(prior=prior)
        uneven = deviation(known.paces, load.left()) if load.drafting > 1 else 0.0
        chances = known.places.chances(max(self.widths), prior)
        often = TRIED + EAGER / (1 + max(known.drafted, WEIGHT if known is self.own else 0)) ** 2
        until = known.rounds + AGE * load.drafting
        plan = Plan(until, own, after, chances, uneven, known.drafted, often, load.counts, prior)
        if last is not None and not (self.shared and (load.drafting > 1 or known.rounds > last.until)):
            plan.spent = last.spent  # what was learned since is not what passes cost
        if len(known.plans) == PLANS:
            known.plans.clear()
        known.plans[load.counts] = plan
        full = [self.widths[min(layer, len(self.widths) - 1)] for layer in range(self.most)]
        for cap in sorted(set(self.widths), reverse=True):
            plan.consider([min(cap, width) for width in full], self.roots, load)
        if load.drafting > 1:
            behind, left = load.means()
            least = SURE * plan.seconds[0] / (1 + load.tokens) if known.idle else 0.0  # or they flap about zero
            plan.together = plan.saves > least and behind <= left * plan.saves
        return plan

    def deeper(self, state: DraftState) -> bool:
        if self.rests:
            return False
        path, depth = self._path, state.depth
        reach = path.follow(state) * path.reach
        if self._tries:  # one layer: deeper ones were planned for requests that all draft
            goes_on = depth == 0
        else:
            chosen = state.ahead and self._copy  # by `copies`
            goes_on = depth < self.most and bool(chosen or self._plan.pays(depth, reach, state.ahead, self._load))
        if not goes_on:
            return False
        path.ask(state)
        self._begun |= path.drawn[-1]
        return True

    def copies(self, chances: Sequence[float]) -> int:
        """The k of the largest worth: tokens that are likely accepted, less lambda x seconds of k rows.

        0 where models are tried, or their own drafts are worth more. Rounds begin where the text has just left what was
        drafted, and copies go wrong there more often than lookup has seen: by what came of the request's own.
        """
        right, expected = self._copies
        plan, best, gain, reach = self._plan, 0, 0.0, right / expected
        found = plan.of(self._load, [1] * len(plan.widths), free=True) if chances else []
        most = plan.worth + UNTRIED / (1 + self._known.drafted) if self._draws else 0.0
        for i, chance in enumerate(() if self._tries else chances[: self.most], 1):
            reach = min(1.0, reach * chance)
            gain += reach
            worth = gain - plan.rate * (found[i] - found[0])
            if worth > most:
                best, most = i, worth
        self._copy = chances[0] if best else 0.0
        return best

    def width(self, most: int) -> int:
        return min(most, self._plan.widths[self._path.asked - 1])

    def observe(self, round_: Round, state: Tensor | None = None) -> None:
        if self._copy and self._path.asked:
            self._copies = [self._copies[0] + (round_.depth_accepted > 0), self._copies[1] + self._copy]
        self._copy = 0.0
        if not round_.attempted or (self.lookup and not any(self._path.drawn)):
            self._known.idle += 1
            return
        self._known.idle = 0
        self._known.drafted += 1
        self._pace.add(round_.depth_accepted + 1)
        if self._pace.rounds == OFTEN:
            self._known.paces.append(self._pace)
        self._known.places.add(round_, self.discount, self._path.drawn)
        self._path.learn(round_, self._known.paths, self.discount)
        if self.shared and self._known is self.own:
            self._path.learn(round_, self.known.paths, self.discount)
