"""Sampled tokens: bets against the laws that the server claims, and against the same laws as another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from draftwood.certify.checks import Advance, Check
from draftwood.certify.server.claims import REST, SPECIAL, LawOptions
from draftwood.certify.server.client import Gone, NotAsked, ServerAnswer
from draftwood.certify.server.evidence import POWER, ClaimedLaw, Evidence, TwoSamples
from draftwood.certify.server.greedy import spelled
from draftwood.certify.server.subject import Subject

PROMPTS = 6  # that are sampled from in turn, so that contexts come again
LENGTHS = (8, 8, 8, 3, 8, 8, 5, 1, 8, 8, 2, 8, 7, 8, 4, 6)  # tokens of requests in turn
STREAMS = 3  # at once, of which none should break the others off
KEPT = 24  # plain answers that are kept for other checks
MIN_TOKENS = 50  # with a law that leaves a choice, or the check says nothing
NO_DOUBT = 3.0  # of the logarithm of the evidence against a law that tokens are said to follow
VIEWS = (1, 2, 4)  # tokens of a continuation, whose laws two servers should share


@dataclass(frozen=True, slots=True)
class LawCheck:
    """One check of sampled tokens: what is asked for, and whether every server has the fields (OpenAI's)."""

    name: str
    options: LawOptions
    everywhere: bool = True


PLAIN = LawCheck("sampled tokens", LawOptions())
OTHERS = (
    LawCheck("temperature 0.6", LawOptions(temperature=0.6)),
    LawCheck("temperature 1.5", LawOptions(temperature=1.5)),
    LawCheck("top-k", LawOptions(top_k=3), everywhere=False),
    LawCheck("top-p", LawOptions(top_p=0.6)),
    LawCheck("min-p", LawOptions(min_p=0.2), everywhere=False),
    LawCheck("presence penalty", LawOptions(presence_penalty=1.8)),
    LawCheck("frequency penalty", LawOptions(frequency_penalty=1.2)),
)


def law_check(subject: Subject, check: LawCheck, number: int, advance: Advance) -> Check:
    """Tokens of sampled answers against the laws that their own log-probabilities claim."""
    if not subject.count:
        return Check(check.name, "N/A", "the server reports no log-probabilities")
    if subject.raw is None and check is not PLAIN:
        return Check(check.name, "N/A", "log-probabilities change with the temperature in a way that is not known")
    stream = check is PLAIN and _streams_tokens(subject)
    fields = check.options.fields(subject.ids) | ({"stream": True} if stream else {})
    prompts = subject.prompts[:PROMPTS]

    def requests() -> Iterator[dict[str, Any]]:
        for i in range(subject.budget.samples):
            length = LENGTHS[i % len(LENGTHS)]
            seed = subject.seed(10_000 * number + i)
            yield {"prompt": prompts[i % len(prompts)], "max_tokens": length, **fields, **seed, "tag": f"{number} {i}"}

    evidence, plain = Evidence(number), Evidence(number)

    def take(prompt: str, answer: ServerAnswer) -> None:
        if check is PLAIN and len(subject.sampled) < KEPT:
            subject.sampled.append((prompt, answer))
        for place in range(len(answer.tokens)):
            bet(subject, evidence, check.options, prompt, answer, place)
            if check is not PLAIN:
                bet(subject, plain, LawOptions(), prompt, answer, place)

    stopped = _drawn(subject, requests(), take, evidence, None if check is PLAIN else plain, advance)
    result = verdict(check, evidence, plain, stopped)
    if stream:
        places = [place for _, answer in subject.sampled for place in answer.places]
        result.figures["tokens_per_chunk"] = len(places) / max(1, places.count(0))
    return result


def _streams_tokens(subject: Subject) -> bool:
    """Whether streamed answers have log-probabilities, too, whose chunks say what came out of one round."""
    request = subject.greedy(subject.prompts[0], 4)
    whole = subject.server.ask([request])[0][0]
    streams = subject.server.ask([{**request, "stream": True, "tag": f"stream {i}"} for i in range(STREAMS)])
    return all(len(one.tokens) == len(whole.tokens) for one, *_ in streams)


def bet(
    subject: Subject, evidence: Evidence, options: LawOptions, prompt: str, answer: ServerAnswer, place: int
) -> None:
    """Add one token, if its law is known and leaves a choice."""
    claim = subject.law(prompt, answer, place, options)
    if claim is None:
        return
    law, whole = claim
    token = answer.tokens[place]
    if SPECIAL.fullmatch(token):
        return
    if token not in law.names:
        if not whole:
            return
        token = REST if REST in law.names else token
    prefix = prompt, *answer.tokens[:place]
    evidence.add(law, token, prefix, answer.places[place] if answer.places else place)


def _drawn(
    subject: Subject,
    requests: Iterator[dict[str, Any]],
    take: Callable[[str, ServerAnswer], None],
    evidence: Evidence,
    plain: Evidence | None,
    advance: Advance,
) -> str:
    """Draw until the evidence is clear, also whether tokens are `plain`; why it was stopped before, or nothing."""
    try:
        for request, answers in subject.batches(requests):
            for answer in answers:
                take(request["prompt"], answer)
            advance()
            if evidence.against and (plain is None or plain.against):
                break
    except (NotAsked, Gone) as stop:
        if isinstance(stop, Gone) and not evidence.against:
            raise Gone(f"{stop}; {evidence.draws} tokens until then show nothing") from None
        return str(stop)
    return ""


def verdict(check: LawCheck, evidence: Evidence, plain: Evidence, stopped: str) -> Check:
    figures = evidence.figures()
    if evidence.against:
        if evidence.impossible:
            reason = f"{evidence.impossible!r} was drawn, which the request makes impossible"
        else:
            reason = f"tokens do not follow the law that is claimed: e-value 10^{figures['e_value_log10']:.0f}"
        reason += f", seen after {evidence.seen_after} tokens"
        if plain.draws >= MIN_TOKENS and plain.log < NO_DOUBT:
            reason = f"accepted, but without effect: tokens follow the plain law ({reason})"
            if not check.everywhere:
                return Check(check.name, "N/A", f"not offered: {reason}", figures)
        return Check(check.name, "FAIL", reason, figures)
    if stopped or len(evidence.laws) < MIN_TOKENS:
        why = stopped or "few laws leave a choice that what is reported tells; other prompts may"
        return Check(check.name, "N/A", f"only {len(evidence.laws)} tokens could be judged: {why}", figures)
    least = figures["total_variation_seen"]
    if least is None and not check.options.truncates:
        reason = f"{evidence.draws:,} tokens are too few to see another law; allow more --samples"
        return Check(check.name, "N/A", reason, figures)
    power = "would have seen little but tokens that the request makes impossible"
    if least is not None:
        power = f"would have seen a total variation of {least:.3f} with probability {POWER:g}"
    reason = (
        f"{evidence.draws:,} tokens, e-value {10 ** figures['e_value_log10']:.2g} (fails at {1 / evidence.risk:.0e})"
    )
    return Check(check.name, "PASS", f"{reason}; {power}", figures)


def two_sample_check(subject: Subject, options: LawOptions, name: str, number: int, advance: Advance) -> Check:
    """The first tokens of continuations beside those of the other server."""
    rival = subject.rival
    assert rival is not None
    test = TwoSamples(len(VIEWS))
    prompts = subject.prompts[:PROMPTS]
    fields = {"max_tokens": max(VIEWS), **options.fields(subject.ids)}

    def requests(offset: int) -> Iterator[dict[str, Any]]:
        for i in range(subject.budget.samples):
            seed = subject.seed(10_000 * number + offset * 5_000 + i)
            yield {"prompt": prompts[i % len(prompts)], **fields, **seed, "tag": f"two {number} {offset} {i}"}

    ours, theirs = requests(0), requests(1)
    stopped = ""
    try:
        for first in subject.batches(ours):
            request, (one, *_) = first
            other = rival.ask([next(theirs)])[0][0]
            views = [[_beginning(each, view) for view in VIEWS] for each in (one, other)]
            known = subject.law(request["prompt"], one, 0, options) if subject.count and one.tokens else None
            law = None if known is None else ClaimedLaw([*map(spelled, known[0].names)], known[0].p)
            names = [spelled(each.tokens[0]) if each.tokens else "" for each in (one, other)]
            test.add(request["prompt"], views[0], views[1], law, names)
            advance()
            if test.seen_after is not None:
                break
    except (NotAsked, Gone) as stop:
        stopped = str(stop)
    log10 = test.log / 2.302585
    figures = {"pairs": test.pairs, "e_value_log10": log10, "seen_after_pairs": test.seen_after, "views": VIEWS}
    if test.seen_after is not None:
        reason = f"continuations follow other laws: e-value 10^{log10:.0f}, seen after {test.seen_after} pairs"
        return Check(name, "FAIL", reason, figures)
    if stopped:
        return Check(name, "N/A", f"only {test.pairs} pairs: {stopped}", figures)
    least = test.power(number)
    figures |= {"total_variation_seen": least, "seen_with_probability": None if least is None else POWER}
    if least is None:
        return Check(name, "N/A", f"{test.pairs} pairs are too few to see another law; allow more --samples", figures)
    power = f"would have seen a total variation of {least:.2f} with probability {POWER:g}"
    return Check(name, "PASS", f"{test.pairs} pairs, e-value {10**log10:.2g}; {power}", figures)


def _beginning(answer: ServerAnswer, count: int) -> tuple[str, ...] | str:
    """The first tokens of a text, or its first characters where tokens are not named."""
    return tuple(map(spelled, answer.tokens[:count])) if answer.tokens else answer.text[:count]
