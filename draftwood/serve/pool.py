"""Work that may take long, in threads: the event loop, and with it every other client, goes on meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple, Unpack

from starlette.responses import JSONResponse, Response

from draftwood.serve.errors import ServerEnded

T = TypeVar("T")
Given = TypeVarTuple("Given")

MAX_INLINE_VALUES = 2048  # values of an answer (such as log-probabilities) that are written in a thread
SLICE_LENGTH = 256  # elements of a list that are written at once: the interpreter's lock is held so long


class WorkerPool:
    """Threads for one kind of work, which makes no other kind wait. What is cancelled while it waits is never done."""

    def __init__(self, name: str, threads: int, seconds: float) -> None:
        self._threads, self._seconds = ThreadPoolExecutor(threads, f"draftwood-{name}"), seconds
        self._closed = False

    async def run(self, work: Callable[[Unpack[Given]], T], *given: *Given) -> T:
        """Call `work` in the pool and return its result; TimeoutError after the pool's `seconds`, waiting included."""
        if self._closed:
            raise ServerEnded
        done = asyncio.get_running_loop().run_in_executor(self._threads, work, *given)
        try:
            async with asyncio.timeout(self._seconds):
                return await done
        except asyncio.CancelledError:
            if self._closed and done.cancelled():
                raise ServerEnded from None
            raise

    def close(self) -> None:
        """Let go of the threads; what waits ends with ServerEnded."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def write(self, make: Callable[[], str], size: int) -> str:
        """A text of about `size` values; it is made at once where these are few."""
        return make() if size <= MAX_INLINE_VALUES else await self.run(make)

    async def answer(self, make: Callable[[], Any], size: int) -> Response:
        """A document of about `size` values as JSON."""
        if size <= MAX_INLINE_VALUES:
            return JSONResponse(make())
        text = await self.run(lambda: "".join(json_parts(make())).encode())
        return Response(text, media_type="application/json")


def json_parts(value: Any) -> Iterator[str]:
    """The JSON of a value in parts, each made in a short time."""
    if isinstance(value, dict):
        for i, (key, inner) in enumerate(value.items()):
            yield f"{',' if i else '{'}{_text(key)}:"
            yield from json_parts(inner)
        yield "}" if value else "{}"
    elif isinstance(value, list) and value:
        for start in range(0, len(value), SLICE_LENGTH if len(value) > SLICE_LENGTH else 1):
            yield "," if start else "["
            if len(value) > SLICE_LENGTH:
                yield _text(value[start : start + SLICE_LENGTH])[1:-1]
            else:
                yield from json_parts(value[start])
        yield "]"
    else:
        yield _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
