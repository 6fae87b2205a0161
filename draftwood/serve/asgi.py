"""Calls an ASGI application within the process, without a socket, for batches and replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from starlette.types import ASGIApp, Message, Scope

MAX_WAITING_MESSAGES = 8  # between the application and its reader
LOCAL_HEADERS = ((b"host", b"localhost"), (b"content-type", b"application/json"))


def scope_of(method: str, path: str, query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Scope:
    """The ASGI scope of a request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": list(headers),
        "client": None,
        "server": None,
    }


async def messages(app: ASGIApp, scope: Scope, body: bytes) -> AsyncGenerator[Message, None]:
    """The messages that the application sends, as they come. Closing the generator is as if the client went away."""
    sent: asyncio.Queue[Message | Exception | None] = asyncio.Queue(MAX_WAITING_MESSAGES)
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.Event().wait()  # until the task is cancelled
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def work() -> None:
        try:
            await app(scope, receive, sent.put)
            await sent.put(None)
        except Exception as error:
            await sent.put(error)

    task = asyncio.create_task(work())
    try:
        while (message := await sent.get()) is not None:
            if isinstance(message, Exception):
                raise message
            yield message
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def full_answer(app: ASGIApp, scope: Scope, body: bytes) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    status, content = 500, bytearray()
    async with aclosing(messages(app, scope, body)) as answer:
        async for message in answer:
            status = message.get("status", status)
            content += message.get("body", b"")
    return status, bytes(content)


async def post_json(app: ASGIApp, path: str, body: bytes, request_id: str) -> tuple[int, bytes]:
    """The status and the body of the answer to a POST of JSON from this machine."""
    headers = (*LOCAL_HEADERS, (b"x-request-id", request_id.encode()))
    return await full_answer(app, scope_of("POST", path, b"", headers), body)
