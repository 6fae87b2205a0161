"""Texts of which something is demanded, and what is said of every text: log-probabilities, scores, why it ended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from draftwood.certify.checks import Advance, Check
from draftwood.certify.demands import LETTERS, Demand, LanguageMatchers, few_letters, letters
from draftwood.certify.enumeration import NotDiscrete, TooLarge
from draftwood.certify.forms import variants
from draftwood.certify.laws import Observed
from draftwood.certify.references import (
    BeamLaw,
    Output,
    log_softmax,
    raw_logits,
    slow_penalties,
    slow_warp,
)
from draftwood.certify.small import END, Case
from draftwood.engine.engine import Engine
from draftwood.engine.results import GenerationResult
from draftwood.methods import Method
from draftwood.methods.beams import BeamMethod, BeamSamplingMethod, PlainBeamSearch
from draftwood.models.tabular import TabularModel

MAX_REPLAYS, MAX_TEXTS = 150, 16  # most replays and texts of a case: what is demanded of a text is seen in few
MAX_DISTANCE, MAX_LOGPROB_ERROR = 1e-9, 1e-6  # of laws; of log-probabilities
ALL_DEMANDS = Demand(grammar=True, min_tokens=3, stop=("bc", "aa"))
DEMANDS = {  # and the warp that goes with each
    Demand(grammar=True): "plain",
    Demand(min_tokens=2): "top-p",
    Demand(stop=("ba", "cc")): "penalties",
    ALL_DEMANDS: "plain",
}
TEXT_TOKENS, LENGTHS = 8, (6, 5, 4, 3, 2)  # tokens of texts, and of those that are enumerated
CHECK_NAME = "demands on the text"


@dataclass(slots=True)
class ConstrainedCase(Case):
    """A case with a demand, judged by the target for which what is not allowed is impossible."""

    demand: Demand = ALL_DEMANDS
    faults: set[str] = field(init=False, default_factory=set)  # of what is said of texts

    def _random(self, number: int) -> TabularModel:
        if self.demand.grammar:  # which leaves few choices
            return Case._random(self, number)
        return few_letters(self.seed, number, bool(self.demand.min_tokens))

    def _engine(self) -> Engine:
        engine = Case._engine(self)
        engine.builder.tokenizer, engine.requests.grammars = letters(), cast(Any, LanguageMatchers(END))
        return engine

    @property
    def label(self) -> str:
        return f"{self.demand.label}: {self.tokens} tokens, {self.warp}"

    @property
    def judged(self) -> TabularModel:
        return self.demand.masked(self.target, len(self.prompt))

    def over(self, output: Output) -> bool:
        return self.demand.over(output)

    def run(self, method: Method | None = None, seed: int = 0) -> GenerationResult:
        result = self._engine().generate(
            self.prompt, method or self.method, self.params, self.tokens, seed, **self.demand.options
        )
        if fault := self.fault(result):
            self.faults.add(fault)
        return result

    def experiment(self) -> Observed:
        return self.run()

    def fault(self, result: GenerationResult) -> str:
        """The first fault of a result: a token that is not allowed, a wrong end, text, reason or log-probability."""
        beams = [(tuple(beam.tokens), beam.logprobs, beam.text, beam.finish_reason) for beam in result.beams]
        for output, logprobs, text, reason in beams or [
            (tuple(result.tokens), result.logprobs, result.text, result.finish_reason)
        ]:
            for place, token in enumerate(output):
                if token not in self.demand.allows(output[:place]):
                    return "a token that is not allowed"
                if place and self.over(output[:place]):
                    return "a text goes on behind its end"
            if len(output) < self.tokens and not self.over(output):
                return "a text ends too early"
            if (text, reason) != (self.demand.text(output), self.demand.reason(output)):
                return f"{text!r}, {reason!r} is said of {self.demand.text(output)!r}, {self.demand.reason(output)!r}"
            wanted = [self._logprob(output[:place], token) for place, token in enumerate(output)]
            if not _near(logprobs, wanted):
                return "log-probabilities are not the target's"
        return self._misjudged(result)

    def _logprob(self, before: Output, token: int) -> float:
        return log_softmax(raw_logits(self.target, (*self.prompt, *before)))[token]

    def _misjudged(self, result: GenerationResult) -> str:
        """A fault of the warped log-probabilities, or of beams' likelihoods, scores and order; '' if there is none."""
        masked = self.judged
        if not isinstance(self.method, BeamMethod):
            output = tuple(result.tokens)
            wanted = []
            for place, token in enumerate(output):
                edited = raw_logits(masked, (*self.prompt, *output[:place]))
                chance = slow_warp(slow_penalties(edited, self.prompt, output[:place], self.params), self.params)[token]
                wanted.append(math.log(chance) if chance > 0 else -math.inf)
            right = _near(result.warped_logprobs, wanted)
            return "" if right else "warped log-probabilities are not those of the law that was decoded"
        warp = self.method.warp if isinstance(self.method, BeamSamplingMethod) else "joint"
        law = BeamLaw(masked, self.prompt, self.params, self.over, warp)
        wanted = [law.score(tuple(beam.tokens)) for beam in result.beams]
        if not _near([beam.log_likelihood for beam in result.beams], wanted):
            return "a beam's log-likelihood is not that of all of its tokens"
        scores = [beam.log_likelihood / len(beam.tokens) ** self.method.length_penalty for beam in result.beams]
        if not _near([beam.score for beam in result.beams], scores) or scores != sorted(scores, reverse=True):
            return "beams are not in the order of their scores"
        return ""


