"""A server under examination: what it offers, found out by a few requests, and what all checks need to know of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any

from draftwood.certify.server.budget import ROUNDING, ServerBudget
from draftwood.certify.server.claims import LawOptions, claimed
from draftwood.certify.server.client import Gone, NoCompletion, Refused, Server, ServerAnswer, Side
from draftwood.certify.server.evidence import ClaimedLaw
from draftwood.errors import ConfigurationError
from draftwood.util.safe_parsing import parse_json

PLAIN = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "repeat_penalty": 1.0}
TOPS = (20, 5, 1)  # numbers of log-probabilities that servers allow
SAME = 0.02  # relative to a change by a temperature


@dataclass
class Subject:
    """A server, how it is asked, and what its log-probabilities mean."""

    server: Server
    budget: ServerBudget
    prompts: Sequence[str]
    rival: Side | None = None
    count: int = 0  # most probable tokens that it reports; 0: none
    raw: bool | None = None  # log-probabilities are those before temperature, penalties and truncation; None: unknown
    seeds: bool = True  # whether requests may name one
    noise: float = 0.0  # how far repeated requests move the difference of two log-probabilities
    named_ids: bool = False  # answers name token ids, and prompts may be such
    ids: dict[str, int] = field(default_factory=dict)  # of some tokens
    sampled: list[tuple[str, ServerAnswer]] = field(default_factory=list)  # with their prompts, of the plain check
    prompt_tokens: dict[str, int | None] = field(default_factory=dict)  # of each prompt, as the server counts
    _laws: dict[str, ServerAnswer] = field(default_factory=dict)

    @property
    def tolerance(self) -> float:
        """How far rounding may move the difference of two log-probabilities."""
        rounding = ROUNDING[self.budget.precision]
        return min(max(2 * self.noise, rounding), 4 * rounding)

    def greedy(self, prompt: str, tokens: int | None = None, **more: Any) -> dict[str, Any]:
        """A greedy request."""
        return {"prompt": prompt, "max_tokens": tokens or self.budget.greedy_tokens, "temperature": 0.0, **more}

    def seed(self, number: int) -> dict[str, int]:
        """The seed of a sampled request; none where the server takes none."""
        return {"seed": Random(f"{self.budget.server_seed} {number}").getrandbits(31)} if self.seeds else {}

    def batches(self, requests: Iterator[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[ServerAnswer]]]:
        """Requests with their texts, as many at once as are allowed."""
        while batch := list(islice(requests, self.budget.concurrency)):
            yield from zip(batch, self.server.ask(batch), strict=True)

    def law(self, prompt: str, answer: ServerAnswer, place: int, options: LawOptions) -> tuple[ClaimedLaw, bool] | None:
        """The law that the server claims for a token of its answer: see `claimed`."""
        top, before = answer.top[place], answer.tokens[:place]
        if not self.raw and options != LawOptions():
            alone = self.forced(prompt, answer, place)
            if alone is None:
                return None
            top = alone.top[0]
        return claimed(top, self.count, options, prompt, before)

    def forced(self, prompt: str, answer: ServerAnswer, place: int) -> ServerAnswer | None:
        """One plain token behind the first tokens of an answer: nothing can be drafted for it.

        None where the server would not read the same tokens again, as far as their number tells.
        """
        given: str | list[int] = prompt + "".join(answer.tokens[:place])
        if self.named_ids and len(answer.ids) == len(answer.tokens):
            given = [*answer.prompt_ids, *answer.ids[:place]]
        elif self.server.chat or not (prompt + answer.text).startswith(str(given)):
            return None
        key = str(given)
        if key not in self._laws:
            self._laws[key] = self.server.ask([{"prompt": given, "max_tokens": 1, "temperature": 1.0, **self.seed(0)}])[
                0
            ][0]
        again = self._laws[key]
        lengths = self.prompt_tokens.get(prompt), again.prompt_tokens
        if isinstance(given, str) and None not in lengths and lengths[0] + place != lengths[1]:  # type: ignore[operator]
            return None
        return again if again.top else None


def models(server: Server) -> list[str]:
    """The models that a server lists."""
    page = server.get("/v1/models")
    try:
        return [str(one["id"]) for one in parse_json(page or "{}")["data"]]
    except (ValueError, LookupError, TypeError):
        return []


def prepare(server: Server, budget: ServerBudget, prompts: Sequence[str]) -> Subject:
    """The server, its model, endpoint, log-probabilities and fields; ConfigurationError where it completes nothing."""
    listed = models(server)
    if server.model is None and listed:
        server.model = listed[0]
    elif server.model is not None and listed and server.model not in listed:
        raise ConfigurationError(f"{server.name} has no model {server.model!r}; it lists {', '.join(listed)}")
    _endpoint(server, prompts[0])
    subject = Subject(server, budget, prompts)
    probe = {"prompt": prompts[0], "max_tokens": 1, "temperature": 1.0}
    if not _taken(server, probe, PLAIN):
        server.fixed = {}
        for name, value in PLAIN.items():
            _taken(server, probe, {name: value})
    subject.seeds = _taken(server, probe, {"seed": 1})
    server.fixed.pop("seed", None)
    _name_ids(subject, probe)
    first = server.ask([subject.greedy(prompts[0], 2)])[0][0]
    if server.top and first.top and len(first.top[0]) > 1:
        subject.count = min(server.top, len(first.top[0]))
        subject.raw = _convention(subject)
    _rank(subject)
    return subject


def _taken(server: Server, probe: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether the server takes fields; they are part of every request then."""
    before = server.fixed
    server.fixed = {**before, **fields}
    try:
        server.ask([probe])
    except Refused:
        server.fixed = before
        return False
    return True


