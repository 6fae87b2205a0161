"""Which source drafts a round, a draft model or the text itself: `auto`'s choice beside others on the same traces.

A trace has what both sources would draft at each place of a greedy text, which is the same whatever drafts it. Passes
cost fixed times, so that nothing but the choices differs: 1 for a row of the target, so much for each row more and for
each token of the draft model. How far a source drafts is decided by `auto` in all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, takewhile
from math import exp
from typing import Any, ClassVar, NamedTuple

import numpy as np

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows
from draftwood.core.forest import Forest
from draftwood.corpus import mixed
from draftwood.depth.auto import Auto
from draftwood.depth.load import Load
from draftwood.depth.rules import DraftState
from draftwood.draft.suffix import SuffixLookup
from draftwood.engine.engine import Engine
from draftwood.engine.loading import load
from draftwood.eval.intervals import bootstrap
from draftwood.sampling.distributions import Streams

DISCOUNT = 0.97  # of a gain, for each later round
SOURCES = ("model", "lookup")
Drafts = list[tuple[bool, float]]  # whether a drafted token is the text's, and the chance that its source gives it


@dataclass(slots=True)
class Trace:
    """The drafts of both sources behind each token of an answer."""

    drafts: list[Drafts]  # of the draft model
    copies: list[Drafts]  # of lookup


class Costs(NamedTuple):
    """Of a token of the draft model, and of a row of the target's behind its first; its pass over one row is 1."""

    draft: float
    row: float

    @property
    def load(self) -> Load:
        return Load(lambda rows: self.draft, lambda rows: 1 + self.row * (rows - 1))

    def of(self, copied: int, drafted: int) -> float:
        """The time of a round."""
        return 1 + self.row * (copied + drafted) + self.draft * drafted


class DraftedRound(NamedTuple):
    """The outcome of a round, as `Auto.observe` reads it of a `Round`, and its time."""

    attempted: int
    depth_accepted: int
    siblings: Sequence[tuple[int, int]]
    time: float

    def gain(self, rate: float) -> float:
        """Accepted tokens, less what the time of drafting them is worth."""
        return self.depth_accepted - rate * (self.time - 1)


def drafted(rule: Auto, costs: Costs, trace: Trace, place: int) -> DraftedRound:
    """A round at a place of a trace, as a chain with lookup goes (`draftwood.draft.model.ModelDrafter`).

    Behind copies that are wrong the model is taken to be as sure as behind the right ones: its drafts are lost anyway.
    """
    rule.start(Streams(0), costs.load)
    layers: Drafts = []
    copied = 0
    if not rule.rests:
        copies = trace.copies[place] if rule.lookup else []
        if copies and rule.model:
            copies = copies[: rule.copies([chance for _, chance in copies])]
        behind = trace.drafts[min(place + len(copies), len(trace.drafts) - 1)] if rule.model else []
        possible = [*copies, *behind]
        for depth, draft in enumerate(possible):
            ahead = [chance for _, chance in copies[depth:]]
            sure = [layers[-1][1]] if layers else []
            by_copy = 0 < depth <= len(copies)
            state = DraftState(depth, chances=sure if by_copy else (), ahead=ahead, drawn=() if by_copy else sure)
            if not rule.deeper(state):
                break
            layers.append(draft)
        copied = min(len(layers), len(copies))
    accepted = len([*takewhile(lambda each: each[0], layers)])
    siblings = [(0, 1)] * accepted + [(1, 1)] * (accepted < len(layers))
    return DraftedRound(len(siblings), accepted, siblings, costs.of(copied, len(layers) - copied))


