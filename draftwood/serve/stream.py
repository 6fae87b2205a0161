"""Answers that end when their client goes away, streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from draftwood.serve.asgi import Message, Receive, Send
from draftwood.serve.errors import ClientGone
from draftwood.serve.request_run import RequestRun

T = TypeVar("T")

STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}  # for the API's schema


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, which is cancelled with ClientGone when the client goes away."""
    return await _unless_disconnected(work, request.receive)


async def _unless_disconnected(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done() or doing.cancelled():  # by a time limit, while the client was waited for
            raise ClientGone
        return doing.result()
    finally:
        for task in (doing, gone):
            task.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)


async def start_unless_gone(request: Request, run: RequestRun) -> None:
    """Start a request; it is closed where that fails or the client goes away meanwhile."""
    try:
        await unless_gone(request, run.start())
    except BaseException:
        await run.aclose()
        raise


class EventStream(Response):
    """Server-sent events, which end when the client goes away; so does the run that they tell of, started or not."""

    def __init__(self, events: AsyncIterator[str], run: RequestRun | None = None) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._events, self._run = events, run

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGone):
                await _unless_disconnected(self._send(send), receive)
        finally:
            if self._run is not None:
                await self._run.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for text in self._events:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            if isinstance(self._events, AsyncGenerator):
                await self._events.aclose()
