"""HTTP connections that are closed when their clients are too slow."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from draftwood.serve.settings import ServeSettings


class TimedConnection(H11Protocol):
    """Closed when the client leaves the head of a request unfinished, or does not read what it is sent, too long.

    A body has its own limit (`request_body`), because its request can still be answered.
    """

    def __init__(self, config: Config, *given: Any, **more: Any) -> None:
        super().__init__(config, *given, **more)
        application: Any = config.app
        settings: ServeSettings = application.state.service.settings
        self._seconds, self._max_connections = settings.client_seconds, settings.max_connections
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {
            **self.app_state,
            "crowded": len(self.connections) > self._max_connections,
        }  # for the middleware
        self._limit("send", True)

    def handle_events(self) -> None:
        super().handle_events()
        theirs = self.conn.their_state
        self._limit("send", theirs is h11.IDLE or (theirs is h11.SEND_BODY and self.conn.our_state is h11.DONE))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit("read", True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._limit("read", False)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for what in tuple(self._timers):
            self._limit(what, False)

    def _limit(self, what: str, waiting: bool) -> None:
        """Start the client's time to send or to read where it is waited for and no time runs; else stop it."""
        if waiting and what not in self._timers:
            self._timers[what] = self.loop.call_later(self._seconds, self.transport.abort)
        elif not waiting and what in self._timers:
            self._timers.pop(what).cancel()
