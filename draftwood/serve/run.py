"""Runs the server in this process: listens, drains when it is told to end, ends when the engine is broken."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from draftwood.errors import ConfigurationError, DraftwoodError
from draftwood.serve.front import Front
from draftwood.serve.settings import ServeSettings

log = logging.getLogger(__name__)

DRAIN_POLL_SECONDS = 0.05  # between looks at whether all requests have ended
ENGINE_POLL_SECONDS = 0.5  # between looks at whether the engine still computes
CLOSE_SECONDS = 1  # for connections to close
CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"  # in the head of an answer whose body has chunks


class ChunkWriter(h11.Connection):
    """Writes the chunks of a body without a look through the states of HTTP, of which they change none."""

    _chunked = False  # whether the body under way has chunks

    def send(self, event: Any) -> Any:
        if self._chunked and type(event) is h11.Data and event.data and self.our_state is h11.SEND_BODY:
            return b"%x\r\n%b\r\n" % (len(event.data), event.data)
        sent = super().send(event)
        if type(event) is h11.Response:
            self._chunked = CHUNKED in sent.lower()
        return sent


class TimedConnection(H11Protocol):
    """Closed when the client leaves the head of a request unfinished, or does not read what it is sent, too long.

    A body has its own limit (`middleware.RequestBody`), because its request can still be answered.
    """

    def __init__(self, config: uvicorn.Config, *given: Any, **more: Any) -> None:
        super().__init__(config, *given, **more)
        self.conn = ChunkWriter(h11.SERVER)
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


class _Server(uvicorn.Server):
    """uvicorn without its signals, after which a process could not exit with 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(app: FastAPI, settings: ServeSettings, listening: socket.socket | None = None) -> None:
    """Serve an application until SIGTERM or Ctrl-C, which let running requests end first; a second one does not.

    `listening` is what `listen` gave, if it was asked before the models were loaded. Raises KeyboardInterrupt after
    Ctrl-C, DraftwoodError where the engine broke.
    """
    service: Front = app.state.service
    listening = listening or listen(settings)
    listening.listen()  # whoever reads the line below may connect at once
    host, port = listening.getsockname()[:2]
    server = _Server(uvicorn_config(app))
    if not settings.loopback and not service.keys:
        print(
            f"warning: {settings.host} can be reached from other machines, and without an API key everybody there may "
            "ask; give --api-key-file, or --host 127.0.0.1",
            file=sys.stderr,
        )
    address = f"[{host}]" if ":" in host else host
    print(f"draftwood serves {service.name} on http://{address}:{port} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:  # uvloop's where it is installed
        ended_by = runner.run(_serve(server, service, listening))
    if service.broken:
        raise DraftwoodError(f"the engine is broken: {service.broken}")
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


def uvicorn_config(app: FastAPI) -> uvicorn.Config:
    """uvicorn's settings for the application."""
    return uvicorn.Config(
        app,
        http=TimedConnection,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )


def listen(settings: ServeSettings) -> socket.socket:
    """A socket at the address; ConfigurationError where there can be none."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"{settings.host}:{settings.port} cannot be listened on: {error.strerror or error}; choose another --port "
            "or --host"
        ) from None
    return listening


async def _serve(server: _Server, service: Front, listening: socket.socket) -> int | None:
    """Serve until the end; returns the signal that ended it, if any."""
    loop, ended_by, hurry = asyncio.get_running_loop(), None, asyncio.Event()

    def end(number: int) -> None:
        nonlocal ended_by
        server.should_exit |= hurry.is_set()
        if service.draining.is_set():
            hurry.set()
        ended_by = ended_by or number
        service.draining.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    ending = [asyncio.create_task(_drained(server, service, hurry)), asyncio.create_task(_watch(server, service))]
    try:
        await server.serve(sockets=[listening])
    finally:
        for task in ending:
            task.cancel()
    return ended_by


async def _drained(server: _Server, service: Front, hurry: asyncio.Event) -> None:
    """When the server is told to end: wait for what runs, unless in a hurry, tell what is left of it, then close."""
    await service.draining.wait()
    log.info("no more requests are taken; %d are being worked on", service.busy)
    await _idle(service, service.settings.drain_seconds, hurry)
    if service.busy:
        log.warning("%d requests have not ended in time; their clients are told so", service.busy)
        await service.aclose()
        await _idle(service, CLOSE_SECONDS)
    server.should_exit = True


async def _idle(service: Front, seconds: float, hurry: asyncio.Event | None = None) -> None:
    """Wait until no request is worked on, but not longer."""
    until = asyncio.get_running_loop().time() + seconds
    while service.busy and asyncio.get_running_loop().time() < until and not (hurry and hurry.is_set()):
        await asyncio.sleep(DRAIN_POLL_SECONDS)


async def _watch(server: _Server, service: Front) -> None:
    """Close when the engine is broken."""
    while not service.broken:
        await asyncio.sleep(ENGINE_POLL_SECONDS)
    log.error("the engine is broken: %s", service.broken)
    server.should_exit = True