def _name_ids(subject: Subject, probe: Mapping[str, Any]) -> None:
    """Ask for token ids from now on, where the server names them and takes them as a prompt."""
    server = subject.server
    if server.chat or not _taken(server, probe, {"return_token_ids": True}):
        return
    try:
        one = server.ask([probe])[0][0]
        subject.named_ids = bool(one.ids and one.prompt_ids and server.ask([{**probe, "prompt": list(one.prompt_ids)}]))
    except (Refused, NoCompletion):
        pass
    if not subject.named_ids:
        server.fixed.pop("return_token_ids")


def _endpoint(server: Server, prompt: str) -> None:
    """Set the endpoint and the number of log-probabilities that a server allows."""
    request = {"prompt": prompt, "max_tokens": 1, "temperature": 0.0}
    reasons = []
    for chat in (False, True):
        for top in (*TOPS, 0):
            server.chat, server.top = chat, top
            try:
                server.ask([request])
                return
            except (Refused, NoCompletion) as refused:
                reasons.append(str(refused))
    raise ConfigurationError(
        f"{server.name} completes no text ({reasons[0]}); give the address of an OpenAI-compatible server, up to /v1"
    )


def _convention(subject: Subject) -> bool | None:
    """Whether log-probabilities stay the same under another temperature (True), or change with it (False)."""
    requests = [
        {"prompt": subject.prompts[0], "max_tokens": 1, "temperature": temperature, **subject.seed(0)}
        for temperature in (1.0, 0.5)
    ]
    tops = [subject.server.ask([one])[0][0].top[0] for one in requests]
    shared = sorted(tops[0].keys() & tops[1].keys(), key=lambda name: -tops[0][name])[:5]
    if len(shared) < 2:
        return None
    first, second = ([top[name] - top[shared[0]] for name in shared[1:]] for top in tops)
    room = [SAME * abs(value) + ROUNDING[subject.budget.precision] for value in first]
    if all(abs(a - b) <= r for a, b, r in zip(first, second, room, strict=True)):
        return True
    return False if all(abs(2 * a - b) <= 2 * r for a, b, r in zip(first, second, room, strict=True)) else None


def _rank(subject: Subject) -> None:
    """Put prompts first whose next token is open, though not so open that little of its law is reported."""
    if not subject.count:
        return
    requests = [
        {"prompt": prompt, "max_tokens": 1, "temperature": 1.0, **subject.seed(0)} for prompt in subject.prompts
    ]
    answers = subject.server.ask(requests)
    entropies = {}
    for prompt, (answer, *_) in zip(subject.prompts, answers, strict=True):
        subject.prompt_tokens[prompt] = answer.prompt_tokens
        law = claimed(answer.top[0], subject.count, LawOptions(), prompt, ()) if answer.top else None
        entropies[prompt] = law[0].entropy if law is not None else 0.0
    subject.prompts = sorted(subject.prompts, key=lambda prompt: abs(entropies[prompt] - 1.8))


def drafting(server: Server) -> dict[str, float]:
    """Drafted and accepted tokens so far by the server's own counters, where it has vLLM's /metrics; else nothing."""
    try:
        page = server.get("/metrics") or ""
    except Gone:
        return {}
    counters: dict[str, float] = {}
    for line in page.splitlines():
        for name in ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"):
            label, _, value = line.rpartition(" ")
            if name in label and "per_pos" not in label and "created" not in label and not line.startswith("#"):
                counters[name.removeprefix("spec_decode_num_")] = counters.get(name, 0.0) + float(value)
    return counters


def learn_ids(subject: Subject, words: Sequence[str]) -> None:
    """Learn token ids from the server's tokenizer: each is forced once, and so says how it is spelled."""
    for path, body in (
        ("/tokenize", {"prompt": "".join(words), "add_special_tokens": False}),
        ("/extras/tokenize", {"input": "".join(words)}),
        ("/tokenize", {"content": "".join(words)}),
    ):
        try:
            tokenised = subject.server.post(path, body)
        except (Refused, NoCompletion):
            continue
        for token in tokenised.get("tokens", ())[:24] if isinstance(tokenised, dict) else ():
            if isinstance(token, int) and token not in subject.ids.values():
                forced = subject.greedy(subject.prompts[0], 1, logit_bias={str(token): 100})
                answer = subject.server.ask([forced])[0][0]
                if answer.tokens:
                    subject.ids[answer.tokens[0]] = token
        return


def fingerprint(subject: Subject) -> dict[str, Any]:
    """Facts about the server for the report."""
    server = subject.server
    convention = {True: "before temperature", False: "after temperature", None: "unknown"}[subject.raw]
    return {
        "url": server.name,
        "model": server.model,
        "endpoint": "chat/completions" if server.chat else "completions",
        "logprobs": subject.count,
        "logprobs_are": convention if subject.count else None,
        "fields_in_every_request": json.dumps(server.fixed),
        "seeds": subject.seeds,
    }