@dataclass(slots=True)
class Choice:
    """Decides which source drafts each round; walks the traces one after the other."""

    name: ClassVar[str]
    costs: Costs
    most: int
    rules: dict[str, Auto] = field(init=False)  # of each source alone
    rate: float = field(init=False, default=1.0)  # tokens per time so far: what a time is worth
    random: np.random.Generator = field(init=False, default_factory=lambda: np.random.default_rng(0))
    _all: dict[str, Auto] = field(init=False)  # which all texts' own ones are made of

    def __post_init__(self) -> None:
        self._all = {source: Auto(self.most, lookup=source == "lookup", model=source == "model") for source in SOURCES}

    def walk(self, trace: Trace) -> tuple[int, float]:
        """The tokens of a text and the time that they took."""
        self.begin()
        place, time, end = 0, 0.0, len(trace.drafts)
        while place < end:
            made = self.round(trace, place)
            place, time = place + made.depth_accepted + 1, time + made.time
            self.rate += (1 - DISCOUNT) * ((made.depth_accepted + 1) / made.time - self.rate)
        return min(place, end), time

    def begin(self) -> None:
        """A text begins."""
        self.rules = {source: rule.for_request() for source, rule in self._all.items()}

    def drafted(self, trace: Trace, place: int) -> dict[str, DraftedRound]:
        """The round of each source, from which its rule learns how far to draft."""
        made = {source: drafted(rule, self.costs, trace, place) for source, rule in self.rules.items()}
        for source, rule in self.rules.items():
            rule.observe(made[source])  # type: ignore[arg-type]
        return made

    @abstractmethod
    def round(self, trace: Trace, place: int) -> DraftedRound:
        """The round at a place."""


NOTHING = DraftedRound(0, 0, (), 1.0)


class AutoChoice(Choice):
    """Lookup by the chances of what it found, the model by the rounds in which it drafted."""

    name = "`auto`"

    def __post_init__(self) -> None:
        self._all = {"both": Auto(self.most, lookup=True)}

    def round(self, trace: Trace, place: int) -> DraftedRound:
        return self.drafted(trace, place)["both"]


class FullInformation(Choice):
    """The source whose rounds would have gained most so far: each round tells of all sources (as in HedgeSpec)."""

    name = "full information: the source of the largest discounted gain so far"
    gains: dict[str, float]

    def begin(self) -> None:
        Choice.begin(self)
        self.gains = dict.fromkeys(SOURCES, 0.0)

    def expected(self, trace: Trace, place: int) -> dict[str, float]:
        """The gain that each source is expected to have in a round at a place."""
        return self.gains

    def round(self, trace: Trace, place: int) -> DraftedRound:
        gains = self.expected(trace, place)
        best = max(SOURCES, key=gains.__getitem__)
        drafts = gains[best] >= 0  # before this round's own outcome is known
        made = self.drafted(trace, place)
        for source, each in made.items():
            self.gains[source] = DISCOUNT * self.gains[source] + each.gain(self.rate)
        return made[best] if drafts else NOTHING


class OwnExpectation(FullInformation):
    """The same, but for lookup, which tells itself what its copies are worth."""

    name = "the same, lookup by its own expectation"

    def expected(self, trace: Trace, place: int) -> dict[str, float]:
        reach, gain, best = 1.0, 0.0, 0.0
        for _, chance in trace.copies[place]:
            reach *= chance
            gain += reach - self.rate * self.costs.row
            best = max(best, gain)
        mean = self.gains["model"] * (1 - DISCOUNT)
        return {"model": mean, "lookup": best if best > 0 else -1.0}


class ThompsonSources(Choice):
    """The source of the largest gain by chances of acceptance that are drawn from its posterior, as EESD draws depths.

    Only the source that drafts learns: Beta(accepted + 1, rejected + 1) of its drafts, and how many it drafts a round.
    """

    name = "Thompson sampling over sources"
    counts: dict[str, list[float]]

    def begin(self) -> None:
        Choice.begin(self)
        self.counts = {source: [1.0, 1.0, 4.0] for source in SOURCES}  # accepted, rejected, drafted a round

    def round(self, trace: Trace, place: int) -> DraftedRound:
        gains = {}
        for source, (accepted, rejected, length) in self.counts.items():
            chance = self.random.beta(accepted, rejected)
            price = self.costs.row + self.costs.draft * (source == "model")
            gains[source] = sum(chance**i for i in range(1, round(length) + 1)) - self.rate * price * length
        best = max(SOURCES, key=gains.__getitem__)
        if gains[best] < 0:
            return NOTHING
        made = drafted(self.rules[best], self.costs, trace, place)
        self.rules[best].observe(made)  # type: ignore[arg-type]
        count = self.counts[best]
        count[0] += made.depth_accepted
        count[1] += made.attempted - made.depth_accepted
        count[2] += 0.1 * (max(1, made.attempted) - count[2])
        return made


