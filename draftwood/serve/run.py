"""Runs the server in this process: listens, drains when it is told to end, ends when the engine is broken."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from draftwood.engine.engine import Engine
from draftwood.engine.request import MethodSpec
from draftwood.errors import ConfigurationError, DraftwoodError
from draftwood.serve.app import create_app
from draftwood.serve.service import Service
from draftwood.serve.settings import ServeSettings
from draftwood.serve.slow_clients import Connection

log = logging.getLogger(__name__)

POLL = 0.05  # seconds between looks at whether requests are through
WATCH = 0.5  # and at whether the engine still computes
LINGER = 1  # seconds that connections have to close


class _Server(uvicorn.Server):
    """uvicorn without its signals, after which a process could not exit with 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(
    engine: Engine, settings: ServeSettings, method: MethodSpec | None = None, listening: socket.socket | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C, which let running requests end first; a second one does not.

    `listening` is what `listen` gave, if it was asked before the engine was loaded. Raises KeyboardInterrupt after
    Ctrl-C, DraftwoodError where the engine broke.
    """
    app = create_app(engine, settings, method)
    service: Service = app.state.service
    listening = listening or listen(settings)
    listening.listen()  # whoever reads the line below may connect at once
    host, port = listening.getsockname()[:2]
    server = _Server(configured(app))
    if not settings.loopback and not service.keys:
        print(
            f"warning: {settings.host} can be reached from other machines, and without an API key everybody there may "
            "ask; give --api-key-file, or --host 127.0.0.1",
            file=sys.stderr,
        )
    shown = f"[{host}]" if ":" in host else host
    print(f"draftwood serves {service.name} on http://{shown}:{port} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    asked = asyncio.run(_serve(server, service, listening))
    if service.served.broken:
        raise DraftwoodError(f"the engine is broken: {service.served.broken}")
    if asked == signal.SIGINT:
        raise KeyboardInterrupt


def configured(app: FastAPI) -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        app,
        http=Connection,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=LINGER,
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


async def _serve(server: _Server, service: Service, listening: socket.socket) -> int | None:
    """Serve; which signal ended it."""
    loop, asked, hurry = asyncio.get_running_loop(), None, asyncio.Event()

    def end(number: int) -> None:
        nonlocal asked
        server.should_exit |= hurry.is_set()
        if service.draining.is_set():
            hurry.set()
        asked = asked or number
        service.draining.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    ending = [asyncio.create_task(_drained(server, service, hurry)), asyncio.create_task(_watch(server, service))]
    try:
        await server.serve(sockets=[listening])
    finally:
        for task in ending:
            task.cancel()
    return asked


async def _drained(server: _Server, service: Service, hurry: asyncio.Event) -> None:
    """When the server is told to end: wait for what runs, unless in a hurry, tell what is left of it, then close."""
    await service.draining.wait()
    log.info("no more requests are taken; %d are being worked on", service.busy)
    await _idle(service, service.settings.drain_seconds, hurry)
    if service.busy:
        log.warning("%d requests have not ended in time; their clients are told so", service.busy)
        await service.aclose()
        await _idle(service, LINGER)
    server.should_exit = True


async def _idle(service: Service, seconds: float, hurry: asyncio.Event | None = None) -> None:
    """Wait until no request is worked on, but not longer."""
    until = asyncio.get_running_loop().time() + seconds
    while service.busy and asyncio.get_running_loop().time() < until and not (hurry and hurry.is_set()):
        await asyncio.sleep(POLL)


async def _watch(server: _Server, service: Service) -> None:
    """Close when the engine is broken."""
    while not service.served.broken:
        await asyncio.sleep(WATCH)
    log.error("the engine is broken: %s", service.served.broken)
    server.should_exit = True
