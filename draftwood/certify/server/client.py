"""A client of OpenAI-compatible servers that asks within bounds: requests, rate, time; answers are kept on request.

It talks to the one host that it was given, follows no redirect and uses no proxy. Standard library alone.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from draftwood.certify.server.budget import Limits
from draftwood.errors import ConfigurationError, DraftwoodError
from draftwood.util.jsonl import Journal
from draftwood.util.safe_parsing import parse_json, short_repr
from draftwood.util.server_events import server_events

MAX_ANSWER_BYTES = 16 << 20
TRIES = 4  # of a request, where the server is busy or a connection breaks
PAUSE = 0.5  # seconds before the second try; twice as long before each further one
BROKEN = "broken stream of"  # the journal's record that streams are not asked for any more
BUSY = {408, 425, 429, 500, 502, 503, 504}  # statuses of answers that may come out otherwise a little later


class Refused(DraftwoodError):
    """The server does not take a request; the message is its own."""


class NotAsked(DraftwoodError):
    """A request was not made, since a bound was reached."""


class Gone(DraftwoodError):
    """The server does not answer any more."""


class NoCompletion(DraftwoodError):
    """The server's answer is not what the protocol says."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """One text: its tokens as the server spells them, their log-probabilities and those of the most probable ones."""

    text: str
    tokens: Sequence[str]
    logprobs: Sequence[float]
    top: Sequence[Mapping[str, float]]  # most probable tokens of each position, the answer's own among them
    finish: str | None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None  # of all texts of the request
    places: Sequence[int] = ()  # of each token in its chunk, from 0, where the answer was streamed
    ids: Sequence[int] = ()  # of the tokens, and of the prompt's, from servers that name them
    prompt_ids: Sequence[int] = ()


class Side(Protocol):
    """A source of answers: a server, or a model that is loaded here."""

    name: str

    def ask(self, requests: Sequence[Mapping[str, Any]]) -> list[list[ServerAnswer]]:
        """The texts of requests that run at once; each has the fields of /v1/completions, and `tag`."""


@dataclass
class Server:
    """A server, asked by /v1/completions, or /v1/chat/completions where it has no other."""

    url: str
    model: str | None = None
    key: str | None = None
    limits: Limits = field(default_factory=Limits)
    journal: Journal | None = None  # open; answers that it holds are not asked for again
    chat: bool = False
    top: int = 20  # most probable tokens that are asked for
    fixed: dict[str, Any] = field(default_factory=dict)  # fields of every request

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ConfigurationError(f"a server's address is {self.url!r}; give one such as http://localhost:8000")
        self.name = f"{parts.scheme}://{parts.netloc}"
        self._place, self._base = parts, parts.path.rstrip("/").removesuffix("/v1")
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._began = self._next = time.monotonic()
        self.requests_made = 0  # requests, tries included
        self.answered = 0  # requests for texts, by the server or the journal
        self.broken_stream = ""  # why streams are not asked for any more, where one broke off
        self._kept: dict[str, Any] = {}
        if self.journal is not None:
            self._kept = {record["key"]: record["answer"] for record in self.journal.recovered()}
            self.broken_stream = self._kept.get(f"{BROKEN} {self.url}", "")

    def ask(self, requests: Sequence[Mapping[str, Any]]) -> list[list[ServerAnswer]]:
        if len(requests) == 1:
            return [self._one(requests[0])]
        with ThreadPoolExecutor(min(len(requests), self.limits.concurrency)) as pool:
            return list(pool.map(self._one, requests))

    def get(self, path: str) -> str | None:
        """The text of a page, or None where the server has none."""
        try:
            return self._sent("GET", path, None).decode("utf-8", "replace")
        except Refused:
            return None

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The document that a request is answered with; Refused with the server's reason where it is not."""
        return _document(self._sent("POST", path, json.dumps(body).encode()))

    def _one(self, request: Mapping[str, Any]) -> list[ServerAnswer]:
        fields = {name: value for name, value in {**self.fixed, **request}.items() if name != "tag"}
        key = hashlib.sha256(json.dumps([self.url, self.chat, request.get("tag"), fields]).encode()).hexdigest()
        if key not in self._kept:
            answers = [asdict(one) for one in self._completion(fields)]
            with self._lock:
                self._kept[key] = answers
                if self.journal is not None:
                    self.journal.add({"key": key, "answer": answers})
        with self._lock:
            self.answered += 1
        return [ServerAnswer(**one) for one in self._kept[key]]

    def _completion(self, fields: dict[str, Any]) -> list[ServerAnswer]:
        body = {**({"model": self.model} if self.model else {}), **fields}
        if self.chat:
            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
            if self.top:
                body |= {"logprobs": True, "top_logprobs": self.top}
        elif self.top:
            body["logprobs"] = self.top
        path = "/v1/chat/completions" if self.chat else "/v1/completions"
        if self.broken_stream:
            body.pop("stream", None)
        try:
            data = self._sent("POST", path, json.dumps(body).encode())
        except Gone as gone:
            if not body.pop("stream", False):
                raise
            data = self._sent("POST", path, json.dumps(body).encode())
            with self._lock:
                if self.journal is not None and not self.broken_stream:
                    self.journal.add({"key": f"{BROKEN} {self.url}", "answer": str(gone)})
                self.broken_stream = str(gone)
        try:
            return _streamed(data) if body.get("stream") else _whole(_document(data))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise NoCompletion(
                f"an answer is no completion ({type(error).__name__}: {short_repr(str(error))})"
            ) from None

    def _sent(self, method: str, path: str, body: bytes | None) -> bytes:
        """An answer's body; asked again where the server is busy or a connection breaks."""
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {self.key}"} if self.key else {})
        reason, pause = "", PAUSE
        for attempt in range(TRIES):
            if attempt:
                self._wait(pause)
                pause *= 2
            self._turn()
            connection = self._connection()
            try:
                connection.request(method, self._base + path, body, headers)
                answer = connection.getresponse()
                data = answer.read(MAX_ANSWER_BYTES + 1)
                if answer.length and len(data) <= MAX_ANSWER_BYTES:
                    raise http.client.IncompleteRead(data, answer.length)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self.close()  # others that are idle may be stale, too
                reason = str(error) or type(error).__name__
                continue
            if len(data) > MAX_ANSWER_BYTES:
                connection.close()
                raise NoCompletion(f"an answer has more than {MAX_ANSWER_BYTES >> 20} MiB")
            with self._lock:
                self._idle.append(connection)
            if answer.status == 200:
                return data
            reason = _reason(data, answer.status)
            if answer.status not in BUSY:
                raise Refused(reason)
            pause = _retry_after(answer.getheader("retry-after"), pause)
        if "HTTP 500" in reason:
            raise Refused(reason)
        raise Gone(f"{self.name} does not answer after {TRIES} tries: {reason}")

    def _connection(self) -> http.client.HTTPConnection:
        """One that is open and idle, or a new one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        kind = http.client.HTTPSConnection if self._place.scheme == "https" else http.client.HTTPConnection
        assert self._place.hostname is not None
        return kind(self._place.hostname, self._place.port, timeout=self.limits.request_seconds)

    def close(self) -> None:
        """Close all connections; the next request opens one."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def _turn(self) -> None:
        """Wait for this request's turn; NotAsked where no more may be made."""
        with self._lock:
            if self.requests_made >= self.limits.requests:
                raise NotAsked(f"{self.limits.requests:,} requests were made; allow more with --max-requests")
            self.requests_made += 1
            start = max(time.monotonic(), self._next)
            self._next = start + (1 / self.limits.rate if self.limits.rate else 0)
        self._wait(start - time.monotonic())

    def _wait(self, seconds: float) -> None:
        if time.monotonic() + max(0.0, seconds) - self._began > self.limits.seconds:
            raise NotAsked(f"{self.limits.seconds:g} seconds have passed; allow more with --max-seconds")
        if seconds > 0:
            time.sleep(seconds)


