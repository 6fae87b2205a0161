"""The checks on tabular models: enumerated laws of small cases, texts of a reference, samples of whole outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from draftwood.certify.checks import RISK, Advance, Check, CheckVerdict
from draftwood.certify.distances import fit
from draftwood.certify.enumeration import NotDiscrete, TooLarge
from draftwood.certify.forms import occasions, shrunk, variants, windows
from draftwood.certify.laws import LayerLaws
from draftwood.certify.rules import required
from draftwood.certify.small import Case
from draftwood.certify.tables import tied_table
from draftwood.methods import Method
from draftwood.methods.beams import BeamMethod, BeamSamplingMethod, PlainBeamSearch

MAX_ROUNDING_ERROR = 1e-9  # rounding of float64 sums; a wrong rule is off by 0.001 and more

CASE_SIZES = ((3, 4), (4, 3), (2, 4), (3, 3), (4, 2), (3, 2), (2, 3))  # vocabulary and tokens of small methods
SHORT_WARPS = ("top-k", "top-p", "penalties")  # warps of these, beside none
SAMPLED_CELLS = (("plain", 4), ("all", 8))  # warp and requests at once; what is enumerated runs alone


@dataclass(frozen=True, slots=True)
class Enumerated:
    """One enumerated case: how far its law is from the reference's, and which rule without a law was broken.

    `claimed`: the law should be the reference's. One round of a method that goes on from one beam still follows it.
    """

    label: str
    replays: int
    distance: float
    claimed: bool
    counts: Counter[str]  # rounds, of all replays, that exercised a rule
    faults: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        return bool(self.faults) or (self.claimed and self.distance >= MAX_ROUNDING_ERROR)


def enumerate_cases(
    method: Method, seed: int, max_replays: int, advance: Advance = lambda: None
) -> Iterator[Enumerated]:
    """The law of the method in every case that has at most `most` sequences of random choices.

    First rounds of the method as it is, then whole generations of its small forms. A case counts only where what it is
    there for happened. Raises NotDiscrete where the method draws continuous noise.
    """
    for choices in cases(method, seed):
        for case in choices:
            try:
                expected, law, count = case.enumerated(max_replays, advance)
            except TooLarge:
                continue
            faults = sorted(expected.faults) if isinstance(expected, LayerLaws) else ()
            claimed = method.lossless or bool(case.rounds)
            one = Enumerated(case.label, count, expected.distance(law), claimed, case.counts, tuple(faults))
            if not (one.wrong or case.aim <= case.counts.keys()):
                continue
            yield one
            break


def cases(method: Method, seed: int) -> Iterator[Iterable[Case]]:
    """The cases to enumerate, each followed by smaller ones that replace it where it is too large."""
    min_drafts, max_drafts = method.drafts_needed
    counts = sorted({min_drafts, min(2, max_drafts)}) if min_drafts else [0]
    small = variants(method)
    for drafts in counts:
        for i in range(4):  # a greedy text may be short, and the same with penalties
            yield from ([Case(small[0], 3, 6, warp, seed + i, drafts)] for warp in ("greedy", "greedy, penalties"))
    if method.lossless or isinstance(method, BeamSamplingMethod):
        yield from windows(method, seed, counts[-1])  # with several draft models, if they can be
        yield from occasions(method, seed, counts[-1])
    for drafts in counts:
        for one in small:
            for number, warp in enumerate(("plain", *SHORT_WARPS)):
                sizes = CASE_SIZES[number % 2 :]
                yield (Case(one, *size, warp, seed + 10 * number, drafts) for size in sizes)


def rule_check(method: Method, seed: int, max_replays: int, identities: int, advance: Advance) -> Check:
    """Exact: the method's law where all its choices are enumerated, or its text where a reference gives it.

    `max_replays` bounds those of one case; `identities` is the number of seeds whose text is compared.
    """
    reference = method.reference(False)
    if isinstance(method, PlainBeamSearch):
        return _searches(method, seed, identities, advance)
    if reference is not None and reference != method:
        return _repeats(method, reference, seed, identities, advance)
    name = "exact enumeration"
    try:
        results = list(enumerate_cases(method, seed, max_replays, advance))
    except NotDiscrete:
        return Check(name, "N/A", "draws continuous noise, whose values cannot be enumerated")
    if not results:
        text = f"no case had fewer than {max_replays:,} outcomes; allow more, or make the method smaller"
        return Check(name, "FAIL" if method.lossless else "N/A", text)
    worst = max(results, key=lambda one: (one.wrong, one.distance))
    replays = sum(one.replays for one in results)
    text = f"{len(results)} cases, {replays:,} replays: worst total variation {worst.distance:.1e}"
    if worst.wrong:
        text += f" ({'; '.join((*worst.faults[:1], worst.label))})"
    figures = {
        "cases": len(results),
        "replays": replays,
        "worst_total_variation": worst.distance,
        "tolerance": MAX_ROUNDING_ERROR,
        "faults": sorted({fault for one in results for fault in one.faults}),
        "sizes": [one.label for one in results],
    }
    return _judged(name, method, not worst.wrong, text, figures, [one.counts for one in results])


def _judged(
    name: str, method: Method, right: bool, reason: str, figures: dict[str, Any], counts: Iterable[Counter[str]]
) -> Check:
    """The check, which fails where a rule of the method was not exercised: it says nothing of that."""
    rules = sum(counts, Counter[str]())
    missing = sorted(required(method) - rules.keys())
    figures |= {"rules": dict(sorted(rules.items())), "rules_not_exercised": missing}
    if missing:
        reason += f"; not exercised, so not certified: {', '.join(missing)} (allow more --replays or --identities)"
    elif needed := required(method):
        rarest = min(needed, key=lambda rule: (rules[rule], rule))
        reason += f"; {len(needed)} rules exercised, '{rarest}' {rules[rarest]:,} times, others more often"
    verdict: CheckVerdict = "FAIL" if missing or not right else "PASS" if method.lossless else "LOSSY"
    return Check(name, verdict, reason, figures)


def _same(name: str, method: Method, what: str, equal: Sequence[bool], counts: Iterable[Counter[str]]) -> Check:
    """The check that all outputs are those of a reference."""
    figures = {"outputs": len(equal), "different": len(equal) - sum(equal)}
    return _judged(name, method, all(equal), f"{sum(equal)} of {len(equal)} {what}", figures, counts)


def _repeats(method: Method, reference: Method, seed: int, seeds: int, advance: Advance) -> Check:
    """Every text is that of the method without drafts under the same seed."""
    sizes = ((3, 6, "plain"), (4, 8, "top-k"), (4, 6, "top-p"), (3, 8, "penalties"))
    cases = [Case(method, *size, seed + 10 * number, order=3) for number, size in enumerate(sizes)]
    cases += [next(iter(choices)) for choices in occasions(method, seed, method.drafts_needed[0])]

    def alike(case: Case, i: int) -> bool:
        advance()
        return case.run(seed=i).tokens == case.run(reference, seed=i).tokens

    equal = [alike(case, i) for case in cases for i in range(max(1, seeds // len(cases)))]
    what = f"texts are those of {reference.name} under the same seed"
    return _same("same text as without drafts", method, what, equal, [case.counts for case in cases])


def _searches(method: PlainBeamSearch, seed: int, runs: int, advance: Advance) -> Check:
    """All hypotheses, in order, are those of beam search written out, ties included."""
    every = Method.parse({**method.as_dict(), "n_best": method.width})
    sizes = ((3, 6, "plain"), (4, 5, "penalties"), (4, 5, "plain"), (5, 4, "plain"))
    counts: Counter[str] = Counter()

    def alike(number: int, i: int) -> bool:
        advance()
        vocab, tokens, warp = sizes[number]
        other = seed + 10 * number + 100 * i
        tied = partial(tied_table, 1000 * other, vocab, 2) if number > 1 else None  # two values, as probable
        case = Case(every, vocab, tokens, warp, other, table=tied)
        beams = [tuple(beam.tokens) for beam in case.run().beams]
        counts.update(case.counts)
        return beams == case.hypotheses

    beams = [alike(number, i) for number in range(len(sizes)) for i in range(max(1, runs // len(sizes)))]
    what = "sets of hypotheses are those of beam search, written out"
    return _same("same hypotheses as beam search", method, what, beams, [counts])


def sampled_check(method: Method, seed: int, runs: int, advance: Advance) -> Check:
    """Compare sampled whole outputs of the method, warped and not, in batches, with the reference's law."""
    name = "whole outputs, sampled"
    reference = method.reference(False)
    if isinstance(method, BeamMethod) and reference is not None:
        return Check(name, "N/A", "draws nothing: its one output was compared above")
    one = shrunk(method, beams_only=method.lossless)
    vocab = 3 if isinstance(method, BeamMethod) else 4
    risk = RISK / len(SAMPLED_CELLS)
    figures: list[dict[str, Any]] = []
    failed: list[str] = []
    worst, bound, ceiling, min_p = 0.0, 0.0, 0.0, 1.0
    min_drafts, max_drafts = method.drafts_needed
    drafts = max(min_drafts, min(2, max_drafts)) if min_drafts else 0
    for number, (warp, concurrency) in enumerate(SAMPLED_CELLS):
        case = Case(one, vocab, 4, warp, seed + number, drafts if number % 2 else None, order=3)
        expected = case.reference
        layers = expected.samples(expected.outcome(result) for result in case.runs(runs, concurrency, advance))
        fits = [fit(samples, risk / len(layers)) for samples in layers]
        farthest = max(fits, key=lambda each: each.distance - each.bound)
        min_p = min(min_p, *(each.p_value for each in fits))
        if not all(each.holds for each in fits):
            failed.append(f"{warp} at {concurrency}")
        if farthest.distance - farthest.bound >= worst - bound or not bound:
            worst, bound = farthest.distance, farthest.bound
        ceiling = max(ceiling, *(each.ceiling for each in fits))
        figures.append({"warp": warp, "concurrency": concurrency, "layers": [each.as_dict() for each in fits]})
    what = "given each layer before, " if len(figures[0]["layers"]) > 1 else ""
    text = (
        f"{len(SAMPLED_CELLS)} × {runs:,} runs, {what}total variation {worst:.4f}, exact ones stay below {bound:.4f}; "
        f"least p {min_p:.2g}"
    )
    detail = {"cells": figures, "true_total_variation_at_most": ceiling, "risk": RISK, "failed": failed}
    if not method.lossless:
        return Check(name, "LOSSY", text, detail)
    return Check(name, "FAIL" if failed else "PASS", text, detail)
