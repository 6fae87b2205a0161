"""Checks of a server's other options: seeds, limits, stop strings, several texts, streams, biases, and scores."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from draftwood.certify.checks import Advance, Check
from draftwood.certify.server.claims import LawOptions, most_probable
from draftwood.certify.server.client import Refused, ServerAnswer
from draftwood.certify.server.evidence import Evidence
from draftwood.certify.server.greedy import Difference, first_difference
from draftwood.certify.server.sampled import LawCheck, bet, law_check, verdict
from draftwood.certify.server.subject import Subject, learn_ids

PROMPTS = 4
SEEDED_TOKENS = 24
CHOICES = 4  # texts of one request
LIMITS = range(1, 9)
STOP_LETTERS = 3
FORCED = 48  # positions whose log-probabilities are asked for again, without drafts
COMPARED = 5  # most probable tokens of a position that are compared
WRONG_SHARES = (0.3, 0.02)  # of positions that may be off: where texts are read again, as other tokens maybe; by ids


def seed_check(subject: Subject, advance: Advance) -> Check:
    """The same seed gives the same text again, another one another text."""
    name = "seeds"
    if not subject.seeds:
        return Check(name, "N/A", "not offered: the server takes no seed")
    same = different = batched = 0
    prompts = subject.prompts[:PROMPTS]

    def request(prompt: str, seed: int, tag: str) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": SEEDED_TOKENS, "temperature": 1.0, "seed": seed, "tag": tag}

    together = subject.server.ask([request(prompt, 7 + i % 2, "batch") for prompt in prompts for i in range(2)])
    for number, prompt in enumerate(prompts):
        one, again, other = (
            subject.server.ask([request(prompt, seed, tag)])[0][0].text
            for seed, tag in ((7, "one"), (7, "again"), (8, "one"))
        )
        same, different = same + (one == again), different + (one != other)
        batched += one == together[2 * number][0].text
        advance()
    total = len(prompts)
    reason = f"{same} of {total} texts came again with their seed, {batched} of {total} in a batch"
    if not different:
        return Check(name, "FAIL", f"{reason}; another seed never gave another text")
    return Check(name, "PASS" if same == total else "FAIL", reason, {"texts": total, "same": same, "in_batch": batched})


def limit_check(subject: Subject, greedy: Sequence[ServerAnswer], advance: Advance) -> Check:
    """Texts of 1 to 8 tokens have so many, and begin as the longer ones do."""
    wrong: list[str] = []
    for prompt, whole in list(zip(subject.prompts, greedy, strict=False))[:PROMPTS]:
        for tokens in LIMITS:
            one = subject.server.ask([subject.greedy(prompt, tokens)])[0][0]
            made = len(one.tokens) if one.completion_tokens is None else one.completion_tokens
            ended = one.finish != "length"
            if made > tokens or (made < tokens and not ended):
                wrong.append(f"{made} tokens where {tokens} were asked for")
            elif (
                one.finish == "length" and not whole.text.startswith(one.text) and not _tie(subject, prompt, one, whole)
            ):
                wrong.append(f"{one.text[-20:]!r} where the longer text has {whole.text[: len(one.text)][-20:]!r}")
            advance()
    return _all_right("max_tokens", wrong, "texts of 1 to 8 tokens have so many and begin as longer ones")


def stop_check(subject: Subject, greedy: Sequence[ServerAnswer], advance: Advance) -> Check:
    """Texts end right before a stop string that lies across tokens, and say so."""
    wrong: list[str] = []
    tried = 0
    for prompt, whole in list(zip(subject.prompts, greedy, strict=False))[: 2 * PROMPTS]:
        for share in (3, 2):
            start = len(whole.text) // share
            stop = whole.text[start : start + STOP_LETTERS]
            if len(stop) < STOP_LETTERS or not stop.strip() or "\ufffd" in stop:
                continue
            expected = whole.text[: whole.text.find(stop)]
            one = subject.server.ask([subject.greedy(prompt, stop=[stop])])[0][0]
            tried += 1
            if one.text != expected and not _tie(subject, prompt, one, whole):
                wrong.append(f"{one.text[-20:]!r} before {stop!r}, not {expected[-20:]!r}")
            elif one.text == expected and one.finish != "stop":
                wrong.append(f"finish_reason {one.finish!r} at a stop string")
            advance()
    if not tried:
        return Check("stop strings", "N/A", "greedy texts are too short to stop inside them; other prompts would tell")
    return _all_right("stop strings", wrong, f"{tried} texts end before their stop string")


def stream_check(subject: Subject, greedy: Sequence[ServerAnswer], advance: Advance) -> Check:
    """Streamed texts are those that come whole."""
    wrong: list[str] = []
    for prompt, whole in list(zip(subject.prompts, greedy, strict=False))[:PROMPTS]:
        one = subject.server.ask([subject.greedy(prompt, stream=True)])[0][0]
        if one.text != whole.text and not _tie(subject, prompt, one, whole):
            wrong.append(f"{one.text[-20:]!r}, not {whole.text[-20:]!r}")
        advance()
    if subject.server.broken_stream:
        wrong.append(f"streams break off when other requests run ({subject.server.broken_stream})")
    return _all_right("streams", wrong, "streamed texts are those that come whole")


def _tie(subject: Subject, prompt: str, one: ServerAnswer, whole: ServerAnswer) -> bool:
    """Whether two texts part at a tie within rounding."""
    difference: Difference | None = first_difference(prompt, one, whole)
    return difference is not None and difference.explained(subject.tolerance)


def _all_right(name: str, wrong: Sequence[str], right: str) -> Check:
    if wrong:
        return Check(name, "FAIL", f"{len(wrong)} wrong: {wrong[0]}", {"wrong": list(wrong[:5])})
    return Check(name, "PASS", right)


def choices_check(subject: Subject, number: int, advance: Advance) -> Check:
    """The texts of one request are so many, differ, and follow the law each."""
    check = LawCheck("n", LawOptions())
    evidence = Evidence(number)
    counts: set[int] = set()
    distinct = 0

    def requests() -> Iterator[dict[str, Any]]:
        for i in range(max(8, subject.budget.samples // CHOICES)):
            prompt = subject.prompts[i % PROMPTS]
            yield {
                "prompt": prompt,
                "max_tokens": 8,
                "temperature": 1.0,
                "n": CHOICES,
                "tag": f"{number} {i}",
                **subject.seed(10_000 * number + i),
            }

    for request, answers in subject.batches(requests()):
        counts.add(len(answers))
        distinct += len({answer.text for answer in answers}) > 1
        for answer in answers if subject.count else ():
            for place in range(len(answer.tokens)):
                bet(subject, evidence, LawOptions(), request["prompt"], answer, place)
        advance()
        if evidence.against or counts != {CHOICES}:
            break
    if counts != {CHOICES}:
        return Check("n", "N/A", f"not offered: {max(counts)} texts where {CHOICES} were asked for")
    if not distinct:
        return Check("n", "FAIL", f"the {CHOICES} texts of each request are the same")
    if not subject.count:
        return Check(
            "n", "PASS", f"{CHOICES} texts each, which differ; their law is not known without log-probabilities"
        )
    return verdict(check, evidence, Evidence(), "")


def bias_check(subject: Subject, number: int, advance: Advance) -> Check:
    """Tokens follow the law with two tokens' logits moved."""
    name = "logit_bias"
    if not subject.count:
        return Check(name, "N/A", "the server reports no log-probabilities")
    words = [token for _, answer in subject.sampled for token in answer.tokens]
    common = sorted({*words}, key=lambda token: -words.count(token))[:12]
    try:
        learn_ids(subject, common)
    except Refused as refused:
        return Check(name, "N/A", f"not offered: {refused}")
    chosen = [token for token in common if token in subject.ids][:2]
    if len(chosen) < 2:
        return Check(
            name, "N/A", "token ids cannot be learnt: the server has no /tokenize, or biases are without effect"
        )
    bias = dict(zip(chosen, (-3.0, 3.0), strict=True))
    return law_check(subject, LawCheck(name, LawOptions(bias=bias)), number, advance)