def _retry_after(given: str | None, pause: float) -> float:
    return float(given) if given and given.isdecimal() else pause


def _reason(data: bytes, status: int) -> str:
    """The server's own words on one line, with the status."""
    text = data.decode("utf-8", "replace")
    try:
        document = parse_json(data)
        error = document.get("error", document)
        text = error.get("message") or error.get("detail") or text if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        pass
    return f"HTTP {status}: {short_repr(' '.join(str(text).split()), 200)}"


def _document(data: bytes) -> Any:
    try:
        return parse_json(data, finite=False)
    except ValueError as error:
        raise NoCompletion(f"an answer is no JSON ({error})") from None


def _whole(document: Any) -> list[ServerAnswer]:
    usage = document.get("usage") or {}
    read, made = usage.get("prompt_tokens"), usage.get("completion_tokens")
    choices = sorted(document["choices"], key=lambda choice: int(choice.get("index", 0)))
    return [replace(_answer(choice), prompt_tokens=read, completion_tokens=made) for choice in choices]


def _answer(choice: Mapping[str, Any]) -> ServerAnswer:
    """A choice of an answer, or of one chunk of a stream, of either endpoint."""
    message = choice.get("message") or choice.get("delta") or {}
    text = choice["text"] if "text" in choice else message.get("content") or ""
    tokens: list[str] = []
    logprobs: list[float] = []
    top: list[dict[str, float]] = []
    logprob_fields = choice.get("logprobs") or {}
    if logprob_fields.get("content") is not None:
        for one in logprob_fields["content"]:
            best = {other["token"]: float(other["logprob"]) for other in one["top_logprobs"]}
            tokens.append(one["token"])
            logprobs.append(float(one["logprob"]))
            top.append({one["token"]: float(one["logprob"])} | best)
    elif logprob_fields.get("token_logprobs") is not None:
        rows = logprob_fields.get("top_logprobs") or [{}] * len(logprob_fields["tokens"])
        for token, logprob, best in zip(logprob_fields["tokens"], logprob_fields["token_logprobs"], rows, strict=True):
            tokens.append(token)
            logprobs.append(float(logprob))
            top.append({token: float(logprob)} | {str(name): float(value) for name, value in (best or {}).items()})
    ids, read = choice.get("token_ids") or (), choice.get("prompt_token_ids") or ()
    return ServerAnswer(text, tokens, logprobs, top, choice.get("finish_reason"), ids=ids, prompt_ids=read)


def _streamed(data: bytes) -> list[ServerAnswer]:
    """The text of a stream of one text; a token's place is counted in its chunk."""
    parts = [_answer(choice) for chunk in _events(data) for choice in chunk.get("choices", ())]
    return [
        ServerAnswer(
            "".join(part.text for part in parts),
            [token for part in parts for token in part.tokens],
            [value for part in parts for value in part.logprobs],
            [best for part in parts for best in part.top],
            next((part.finish for part in reversed(parts) if part.finish), None),
            places=[place for part in parts for place in range(len(part.tokens))],
            ids=[token for part in parts for token in part.ids],
            prompt_ids=parts[0].prompt_ids if parts else (),
        )
    ]


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    """The documents of a streamed answer; ValueError where one is an error."""
    for event in server_events(data.splitlines(), finite=False):
        if event.get("error"):
            raise ValueError(str(event["error"]))
        yield event
