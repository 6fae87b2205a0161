"""State that all models of a server share: settings, shutdown, requests under way, and the form of errors."""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import suppress

from draftwood.serve.errors import ApiError, api_error
from draftwood.serve.settings import ServeSettings

log = logging.getLogger(__name__)

LOAD_SECONDS = 1.0  # between reports of the load


class Front(ABC):
    """The side of a server that its middleware and its process see."""

    name: str  # what is served, in words

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.keys = settings.keys()
        self.draining = asyncio.Event()
        self.busy = 0  # requests that are being worked on
        self.ended = False  # whether they are no longer waited for

    @property
    @abstractmethod
    def broken(self) -> str | None:
        """Why nothing can be computed any more; only a new process mends that."""

    @abstractmethod
    async def aclose(self) -> None:
        """End all requests with ServerEnded, and the threads that work for them."""

    @abstractmethod
    def load(self) -> dict[str, float]:
        """The load now, for the page."""

    async def load_events(self) -> AsyncIterator[str]:
        """Server-sent events of the load, until the server is about to end."""
        while not self.draining.is_set():
            yield f"event: load\ndata: {json.dumps(self.load())}\n\n"
            with suppress(TimeoutError):
                await asyncio.wait_for(self.draining.wait(), LOAD_SECONDS)

    def client_error(self, error: BaseException) -> ApiError:
        """An error as a client may read it."""
        return api_error(error)

    def logged_error(self, error: Exception, when: str) -> ApiError:
        """As `client_error`; what is the server's own fault is logged with its traceback."""
        shown = self.client_error(error)
        if shown.status == 500:
            log.error("a request failed %s", when, exc_info=error)
        return shown
