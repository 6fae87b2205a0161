"""How connections and the server end: answers are read before them, and whoever still waits is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import Running, running
from test_process import ENDLESS, Server, raw, serving

from draftwood import load
from draftwood.serve.app import create_app
from draftwood.serve.asgi import LOCAL_HEADERS, full_answer, scope_of
from draftwood.serve.settings import ServeSettings

HEAD = "POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"


def asked(served: Running, head: str, body: bytes) -> bytes:
    """The answer to a client that sends everything first, then reads; ConnectionError where it cannot."""
    with socket.create_connection((served.client.base_url.host, served.client.base_url.port or 0)) as connection:
        connection.settimeout(20)
        connection.sendall(head.format(host="localhost").encode() + b"\r\n" + body)
        found = b""
        while part := connection.recv(1 << 16):
            found += part
    return found


LARGE = b" " * (12 << 20)  # more than buffers on both sides hold
KEY = "authorization: Bearer k\r\n"


def chunked(body: bytes) -> bytes:
    return b"".join(b"10000\r\n" + body[i : i + 65536] + b"\r\n" for i in range(0, len(body), 65536)) + b"0\r\n\r\n"


@pytest.fixture(scope="module")
def keyed(target: Path) -> Iterator[Running]:
    with running(load(target), ServeSettings(api_key="k", max_body=1024, client_seconds=20)) as found:
        yield found


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        (HEAD + KEY + f"content-length: {len(LARGE)}\r\n", LARGE, b"413"),
        (HEAD + KEY + "transfer-encoding: chunked\r\n", chunked(LARGE), b"413"),
        (HEAD + f"connection: close\r\ncontent-length: {len(LARGE)}\r\n", LARGE, b"401"),
        (HEAD.replace("{host}", "elsewhere") + f"connection: close\r\ncontent-length: {len(LARGE)}\r\n", LARGE, b"400"),
        (
            HEAD.replace("/v1/completions", "/no") + f"connection: close\r\ncontent-length: {len(LARGE)}\r\n",
            LARGE,
            b"404",
        ),
        (HEAD.replace("POST", "PUT") + f"connection: close\r\ncontent-length: {len(LARGE)}\r\n", LARGE, b"405"),
    ],
    ids=["length", "chunks", "key", "host", "path", "method"],
)
def test_a_refusal_is_read_however_large_the_body(keyed: Running, head: str, body: bytes, status: bytes) -> None:
    """A connection that is closed while the client still sends is reset, and the answer is lost."""
    for _ in range(3):
        found = asked(keyed, head, body)
        assert found.startswith(b"HTTP/1.1 " + status), found[:80]
        document = json.loads(found.partition(b"\r\n\r\n")[2])
        assert document["error"]["message"]


def test_a_body_that_is_only_announced_is_not_waited_for(keyed: Running) -> None:
    """Who asks first whether to send it is told no at once."""
    began = time.monotonic()
    found = asked(keyed, HEAD + KEY + "expect: 100-continue\r\ncontent-length: 5000000\r\n", b"")
    assert found.startswith(b"HTTP/1.1 413") and time.monotonic() - began < 15


def streamed(server: Server, path: str, body: dict[str, Any]) -> str:
    with server.client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        return "".join(answer.iter_text())


def test_who_is_not_done_when_the_server_ends_is_told(long_target: Path) -> None:
    """An error as the last event of each stream, a 503 for others; no traceback."""
    with serving("--target", str(long_target), "--drain-seconds", "0.2") as server, ThreadPoolExecutor(8) as pool:
        streams = [
            pool.submit(streamed, server, path, {**ENDLESS, **more})
            for path, more in (("/v1/completions", {}), ("/v1/completions", {"n": 2}), ("/v1/forest", {}))
        ]
        whole = pool.submit(server.client.post, "/v1/completions", json=ENDLESS)
        half = raw(server, None)  # whose body never comes
        while server.load()["running"] < 5:
            time.sleep(0.01)
        assert server.end() == 0
        for one in streams:
            last = one.result().strip().rpartition("\n")[2]
            error = json.loads(last.removeprefix("data: "))["error"]
            assert (error["type"], error["code"]) == ("server_error", "server_ended") and "ask again" in error[
                "message"
            ]
        answer = whole.result()
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert answer.json()["error"]["code"] == "server_ended"
        half.settimeout(5)
        assert half.recv(12) == b"HTTP/1.1 503"
        half.close()
        server._reader.join()
        assert "Traceback" not in "".join(server.said)


def test_a_response_that_is_not_done_has_failed(long_target: Path) -> None:
    async def ask() -> str:
        engine = load(long_target)
        engine.requests.end_tokens = frozenset()
        app = create_app(engine)
        body = json.dumps({"input": "a", "max_output_tokens": 7000, "stream": True}).encode()
        found = asyncio.create_task(full_answer(app, scope_of("POST", "/v1/responses", b"", LOCAL_HEADERS), body))
        while not engine.scheduler.busy:
            await asyncio.sleep(0.01)
        await app.state.service.aclose()
        return (await found)[1].decode()

    last = asyncio.run(ask()).strip().rpartition("\n\n")[2]
    assert last.startswith("event: response.failed") and "ask again" in last


@pytest.mark.slow
def test_a_second_signal_does_not_wait(long_target: Path) -> None:
    with serving("--target", str(long_target), "--drain-seconds", "60") as server, ThreadPoolExecutor(1) as pool:
        stream = pool.submit(streamed, server, "/v1/completions", ENDLESS)
        while server.load()["running"] < 1:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.end() == 0
        assert "server_ended" in stream.result()
        server._reader.join()
        assert "Traceback" not in "".join(server.said)


@pytest.mark.slow
def test_a_full_disk_ends_no_server(long_target: Path) -> None:
    """Neither of the streams can be written; requests are answered all the same, and it ends as always."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "draftwood", "serve", "--port", str(port), "--log-json", "-v"]
    with (
        open("/dev/full", "w") as full,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
        subprocess.Popen([*command, "--target", str(long_target)], stdout=full, stderr=full) as process,
    ):
        try:
            while process.poll() is None:
                with contextlib.suppress(httpx.TransportError):
                    answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
                    break
                time.sleep(0.05)
            assert process.poll() is None, process.returncode
            assert answer.status_code == 200
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_unknown_paths_are_not_found(served: Running) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        for path in ("/v1/audio/speech", "/v1/methods/other", "/nothing.js", "/viewer/nothing", "/v1/completions/"):
            answer = served.client.request(method, path)
            assert answer.status_code == 404, (method, path)
            error = answer.json()["error"]
            assert error["type"] == "not_found_error" and path in error["message"]
    for path in ("/", "/page.js", "/viewer/dom.js"):
        assert served.client.get(path).status_code == 200
        answer = served.client.post(path)
        assert answer.status_code == 405 and answer.headers["allow"] == "GET, HEAD"
