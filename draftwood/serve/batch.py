"""Files of requests answered into files of answers, as OpenAI's batches are; resumable, whatever ends the process.

A line of requests is {"custom_id", "method", "url", "body"}, or a body alone: a prompt, messages or an input. A line of
answers is {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import ValidationError

from draftwood.engine.engine import Engine
from draftwood.engine.request import MethodSpec
from draftwood.errors import ConfigurationError, DraftwoodError, RequestError
from draftwood.serve.app import create_app
from draftwood.serve.asgi import post_json
from draftwood.serve.fields import Body, Name
from draftwood.serve.numbered_output import FileFormat, NumberedOutput, pyarrow
from draftwood.serve.service import Service
from draftwood.serve.settings import ServeSettings
from draftwood.util import config
from draftwood.util.jsonl import Journal, Record
from draftwood.util.safe_parsing import parse_json, short_repr

URLS = {"prompt": "/v1/completions", "messages": "/v1/chat/completions", "input": "/v1/responses"}
RETRY_SECONDS = 0.1  # until a request is repeated that found the queue full
Keep = Callable[[Record], None]


class BatchLine(Body):
    """A request as OpenAI's batches hold it."""

    custom_id: Name
    method: Literal["POST"] = "POST"
    url: Literal["/v1/completions", "/v1/chat/completions", "/v1/responses"]
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One line: a request, or why it is none."""

    id: str
    url: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(slots=True)
class BatchProgress:
    """Counts of a batch: all `requests`, those `answered`, of these those `made` by this call and those `failed`."""

    requests: int
    answered: int
    made: int
    failed: int


OnBatchProgress = Callable[[BatchProgress], object]  # called at the beginning, and after each answer


def entry(line: bytes, number: int, defaults: Mapping[str, Any]) -> BatchEntry:
    """The request of a line; `defaults` are fields of the body that it may lack."""
    own = f"line-{number}"
    try:
        return entry_of(parse_json(line), own, defaults)
    except ValueError as error:
        return BatchEntry(own, error=f"the line is not JSON: {short_repr(str(error))}")


def entry_of(given: Any, own: str, defaults: Mapping[str, Any]) -> BatchEntry:
    """A request as it was parsed; `own` is its id where it has none."""
    if isinstance(given, str):
        given = {"prompt": given}
    if not isinstance(given, dict):
        return BatchEntry(own, error="a line is a request, a prompt or an object with one")
    name = given.get("custom_id", own)
    if not isinstance(name, str) or not name:
        return BatchEntry(own, error=f"custom_id is {short_repr(name)}, but must be a text")
    if "body" not in given and "url" not in given:
        kind = next((key for key in URLS if key in given), None)
        if kind is None:
            return BatchEntry(name, error="the line has neither url and body nor a prompt, messages or an input")
        body = {key: value for key, value in given.items() if key != "custom_id"}
        given = {"url": URLS[kind], "body": body}
    try:
        line_ = BatchLine.model_validate({**given, "custom_id": name})
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        return BatchEntry(name, error=f"{where}: {config.reason(error)}")
    body = {**defaults, **line_.body}
    if body.get("stream"):
        return BatchEntry(name, error="the answers of a batch are whole; leave out stream")
    return BatchEntry(name, line_.url, body)


def rows_of(source: Path, defaults: Mapping[str, Any]) -> Iterator[BatchEntry]:
    """The requests of a Parquet file: its columns are what a line has; `body` may be a text of JSON."""
    arrow, number = pyarrow(), 0
    try:
        for batch in arrow.parquet.ParquetFile(source).iter_batches():
            for row in batch.to_pylist():
                number += 1
                given = {key: value for key, value in row.items() if value is not None}
                if isinstance(given.get("body"), str):
                    with suppress(ValueError):  # then it is no body, which will be said
                        given["body"] = parse_json(given["body"])
                yield entry_of(given, f"line-{number}", defaults)
    except arrow.ArrowInvalid as error:
        raise RequestError(f"{source} is not Parquet: {short_repr(str(error))}") from None


def lines_of(source: Path, defaults: Mapping[str, Any]) -> Iterator[BatchEntry]:
    """The requests of a file, one a line."""
    with source.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield entry(line, number, defaults)


def read_entries(source: Path, defaults: Mapping[str, Any]) -> Iterator[BatchEntry]:
    """The requests of a file; RequestError where it cannot be read or has an id twice."""
    known: set[str] = set()
    try:
        for request in (rows_of if source.suffix == ".parquet" else lines_of)(source, defaults):
            if request.id in known:
                raise RequestError(
                    f"{source} has the custom_id {short_repr(request.id)} twice; give each request its own"
                )
            known.add(request.id)
            yield request
    except OSError as error:
        raise RequestError(f"{source} cannot be read: {error.strerror}; name a file with a request a line") from None


def answer_of(entry: BatchEntry, status: int, request_id: str, body: Any) -> Record:
    """The line of an answer; what was refused has an error, too."""
    error = None
    if status != 200:
        refusal = body.get("error", {})
        error = {"code": refusal.get("code") or refusal.get("type") or str(status), "message": refusal.get("message")}
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": f"batch_req_{request_id}", "custom_id": entry.id, "response": response, "error": error}


async def answer(app: FastAPI, entry: BatchEntry) -> Record:
    """The line that answers a request. Raises DraftwoodError where the engine is broken: then nothing is answered."""
    request_id = uuid.uuid4().hex
    if entry.error is not None:
        refusal = {"message": entry.error, "type": "invalid_request_error", "param": None, "code": "invalid_line"}
        return answer_of(entry, 400, request_id, {"error": refusal})
    service: Service = app.state.service
    body = json.dumps(entry.body).encode()
    while True:
        status, content = await post_json(app, entry.url, body, request_id)
        if status == 500 and service.broken:
            raise DraftwoodError(f"the engine is broken: {service.broken}")
        if status != 429:
            return answer_of(entry, status, request_id, json.loads(content))
        await asyncio.sleep(RETRY_SECONDS)


def application(engine: Engine, method: MethodSpec | None = None) -> FastAPI:
    """The server's application without the limits of a server."""
    return create_app(
        engine, ServeSettings(max_body=1 << 40, request_seconds=1e6, client_seconds=1e6, max_sequences=1 << 20), method
    )


