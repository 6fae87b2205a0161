"""The checks on tabular models: the enumerated law of small cases, repetition of the reference's text, whole outputs.

Knows verdicts and their reasons. Refuses to know real models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftwood.certify.checks import Check
from draftwood.certify.distances import fit
from draftwood.certify.enumeration import NotDiscrete, TooLarge, enumerated
from draftwood.certify.small import WARPS, Case, set_of_beams, shrunk, variants
from draftwood.errors import DraftwoodError
from draftwood.methods import Method
from draftwood.methods.beams import BeamMethod

EXACT = 1e-9  # rounding of float64 sums; a wrong rule is off by 0.001 and more
RISK = 1e-6  # chance that a comparison of samples fails an exact method

SIZES = ((2, 3), (3, 2), (4, 2), (3, 3), (2, 4), (4, 3), (3, 4))  # vocabulary and tokens of the enumerated cases
SHORT = ("top-k", "top-p", "penalties")  # warps of these, beside none
CELLS = (("plain", 1), ("top-2", 4), ("top-p", 4), ("penalties", 1))  # warp and requests at once

Advance = Callable[[], None]


def rule_check(method: Method, seed: int, most: int, identities: int, advance: Advance) -> Check:
    """Exact: the method's law where all its choices are enumerated, or its text where a reference gives it.

    `most` bounds the replays of one case; `identities` is the number of seeds whose text is compared.
    """
    reference = method.reference(False)
    if reference is not None and reference != method:
        return _repeats(method, reference, seed, identities, advance)
    name = "exact enumeration"
    if isinstance(method, BeamMethod) and reference is not None:
        return Check(name, "N/A", "draws nothing, and is its own reference")
    small = variants(method)
    fewest, mostly = method.drafts_needed
    limits: dict[tuple[Method, int], tuple[int, int]] = {}  # vocabulary and tokens that had too many choices
    worst, done, replays, where = 0.0, 0, 0, ""
    sizes = []
    for number, (vocab, tokens) in enumerate(SIZES):
        for one in small:
            for drafts in {fewest, min(2, mostly)} if fewest else {0}:
                for warp in ("plain", SHORT[number % len(SHORT)]):
                    largest = limits.get((one, drafts))
                    if largest is not None and vocab >= largest[0] and tokens >= largest[1]:
                        continue
                    case = Case(one, vocab, tokens, warp, seed + 10 * number, drafts)
                    expected = case.reference
                    count = 0

                    def counted() -> None:
                        nonlocal count
                        count += 1
                        advance()

                    try:
                        with enumerated() as randomness:
                            law = randomness.law_of(lambda: expected.outcome(case.run()), most, counted)  # noqa: B023
                    except TooLarge:
                        limits[one, drafts] = vocab, tokens
                        continue
                    except NotDiscrete:
                        return Check(name, "N/A", "draws continuous noise, whose values cannot be enumerated")
                    distance = expected.distance(law)
                    done, replays = done + 1, replays + count
                    sizes.append(f"V={vocab} n={tokens} {warp}")
                    if distance >= worst:
                        worst, where = distance, f"vocabulary {vocab}, {tokens} tokens, {warp}"
    figures = {"cases": done, "replays": replays, "worst_total_variation": worst, "tolerance": EXACT, "sizes": sizes}
    if not done:
        return Check(name, "N/A", f"no case had fewer than {most:,} outcomes; allow more, or make the method smaller")
    where = "" if worst < EXACT else f" ({where})"
    text = f"{done} cases, {replays:,} replays: worst total variation {worst:.1e}{where}"
    if not method.lossless:
        return Check(name, "LOSSY", text, figures)
    return Check(name, "PASS" if worst < EXACT else "FAIL", text, figures)


def _repeats(method: Method, reference: Method, seed: int, seeds: int, advance: Advance) -> Check:
    """Every text is that of the method without drafts under the same seed."""
    name = "same text as without drafts"
    off, done = 0, 0
    beams = isinstance(method, BeamMethod)
    for number, (vocab, tokens) in enumerate(((3, 6), (4, 8), (4, 6), (3, 10))):
        warp = "penalties" if number % 2 else "plain"
        if not beams:
            warp = list(WARPS)[number]
        case = Case(method, vocab, tokens, warp, seed + 10 * number, order=3)
        if beams:  # beam search draws nothing: its cases differ by their models
            for i in range(max(1, seeds // 4)):
                case = Case(method, vocab, tokens, warp, seed + 10 * number + 100 * i)
                off += set_of_beams(case.run()) != set_of_beams(case.run(reference))
                done += 1
                advance()
            continue
        for i in range(max(1, seeds // 4)):
            off += case.run(seed=i).tokens != case.run(reference, seed=i).tokens
            done += 1
            advance()
    reason = f"{done - off} of {done} texts are those of {reference.name} under the same seed"
    return Check(name, "FAIL" if off else "PASS", reason, {"texts": done, "different": off})


def sampled_check(method: Method, seed: int, runs: int, advance: Advance) -> Check:
    """Whole outputs of the method as it is, warped and not, alone and in batches, against the reference's law."""
    name = "whole outputs, sampled"
    reference = method.reference(False)
    if isinstance(method, BeamMethod) and reference is not None:
        return Check(name, "N/A", "draws nothing: its one output was compared above")
    one = shrunk(method, beams_only=method.lossless)
    vocab = 3 if isinstance(method, BeamMethod) else 4
    risk = RISK / len(CELLS)
    figures: list[dict[str, Any]] = []
    failed: list[str] = []
    worst, bound, ceiling, least = 0.0, 0.0, 0.0, 1.0
    fewest, most = method.drafts_needed
    drafts = max(fewest, min(2, most)) if fewest else 0
    for number, (warp, concurrency) in enumerate(CELLS):
        case = Case(one, vocab, 4, warp, seed + number, drafts if number % 2 else None, order=3)
        expected = case.reference
        outcomes = []
        for first in range(0, runs, 4):
            seeds = range(first, min(first + 4, runs))
            outcomes += [expected.outcome(result) for result in case.runs(seeds, concurrency)]
            for _ in seeds:
                advance()
        layers = expected.samples(outcomes)
        fits = [fit(samples, risk / len(layers)) for samples in layers]
        found = max(fits, key=lambda each: each.distance - each.bound)
        least = min(least, *(each.p_value for each in fits))
        if not all(each.holds for each in fits):
            failed.append(f"{warp} at {concurrency}")
        if found.distance - found.bound >= worst - bound or not bound:
            worst, bound = found.distance, found.bound
        ceiling = max(ceiling, *(each.ceiling for each in fits))
        figures.append({"warp": warp, "concurrency": concurrency, "layers": [each.as_dict() for each in fits]})
    what = "given each layer before, " if len(figures[0]["layers"]) > 1 else ""
    text = (
        f"{len(CELLS)} × {runs:,} runs, {what}total variation {worst:.4f}, exact ones stay below {bound:.4f}; "
        f"least p {least:.2g}"
    )
    detail = {"cells": figures, "true_total_variation_at_most": ceiling, "risk": RISK, "failed": failed}
    if not method.lossless:
        return Check(name, "LOSSY", text, detail)
    return Check(name, "FAIL" if failed else "PASS", text, detail)


def refusal(name: str, error: DraftwoodError) -> Check:
    """A check that the method cannot take part in."""
    return Check(name, "N/A", str(error))
