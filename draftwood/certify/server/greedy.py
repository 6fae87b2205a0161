"""Greedy texts: beside themselves, alone and in batches, beside the server's own log-probabilities, and another's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftwood.certify.checks import Check, CheckVerdict
from draftwood.certify.server.budget import ROUNDING
from draftwood.certify.server.claims import most_probable
from draftwood.certify.server.client import ServerAnswer
from draftwood.certify.server.subject import Subject

REPEATS = 2  # of each greedy request alone, beside one in a batch
TEXTS = 8
MIN_POSITIONS = 12  # whose log-probabilities tell whether weights are the same
SHOWN = 3  # differences whose texts are in the report
MOST_NOISE = 4.0  # times the rounding; repeated requests that move more are not the same computation
MAX_GAP = 5.0  # nats; larger differences of log-probabilities say nothing about ties
SAME_WEIGHTS = 0.3  # of the rounding: how far half of all differences may be apart, of the same weights


def spelled(token: str) -> str:
    """A token's text, where a server gives its vocabulary's own spelling."""
    return token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two greedy texts part: each side's token, and how far apart it has the two (positive: as it chose)."""

    prompt: str
    position: int
    tokens: tuple[str, str]
    gaps: tuple[float, float]
    texts: tuple[str, str]

    @property
    def moved(self) -> float:
        """How far rounding would have to move the difference of two log-probabilities to explain both choices."""
        return max(abs(self.gaps[0]), abs(self.gaps[1]), sum(self.gaps))

    def explained(self, tolerance: float) -> bool:
        return self.moved <= tolerance


def first_difference(prompt: str, one: ServerAnswer, other: ServerAnswer) -> Difference | None:
    """The first token at which two texts of a prompt differ; None where they are the same as far as both go.

    Where one ended instead, which has no spelling, the other's next best token stands for the end.
    """
    ours, theirs = [*map(spelled, one.tokens)], [*map(spelled, other.tokens)]
    place = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if place is None:
        place = min(len(ours), len(theirs))
        longer = one if len(ours) > len(theirs) else other
        if len(ours) == len(theirs) or "length" in (one.finish if longer is other else other.finish, None):
            return None
        gap = _gap(longer, place, None)
        gaps = (gap, 0.0) if longer is one else (0.0, gap)
        ends = ("(end)" if longer is other else ours[place], "(end)" if longer is one else theirs[place])
        return Difference(prompt, place, ends, gaps, (one.text, other.text))
    gaps = _gap(one, place, theirs[place]), _gap(other, place, ours[place])
    return Difference(prompt, place, (ours[place], theirs[place]), gaps, (one.text, other.text))


def _gap(answer: ServerAnswer, place: int, token: str | None) -> float:
    """How far a token lies below the answer's own, at least; infinite where nothing is reported."""
    if place >= len(answer.top) or len(answer.top[place]) < 2:
        return math.inf
    values = {spelled(name): value for name, value in answer.top[place].items()}
    own = values.pop(spelled(answer.tokens[place]))
    if token is None:
        return abs(own - max(values.values()))
    return own - values.get(token, min(values.values()))


def margins(one: ServerAnswer, other: ServerAnswer) -> list[tuple[float, float]]:
    """How far apart both have the first one's two best tokens, at each position before they part."""
    apart = []
    for i, (a, b) in enumerate(zip(one.top, other.top, strict=False)):
        values = {spelled(name): value for name, value in b.items()}
        best = [(spelled(name), value) for name, value in most_probable(a, 2)]
        if len(best) == 2 and best[0][1] - best[1][1] < MAX_GAP and all(name in values for name, _ in best):
            (x, p), (y, q) = best
            apart.append((p - q, values[x] - values[y]))
        if i < min(len(one.tokens), len(other.tokens)) and spelled(one.tokens[i]) != spelled(other.tokens[i]):
            break
    return apart


def repeat_check(subject: Subject) -> tuple[Check, list[ServerAnswer]]:
    """The same greedy requests alone and in a batch; sets `subject.noise`. Returns the texts that ran alone, too."""
    name = "greedy text, repeated and in batches"
    prompts = subject.prompts[:TEXTS]
    alone = [
        [subject.server.ask([subject.greedy(prompt, tag=f"alone {i}")])[0][0] for i in range(REPEATS)]
        for prompt in prompts
    ]
    together = subject.server.ask([subject.greedy(prompt, tag="batch") for prompt in prompts])
    pairs = [
        (prompt, texts[0], other)
        for prompt, texts, (batched, *_) in zip(prompts, alone, together, strict=True)
        for other in (*texts[1:], batched)
    ]
    moves = [abs(a - b) for _, one, other in pairs for a, b in margins(one, other)]
    differences = [difference for pair in pairs if (difference := first_difference(*pair)) is not None]
    subject.noise = max(moves, default=0.0)
    limit = ROUNDING[subject.budget.precision]
    wrong = [one for one in differences if not one.explained(2 * limit)]
    beyond = bool(wrong) or subject.noise > MOST_NOISE * limit
    reason = f"{len(pairs) - len(differences)} of {len(pairs)} texts were the same again"
    if moves:
        reason += f"; log-probabilities moved by {subject.noise:.2g} at most"
    if differences:
        kind = "more than rounding" if beyond else "ties within rounding"
        reason += (
            f"; {len(differences)} parted, {kind} ({_told(wrong or differences)}): it is not deterministic by itself"
        )
    elif beyond:
        reason += f", more than rounding of {subject.budget.precision}"
    verdict: CheckVerdict = "PASS" if not beyond else "FAIL" if subject.count else "N/A"
    return Check(name, verdict, reason, _figures(differences, 2 * limit, moves)), [texts[0] for texts in alone]


