"""The certificate of a server: every check in turn, one verdict, and what could not be tested."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias

import draftwood
from draftwood.certify.checks import Advance, Check, CheckVerdict
from draftwood.certify.server import features, greedy, sampled
from draftwood.certify.server.budget import ServerBudget
from draftwood.certify.server.claims import LawOptions
from draftwood.certify.server.client import Gone, NoCompletion, NotAsked, Refused, Server, ServerAnswer, Side
from draftwood.certify.server.prompts import PROMPTS
from draftwood.certify.server.subject import Subject, drafting, fingerprint, prepare
from draftwood.errors import ConfigurationError, did_you_mean

OnRequests: TypeAlias = Callable[[str, int], bool]  # (check, requests so far) -> whether to go on
ServerJob: TypeAlias = tuple[str, Callable[[Advance], list[Check]]]
TWO_SAMPLES = (
    ("continuations, against the other", LawOptions()),
    ("continuations at top-p 0.8, against the other", LawOptions(top_p=0.8)),
    ("continuations with penalties, against the other", LawOptions(presence_penalty=1.0, frequency_penalty=0.5)),
)
NO_TEXTS = "there are no greedy texts to compare with"


class Stopped(Exception):
    """The caller's progress function asked to stop."""


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """The checks of a server; not `complete` where it died, a bound was reached or the caller stopped."""

    server: dict[str, Any]
    against: str | None
    checks: Sequence[Check]
    drafts: dict[str, float]  # drafted and accepted tokens while it was tested, by the server's own counters
    requests: int  # that were answered, by the journal too
    began: str
    complete: bool

    @property
    def verdict(self) -> CheckVerdict:
        """FAIL where any check fails, N/A where none passes."""
        verdicts = [check.verdict for check in self.checks]
        return "FAIL" if "FAIL" in verdicts else "PASS" if "PASS" in verdicts else "N/A"

    @property
    def drafted(self) -> str:
        """One sentence on whether anything was drafted: a server that never drafts passes without showing much."""
        if count := self.drafts.get("draft_tokens"):
            accepted = self.drafts.get("accepted_tokens", 0.0)
            return f"By its own counters it drafted {count:,.0f} tokens, of which {accepted:,.0f} were accepted."
        if self.drafts:
            return "By its own counters it drafted nothing, so this says nothing about speculation."
        if any(check.figures.get("tokens_per_chunk", 1) > 1 for check in self.checks):
            return "Its streams hold several tokens at a time, so it seems to speculate."
        return "It does not say whether it drafts; if it does not, this says nothing about speculation."

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {**asdict(self), "draftwood": draftwood.__version__, "verdict": self.verdict, "drafted": self.drafted}


def certify_server(
    server: Server,
    against: Side | None = None,
    prompts: Sequence[str] = PROMPTS,
    budget: ServerBudget | None = None,
    progress: OnRequests = lambda check, requests: True,
    skip: Collection[str] = (),
) -> ServerCertificate:
    """Test a server by its answers alone, beside another server or a model where one is given.

    `skip` names checks that are left out. Raises ConfigurationError where the server completes no text at all, or a
    check is unknown; whatever happens later is in the certificate.
    """
    try:
        return _certificate(server, against, prompts, budget or ServerBudget(), progress, skip)
    finally:
        for side in (server, against):
            if isinstance(side, Server):
                side.close()


def _certificate(
    server: Server,
    against: Side | None,
    prompts: Sequence[str],
    budget: ServerBudget,
    progress: OnRequests,
    skip: Collection[str],
) -> ServerCertificate:
    began = datetime.now(UTC).isoformat(timespec="seconds")
    before = drafting(server)
    subject = prepare(server, budget, prompts)
    if isinstance(against, Server):
        prepare(against, budget, prompts[:1])
    subject.rival = against
    checks: list[Check] = []
    complete = True
    every = list(jobs(subject))
    if unknown := sorted({*skip} - {name for name, _ in every}):
        raise ConfigurationError(f"there is no check {unknown[0]!r}" + did_you_mean(unknown[0], [n for n, _ in every]))
    for name, run in every:
        if name in skip:
            checks.append(Check(name, "N/A", "left out, as was asked"))
            continue

        def advance(count: int = 1) -> None:
            if not progress(name, server.requests_made):  # noqa: B023
                raise Stopped

        try:
            advance()
            checks += run(advance)
        except Refused as refused:
            checks.append(Check(name, "N/A", f"not offered: {refused}"))
        except NoCompletion as wrong:
            checks.append(Check(name, "FAIL", str(wrong)))
        except NotAsked as bound:
            checks.append(Check(name, "N/A", f"not tested: {bound}"))
            complete = False
        except Gone as gone:
            checks.append(Check(name, "N/A", f"not tested: {gone}"))
            complete = False
            break
        except Stopped:
            complete = False
            break
    after = drafting(server) if complete else {}
    drafts = {name: value - before.get(name, 0.0) for name, value in after.items()}
    rival = None if against is None else against.name
    return ServerCertificate(fingerprint(subject), rival, checks, drafts, server.answered, began, complete)


def jobs(subject: Subject) -> Iterator[ServerJob]:
    """Every check with its name; greedy texts first, since others need them."""
    texts: list[ServerAnswer] = []

    def repeated(advance: Advance) -> list[Check]:
        check, answers = greedy.repeat_check(subject)
        texts.extend(answers)
        return [check, greedy.choice_check(subject, answers)]

    yield "greedy text", repeated
    for number, law in enumerate((sampled.PLAIN, *sampled.OTHERS)):
        yield (
            law.name,
            lambda advance, law=law, number=number: [  # type: ignore[misc]
                sampled.law_check(subject, law, number, advance)
            ],
        )
    yield "logit_bias", lambda advance: [features.bias_check(subject, 20, advance)]
    yield "n", lambda advance: [features.choices_check(subject, 21, advance)]
    yield "seeds", lambda advance: [features.seed_check(subject, advance)]
    for name, check in (
        ("max_tokens", features.limit_check),
        ("stop strings", features.stop_check),
        ("streams", features.stream_check),
    ):
        yield (
            name,
            lambda advance, name=name, check=check: [  # type: ignore[misc]
                check(subject, texts, advance) if texts else Check(name, "N/A", NO_TEXTS)
            ],
        )
    yield (
        "log-probabilities with drafts and without",
        lambda advance: [features.logprob_check(subject, advance)],
    )
    if subject.rival is not None:
        name = "against the other"
        yield name, lambda advance: greedy.against_checks(subject, texts) if texts else [Check(name, "N/A", NO_TEXTS)]
        for number, (name, options) in enumerate(TWO_SAMPLES, 30):
            one = partial(sampled.two_sample_check, subject, options, name, number)
            yield name, lambda advance, one=one: [one(advance)]  # type: ignore[misc]
