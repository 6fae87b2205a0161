"""A server in a thread, and a client of it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from draftwood import Engine
from draftwood.serve.app import create_app
from draftwood.serve.run import listen, uvicorn_config
from draftwood.serve.service import Service
from draftwood.serve.settings import ServeSettings


@dataclass
class Running:
    """A server and what is behind it."""

    url: str
    app: FastAPI
    engine: Engine
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60)

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

    def post(self, path: str, **body: Any) -> Any:
        """The document that a request is answered with; it must succeed."""
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """The status and the error of a request that must fail."""
        answer = self.client.post(path, json=body)
        assert answer.status_code >= 400, answer.text
        return answer.status_code, answer.json()["error"]

    def chunks(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The chunks of a streamed answer."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in answer.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def idle(self) -> bool:
        """Whether nothing runs, waits or holds memory."""
        return not self.engine.scheduler.busy and not self.service.busy

    def wait(self, ready: Callable[[], bool], seconds: float = 20) -> None:
        """Until something is so."""
        until = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < until, "it does not happen"
            time.sleep(0.01)


@contextlib.contextmanager
def running(
    engine: Engine, settings: ServeSettings | None = None, method: Any = None, port: int = 0
) -> Iterator[Running]:
    """A server for a while; at its end nothing runs and all memory is back."""
    app = create_app(engine, settings or ServeSettings(), method)
    with listening(app, port) as url:
        served = Running(url, app, engine)
        try:
            yield served
            served.wait(served.idle)
            engine.reset_prefix_cache()
            assert engine.memory["used"] == 0
        finally:
            served.client.close()


@contextlib.contextmanager
def listening(app: FastAPI, port: int = 0) -> Iterator[str]:
    """The address of an application that is served for a while."""
    server = uvicorn.Server(uvicorn_config(app))
    thread = threading.Thread(target=server.run, args=([listen(ServeSettings(port=port))],))
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        app.state.service.draining.set()
        server.should_exit = True
        thread.join()