async def answer_all(app: FastAPI, entries: Iterable[BatchEntry], keep: Keep, concurrency: int) -> None:
    """Answer requests, so many at once, and hand over each answer when it is there."""
    waiting = iter(entries)

    async def work() -> None:
        for entry in waiting:
            keep(await answer(app, entry))

    workers = [asyncio.create_task(work()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await app.state.service.aclose()


Answerer = Callable[[Iterable[BatchEntry], Keep], None]


def complete(
    answerer: Answerer,
    source: Path,
    out: Path,
    defaults: Mapping[str, Any] | None = None,
    on_progress: OnBatchProgress = lambda outcome: None,
    parts: FileFormat | None = None,
) -> BatchProgress:
    """Answer what `out` lacks of the requests in `source`; `answerer` is given those, and what keeps an answer.

    `out` is a file of JSON lines; with `parts` a directory of files of that kind.

    Raises RequestError where `source` cannot be read, ConfigurationError where `out` cannot be written or holds
    something else; before anything is answered.
    """
    given = defaults or {}
    ids = {entry.id for entry in read_entries(source, given)}
    if not ids:
        raise RequestError(f"{source} is empty; give a request a line")
    if out.exists() and out.samefile(source):
        raise ConfigurationError(f"--out is {out}, which holds the requests; name another file")
    with Journal(out, "custom_id") if parts is None else NumberedOutput(out, parts) as journal:
        outcome, known = BatchProgress(len(ids), 0, 0, 0), set()
        for record in journal.recovered():
            if "response" not in record:
                raise ConfigurationError(f"{out} holds something else than answers; choose another --out")
            known.add(record["custom_id"])
            outcome.failed += record["custom_id"] in ids and record["error"] is not None
        outcome.answered = len(known & ids)
        on_progress(outcome)

        def keep(record: Record) -> None:
            journal.add(record)
            outcome.answered += 1
            outcome.made += 1
            outcome.failed += record["error"] is not None
            on_progress(outcome)

        if ids - known:
            answerer((entry for entry in read_entries(source, given) if entry.id not in known), keep)
        if isinstance(journal, NumberedOutput):
            journal.finish()
    return outcome


def by_engine(load: Callable[[], Engine], method: MethodSpec | None, concurrency: int | None) -> Answerer:
    """One engine in this process, made when there is something to answer."""

    def answerer(entries: Iterable[BatchEntry], keep: Keep) -> None:
        engine = load()
        app = application(engine, method)
        asyncio.run(answer_all(app, entries, keep, concurrency or engine.scheduler.calls.running))

    return answerer


def run(
    engine: Engine,
    source: Path,
    out: Path,
    method: MethodSpec | None = None,
    concurrency: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    on_progress: OnBatchProgress = lambda outcome: None,
    parts: FileFormat | None = None,
) -> BatchProgress:
    """Answer the requests of a file by one engine, `concurrency` at once (default: as many as share its forwards).

    What `out` has already is not asked again. `method` is for requests that name none, `defaults` are fields that their
    bodies may lack; `parts` makes of `out` a directory of files of that kind. After a kill, Ctrl-C or an error, all
    that was finished is in `out`, and the same call goes on.
    """
    return complete(by_engine(lambda: engine, method, concurrency), source, out, defaults, on_progress, parts)
