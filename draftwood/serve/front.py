"""State that all models of a server share: settings, shutdown, requests under way, and the form of errors."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from draftwood.serve.errors import ApiError, api_error
from draftwood.serve.settings import ServeSettings

log = logging.getLogger(__name__)


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

    def client_error(self, error: BaseException) -> ApiError:
        """An error as a client may read it."""
        return api_error(error)

    def logged_error(self, error: Exception, when: str) -> ApiError:
        """As `client_error`; what is the server's own fault is logged with its traceback."""
        shown = self.client_error(error)
        if shown.status == 500:
            log.error("a request failed %s", when, exc_info=error)
        return shown
