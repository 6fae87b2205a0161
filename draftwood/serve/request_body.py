"""The body of a request as it arrives: in time, and not too long."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from starlette.exceptions import HTTPException

from draftwood.serve.asgi import Message, Receive
from draftwood.serve.settings import ServeSettings

MAX_UNREAD_BYTES = 64 << 20  # bytes that are read off a body that was refused
CLOSE_CONNECTION = {"connection": "close"}


class RequestBody:
    """Hands on what `receive` gives, up to the body's end; behind it only a disconnect comes."""

    def __init__(self, receive: Receive, headers: Mapping[str, str], settings: ServeSettings) -> None:
        self._receive, self._settings = receive, settings
        self._until: float | None = None  # the body has to be there
        self._size = 0
        self._over = not {"content-length", "transfer-encoding"} & headers.keys()
        self._asks = headers.get("expect", "").lower() == "100-continue"  # whether it is to be sent

    async def receive(self) -> Message:
        """The next part; HTTPException where the body is late or too long."""
        if self._over:
            return await self._receive()
        self._asks = False
        try:
            async with asyncio.timeout_at(self._deadline()):
                message = await self._next()
        except TimeoutError:
            raise HTTPException(408, "the body did not arrive in time", CLOSE_CONNECTION) from None
        if self._size > self._settings.max_body:
            raise self.too_large()
        return message

    @property
    def unread(self) -> bool:
        """Whether the client may still be sending the body."""
        return not self._over and not self._asks and self._size <= MAX_UNREAD_BYTES

    async def discard_rest(self) -> None:
        """Read what is left of the body: a connection that is closed before is reset, and the answer with it."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline()):
                while self.unread:
                    await self._next()

    def too_large(self) -> HTTPException:
        """The error of a body that is too long."""
        sentence = f"the body has more than {self._settings.max_body:,} bytes, the most that are taken"
        return HTTPException(413, sentence, CLOSE_CONNECTION)

    def _deadline(self) -> float:
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self._settings.client_seconds
        return self._until

    async def _next(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        self._over = not message.get("more_body", False)
        return message