class Hindsight(Choice):
    """The source that gains most in each round, or none where both lose: what no choice can know."""

    name = "the best source of each round, known in hindsight"

    def round(self, trace: Trace, place: int) -> DraftedRound:
        made = [NOTHING, *self.drafted(trace, place).values()]
        return max(made, key=lambda each: each.gain(self.rate))


CHOICES: tuple[type[Choice], ...] = (AutoChoice, FullInformation, OwnExpectation, ThompsonSources, Hindsight)


class SourceChoice(Kind):
    """`texts` greedy texts of the pair's target, and `costs`: of a drafted token and of a row, in passes."""

    texts: int = 210
    tokens: int = 48
    most: int = 8  # tokens that a source drafts in a round at most
    lengths: tuple[int, ...] = (8, 24, 60)  # tokens of prompts, at most
    costs: tuple[tuple[float, float], ...] = ((0.1, 0.01), (0.2, 0.03), (0.4, 0.05))

    def measure(self, bench: Bench) -> dict[str, Rows]:
        """`choices`: a row for each choice and costs; intervals are over texts."""
        engine, draft = bench.engine, load(bench.pair.draft, dtype=bench.run.dtype)
        documents = zip(mixed("held-out", seed=3), cycle(self.lengths), strict=False)
        prompts = [engine.tokens(document.text)[:length] for document, length in islice(documents, self.texts)]
        traces = [self.trace(engine, draft, prompt) for prompt in bench.track(prompts, "traces")]
        rows: Rows = []
        for costs in (Costs(*each) for each in self.costs):
            auto: list[tuple[int, float]] = []
            for choice in (kind(costs, self.most) for kind in CHOICES):
                walked = [choice.walk(trace) for trace in traces]
                auto = auto or walked
                mine, theirs = list(zip(*walked, strict=True)), list(zip(*auto, strict=True))
                about: dict[str, Any] = {"choice": choice.name, "draft": costs.draft, "row": costs.row}
                about["tokens_per_pass"] = bootstrap(mine, lambda sums: sums[0] / sums[1])
                about["to_auto"] = bootstrap([*mine, *theirs], lambda sums: sums[0] / sums[1] / (sums[2] / sums[3]))
                rows.append({**about, "tokens": sum(mine[0])})
        return {"choices": rows}

    def trace(self, engine: Engine, draft: Engine, prompt: list[int]) -> Trace:
        """The drafts of the draft model and of lookup behind each token of the target's answer to a prompt."""
        text = [*prompt, *engine.generate(prompt, "autoregressive", max_new_tokens=self.tokens).tokens]
        lookup, result = SuffixLookup(), Trace([], [])
        for end in range(len(prompt), len(text)):
            copies = lookup.continuation(Forest.from_prompt(text[:end]), self.most)
            guess = draft.generate(text[:end], "autoregressive", max_new_tokens=self.most, ignore_eos=True)
            drafts = [(token, exp(logprob)) for token, logprob in zip(guess.tokens, guess.logprobs, strict=True)]
            follows = [*text[end:], *[None] * self.most]
            for proposed, kept in ((copies, result.copies), (drafts, result.drafts)):
                pairs = zip(proposed, follows, strict=False)
                kept.append([(token == follow, chance) for (token, chance), follow in pairs])
        return result
