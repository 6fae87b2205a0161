"""Answers that end when their client goes away, streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from draftwood.serve.asgi import Message, Receive, Send
from draftwood.serve.errors import Gone
from draftwood.serve.service import Work

T = TypeVar("T")


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of some work, which is cancelled when the client goes away."""
    return await _first(work, request.receive)


async def _first(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done() or doing.cancelled():  # by a time limit, while the client was waited for
            raise Gone
        return doing.result()
    finally:
        for task in (doing, gone):
            task.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)


async def begun(request: Request, work: Work) -> None:
    """Begin some work, which ends when the client goes away before it has begun."""
    try:
        await unless_gone(request, work.begin())
    except BaseException:
        await work.aclose()
        raise


class EventStream(Response):
    """Server-sent events, which end when the client goes away; so does the work that they are of, begun or not."""

    def __init__(self, events: AsyncIterator[str], work: Work | None = None) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._events, self._work = events, work

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            with suppress(Gone):
                await _first(self._send(send), receive)
        finally:
            if self._work is not None:
                await self._work.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for text in self._events:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            if isinstance(self._events, AsyncGenerator):
                await self._events.aclose()