def _near(values: Sequence[float], wanted: Sequence[float]) -> bool:
    pairs = zip(values, wanted, strict=False)
    return len(values) == len(wanted) and all(a == b or abs(a - b) < MAX_LOGPROB_ERROR for a, b in pairs)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case: the number of texts, the distance of their law, and the faults of single texts."""

    label: str
    texts: int
    distance: float
    faults: Sequence[str]


def constrained_check(method: Method, seed: int, max_replays: int, texts: int, advance: Advance) -> Check:
    """Laws with demands where they can be enumerated, and what is said of every text: see `ConstrainedCase.fault`.

    A way to end that no text took fails the check: it says nothing of that. At most so many replays and texts a case.
    """
    max_replays, texts = min(max_replays, MAX_REPLAYS), min(texts, MAX_TEXTS)
    met: set[str] = set()
    if isinstance(method, PlainBeamSearch):
        results = list(_searched(method, seed, texts, met, advance))
    else:
        results = list(_texts(method, seed, texts, met, advance))
        if method.reference(False) in (None, method):
            results += _enumerated(method, seed, max_replays, advance)
    worst = max(results, key=lambda one: (bool(one.faults), one.distance))
    missing = sorted({"stop", "eos"} - met)
    off = worst.distance if method.lossless else 0.0
    wrong = bool(worst.faults or missing) or off >= MAX_DISTANCE
    count = sum(one.texts for one in results)
    text = f"{len(results)} cases, {count:,} texts: worst total variation {worst.distance:.1e}"
    if wrong:
        text += f" ({'; '.join((*worst.faults[:1], worst.label))})"
    if missing:
        text += f"; no text ended by {', '.join(missing)}, so that is not certified"
    figures = {
        "cases": len(results),
        "texts": count,
        "worst_total_variation": worst.distance,
        "faults": sorted({fault for one in results for fault in one.faults}),
        "demands": [one.label for one in results],
    }
    return Check(CHECK_NAME, "FAIL" if wrong else "PASS" if method.lossless else "LOSSY", text, figures)


def _texts(method: Method, seed: int, count: int, met: set[str], advance: Advance) -> Iterator[CaseResult]:
    """Texts of the method as it is; under the same seed those of its reference, where it repeats one."""
    reference = method.reference(False)
    if isinstance(method, BeamMethod):
        method = Method.parse({**method.as_dict(), "n_best": method.widest})
    for number, (demand, warp) in enumerate((*DEMANDS.items(), (ALL_DEMANDS, "greedy"))):
        case = ConstrainedCase(
            method, len(LETTERS), TEXT_TOKENS, warp, seed + 10 * number, _drafts(method), demand=demand
        )
        for one in range(count):
            result = case.run(seed=one)
            met.add(result.finish_reason)
            if reference not in (None, method) and case.run(reference, seed=one).tokens != result.tokens:
                case.faults.add("not the text without drafts")
            advance()
        yield CaseResult(f"texts, {case.label}", count, 0.0, sorted(case.faults))


def _enumerated(method: Method, seed: int, max_replays: int, advance: Advance) -> Iterator[CaseResult]:
    """Every outcome of small cases: for each demand of the longest texts that have few."""
    for form in variants(method):
        for number, (demand, warp) in enumerate(DEMANDS.items()):
            for tokens in (length for length in LENGTHS if length >= demand.min_tokens):
                case = ConstrainedCase(
                    form, len(LETTERS), tokens, warp, seed + 10 * number, _drafts(method), demand=demand
                )
                try:
                    reference, law, texts = case.enumerated(max_replays, advance)
                except TooLarge:
                    continue
                except NotDiscrete:
                    return
                yield CaseResult(case.label, texts, reference.distance(law), sorted(case.faults))
                break


def _searched(method: PlainBeamSearch, seed: int, count: int, met: set[str], advance: Advance) -> Iterator[CaseResult]:
    """All hypotheses of small cases, in order, are those of beam search written out."""
    every = Method.parse({**method.as_dict(), "n_best": method.width})
    for demand in DEMANDS:
        faults: set[str] = set()
        for one in range(count):
            warp = "penalties" if one % 2 else "plain"
            case = ConstrainedCase(every, len(LETTERS), 5, warp, seed + one, demand=demand)
            result = case.run()
            met.update(beam.finish_reason for beam in result.beams)
            if [tuple(beam.tokens) for beam in result.beams] != case.hypotheses:
                faults.add("not the hypotheses of beam search, written out")
            faults |= case.faults
            advance()
        yield CaseResult(demand.label, count, 0.0, sorted(faults))


def _drafts(method: Method) -> int:
    """Draft models: with several where there can be."""
    min_drafts, max_drafts = method.drafts_needed
    return min(2, max_drafts) if min_drafts else 0