def choice_check(subject: Subject, answers: Sequence[ServerAnswer]) -> Check:
    """Every greedy token is the most probable one by the log-probabilities that are reported with it."""
    name = "greedy choice by its own log-probabilities"
    if not subject.count:
        return Check(name, "N/A", "the server reports no log-probabilities")
    gaps = [max(top.values()) - top[token] for one in answers for token, top in zip(one.tokens, one.top, strict=True)]
    if not gaps:
        return Check(name, "N/A", "the greedy answers have no tokens")
    wrong = [gap for gap in gaps if gap > subject.tolerance]
    reason = f"{len(gaps) - len(wrong)} of {len(gaps)} tokens are the most probable, within {subject.tolerance:.2g}"
    reason += f"; the worst lies {max(gaps):.2g} below" if wrong else ""
    return Check(name, "FAIL" if wrong else "PASS", reason, {"tokens": len(gaps), "wrong": len(wrong)})


def against_checks(subject: Subject, answers: Sequence[ServerAnswer]) -> list[Check]:
    """The greedy texts beside another server's: where they part, and whether both compute with the same weights."""
    assert subject.rival is not None
    names = "greedy text, against the other", "weights, against the other"
    prompts = subject.prompts[: len(answers)]
    theirs = [one for one, *_ in subject.rival.ask([subject.greedy(prompt) for prompt in prompts])]
    read = {one.prompt_tokens == other.prompt_tokens for one, other in zip(answers, theirs, strict=True)}
    known = all(one.prompt_tokens is not None for one in (*answers, *theirs))
    if known and False in read:
        reason = "the two read prompts as different numbers of tokens, so their texts cannot be compared token by token"
        return [Check(name, "N/A", reason) for name in names]
    if not subject.count or not all(one.top for one in theirs if one.tokens):
        same = sum(one.text == other.text for one, other in zip(answers, theirs, strict=True))
        reason = f"{same} of {len(prompts)} texts are the same; without log-probabilities no difference can be judged"
        return [Check(names[0], "PASS" if same == len(prompts) else "N/A", reason), Check(names[1], "N/A", reason)]
    pairs = list(zip(prompts, answers, theirs, strict=True))
    differences = [difference for pair in pairs if (difference := first_difference(*pair)) is not None]
    wrong = [one for one in differences if not one.explained(subject.tolerance)]
    moves = [abs(a - b) for _, one, other in pairs for a, b in margins(one, other)]
    reason = f"{len(pairs) - len(differences)} of {len(pairs)} texts are the same"
    if differences:
        reason += f"; {len(differences) - len(wrong)} part at ties within {subject.tolerance:.2g} nats"
        reason += f", {len(wrong)} at differences ({_told(wrong)})" if wrong else f" ({_told(differences)})"
    texts = Check(names[0], "FAIL" if wrong else "PASS", reason, _figures(differences, subject.tolerance, moves))
    return [texts, _weights(names[1], subject, moves)]


def _weights(name: str, subject: Subject, moves: Sequence[float]) -> Check:
    """Whether the log-probabilities of both are as near to each other as those of the same weights would be."""
    bound = SAME_WEIGHTS * ROUNDING[subject.budget.precision]
    bound = max(bound, 2 * subject.noise)
    if len(moves) < MIN_POSITIONS:
        return Check(name, "N/A", f"only {len(moves)} positions before texts part; more or longer prompts would tell")
    middle = statistics.median(moves)
    figures = {"positions": len(moves), "median": middle, "largest": max(moves), "bound": bound}
    reason = f"two best tokens are {middle:.2g} nats nearer or farther in the median of {len(moves)} positions"
    if middle <= bound:
        return Check(name, "PASS", f"{reason}; rounding of {subject.budget.precision} explains {bound:.2g}", figures)
    reason += (
        f", more than the {bound:.2g} of {subject.budget.precision}'s rounding: other weights, or other bits of them"
    )
    return Check(name, "FAIL", f"{reason} or of activations", figures)


def _told(differences: Sequence[Difference]) -> str:
    worst = max(differences, key=lambda one: one.moved)
    return (
        f"{worst.tokens[0]!r} or {worst.tokens[1]!r} at token {worst.position} behind {worst.prompt[-24:]!r}, "
        f"{worst.moved:.2g} nats"
    )


def _figures(differences: Sequence[Difference], tolerance: float, moves: Sequence[float]) -> dict[str, Any]:
    """For the certificate's JSON; the texts of the worst ones alone."""
    worst = sorted(differences, key=lambda one: -one.moved)
    return {
        "tolerance": tolerance,
        "positions": len(moves),
        "median_move": statistics.median(moves) if moves else None,
        "largest_move": max(moves, default=None),
        "ties": sum(one.explained(tolerance) for one in differences),
        "differences": [asdict(one) | {"moved": one.moved} for one in worst[:SHOWN]],
    }
