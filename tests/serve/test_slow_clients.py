"""Clients that send or read too slowly are given up; nobody waits for them, and those that only wait are not."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from servers import Running, running

from draftwood import load
from draftwood.serve.settings import ServeSettings

ENDLESS = {"prompt": "a", "max_tokens": 7000, "ignore_eos": True, "stream": True, "logprobs": 20}
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"


def connected(served: Running) -> socket.socket:
    """A connection that takes little at once."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect((served.client.base_url.host, served.client.base_url.port or 0))
    return connection


def rest(connection: socket.socket) -> bytes:
    """The bytes that come until the server closes the connection."""
    found = b""
    try:
        while part := connection.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    connection.close()
    return found


def trickled(connection: socket.socket, byte: bytes) -> None:
    """Send one after the other until the connection is closed."""
    began = time.monotonic()
    with connection, pytest.raises(OSError):
        while time.monotonic() < began + 20:
            connection.sendall(byte)
            time.sleep(0.05)


def asked(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return HEAD + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(content) + content


@pytest.mark.slow
def test_what_is_not_sent_in_time(long_target: Path) -> None:
    with running(load(long_target), ServeSettings(client_seconds=0.3)) as served:
        nothing, half, trickle = connected(served), connected(served), connected(served)
        half.sendall(HEAD)
        began = time.monotonic()
        trickled(trickle, b"G")  # a head that grows for ever
        assert rest(nothing) == rest(half) == b"" and time.monotonic() - began < 15
        again = connected(served)
        again.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200 OK" in again.recv(99)
        again.sendall(HEAD)  # the next request on the same connection
        assert rest(again).endswith(b'{"status":"ok"}')
        body = connected(served)
        body.sendall(asked(ENDLESS)[:-5])
        assert b"408" in rest(body)
        refused = connected(served)
        refused.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: elsewhere\r\ncontent-length: 999\r\n\r\n")
        trickled(refused, b" ")  # a body that nobody reads
        answer = served.post("/v1/completions", prompt="a", max_tokens=600, ignore_eos=True)  # whoever waits may
        assert answer["usage"]["completion_tokens"] == 600


@pytest.mark.parametrize("limits", [{"client_seconds": 0.3}, {"client_seconds": 1.5, "request_seconds": 0.5}], ids=str)
def test_what_is_not_read_in_time(long_target: Path, limits: dict[str, float], caplog: Any) -> None:
    """Either limit ends the request; the connection goes as soon as the client has let it wait."""
    with running(load(long_target), ServeSettings(**limits)) as served:
        slow = connected(served)
        slow.sendall(asked({**ENDLESS, "prompt": "a" * 900, "echo": True, "n": 9}))  # more than buffers take
        served.wait(lambda: not served.idle())
        served.wait(served.idle)
        found = rest(slow)
        assert b"200 OK" in found and b"[DONE]" not in found
    assert "Exception" not in caplog.text