def logprob_check(subject: Subject, advance: Advance) -> Check:
    """Log-probabilities of tokens inside answers are those of the same tokens asked for alone, where nothing drafts."""
    name = "log-probabilities with drafts and without"
    if not subject.count or subject.server.chat:
        why = "the server reports none" if not subject.count else "a conversation cannot be continued token by token"
        return Check(name, "N/A", why)
    moves: list[float] = []
    for prompt, answer in subject.sampled:
        for place in range(1, len(answer.tokens)):
            alone = subject.forced(prompt, answer, place)
            if alone is None or not alone.top or len(moves) >= FORCED:
                continue
            best = most_probable(alone.top[0], COMPARED)
            second = answer.top[place]
            floor = min(second.values())
            moves.append(max(abs(value - second.get(token, min(floor, value))) for token, value in best))
            advance()
    if len(moves) < 8:
        return Check(name, "N/A", f"only {len(moves)} positions could be asked for again: other tokens were read")
    bound = 4 * subject.tolerance
    wrong = sum(move > bound for move in moves)
    reason = f"{len(moves) - wrong} of {len(moves)} positions agree within {bound:.2g} nats, half of them within "
    reason += f"{statistics.median(moves):.2g}"
    figures = {"positions": len(moves), "wrong": wrong, "median": statistics.median(moves), "largest": max(moves)}
    return Check(name, "FAIL" if wrong > WRONG_SHARES[subject.named_ids] * len(moves) else "PASS", reason, figures)
