"""The real process, treated badly: clients that leave, signals, broken engines. Nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Command

KEY = "s3cret"
ENDLESS = {"prompt": "a", "max_tokens": 7000, "ignore_eos": True}


class Server:
    """`draftwood serve` in a process of its own."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        command = [sys.executable, "-m", "draftwood", "serve", "--port", "0", "--threads", "1", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
        self.said: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"serves .* on (http://\S+)", line):
                self.client = httpx.Client(base_url=found[1], timeout=60)
                self._reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr or ()))
                self._reader.start()
                return
        raise AssertionError("".join(self.said))

    @property
    def address(self) -> tuple[str, int]:
        return self.client.base_url.host, self.client.base_url.port or 0

    def load(self) -> dict[str, Any]:
        with self.client.stream("GET", "/v1/forest") as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    found: dict[str, Any] = json.loads(line.removeprefix("data: "))
                    return found
        raise AssertionError

    def idle(self, seconds: float = 20) -> None:
        """All requests have ended and their memory is back; the next one is right."""
        until = time.monotonic() + seconds
        while (load := self.load())["running"] or load["waiting"]:
            assert time.monotonic() < until, load
            time.sleep(0.02)
        assert self.client.post("/reset_prefix_cache").status_code == 200
        assert self.load()["kv_used"] == 0
        asked = {"prompt": "Story", "max_tokens": 8, "temperature": 0}
        found = self.client.post("/v1/completions", json=asked).json()["choices"][0]["text"]
        assert found == self.__dict__.setdefault("right", found)

    def memory(self) -> int:
        """Bytes of anonymous memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"RssAnon:\s+(\d+)", text)[0]) << 10

    def end(self, number: int = signal.SIGTERM, seconds: float = 20) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextlib.contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[Server]:
    server = Server(*arguments, **environment)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def server(long_target: Path) -> Iterator[Server]:
    limits = ("--max-running", "8", "--max-queued", "24")
    with serving("--target", str(long_target), *limits, "--log-json", "--api-key", KEY) as found:
        found.client.headers["authorization"] = f"Bearer {KEY}"
        found.idle()
        yield found
        assert found.end() == 0


def raw(server: Server, body: dict[str, Any] | None, **headers: str) -> socket.socket:
    """A connection with a request on it; without a body the half of one."""
    content = json.dumps(body or ENDLESS).encode()
    head = {"host": "localhost", "content-type": "application/json", "content-length": str(len(content))}
    head |= {"authorization": f"Bearer {KEY}", **headers}
    lines = ["POST /v1/completions HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    connection = socket.create_connection(server.address)
    connection.sendall("\r\n".join(lines).encode() + (content if body else content[:10]))
    return connection


@pytest.mark.slow
def test_clients_that_leave(server: Server) -> None:
    """At random moments, with and without streaming, waiting or running."""
    rng = random.Random(1)
    open_ = [raw(server, {**ENDLESS, "stream": i % 2 == 0, "n": 1 + i % 3}) for i in range(12)]
    rng.shuffle(open_)
    for connection in open_:
        time.sleep(rng.random() * 0.03)
        connection.close()
    server.idle()


def test_slow_readers_and_half_bodies_do_not_hold_others_up(server: Server) -> None:
    slow = [raw(server, {**ENDLESS, "stream": True, "logprobs": 20}) for _ in range(3)]
    half = [raw(server, None) for _ in range(5)]
    began = time.monotonic()
    answer = server.client.post("/v1/completions", json={"prompt": "Story", "max_tokens": 5})
    assert answer.status_code == 200 and time.monotonic() - began < 10
    for connection in (*slow, *half):
        connection.close()
    server.idle()


def test_a_client_that_is_killed(server: Server) -> None:
    script = (
        "import http.client, json, sys\n"
        "c = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]))\n"
        "head = {'content-type': 'application/json', 'authorization': sys.argv[4]}\n"
        "c.request('POST', '/v1/completions', sys.argv[3], head)\n"
        "print(c.getresponse().read(10), flush=True)\n"
        "import time; time.sleep(60)\n"
    )
    host, port = server.address
    body = json.dumps({**ENDLESS, "stream": True})
    command = [sys.executable, "-c", script, host, str(port), body, f"Bearer {KEY}"]
    client = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert client.stdout is not None and client.stdout.read(5)
    assert server.load()["running"] == 1
    client.kill()
    client.wait()
    client.stdout.close()
    server.idle()


def test_a_full_queue_and_64_clients(server: Server) -> None:
    """Those that find no room are told so; all others are answered."""

    def ask(i: int) -> int:
        return server.client.post("/v1/completions", json={"prompt": f"{i}", "max_tokens": 40, "seed": i}).status_code

    with ThreadPoolExecutor(64) as pool:
        codes = list(pool.map(ask, range(64)))
    assert set(codes) <= {200, 429} and codes.count(200) >= 32
    server.idle()


@pytest.mark.slow
def test_64_clients_for_a_while(server: Server) -> None:
    """Each is told right, however often it has to come back for want of room."""

    def ask(i: int) -> str:
        body = {"prompt": f"Story {i % 7}", "max_tokens": 24, "seed": i % 13, "speculation": ("off", "lookup")[i % 2]}
        while (answer := server.client.post("/v1/completions", json=body)).status_code == 429:
            time.sleep(0.05)
        text: str = answer.json()["choices"][0]["text"]
        return text

    alone = [ask(i) for i in range(7 * 13 * 2)]
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(ask, range(7 * 13 * 2 * 8))) == alone * 8
    server.idle()


@pytest.mark.slow
def test_memory_stays_flat(server: Server) -> None:
    """Over 2,000 requests of all kinds, those that are left and refused included."""

    def some(count: int) -> None:
        def ask(i: int) -> None:
            kind = i % 5
            if kind == 0:
                raw(server, {**ENDLESS, "stream": i % 2 == 0}).close()
            elif kind == 1:
                server.client.post("/v1/completions", json={"prompt": "a", "nonsense": i})
            else:
                spec = ("off", "lookup", {"name": "beam-search", "width": 1 + i % 3})[kind - 2]
                body = {"prompt": f"{i} words", "max_tokens": 12, "seed": i, "speculation": spec, "stream": i % 2 == 0}
                server.client.post("/v1/completions", json=body)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(count)))
        server.idle(60)

    some(600)
    before = server.memory()
    some(2000)
    assert server.memory() - before < 16 << 20


def test_sigterm_lets_running_requests_end(long_target: Path) -> None:
    with serving("--target", str(long_target), "--drain-seconds", "30") as server, ThreadPoolExecutor(4) as pool:
        asked = {"prompt": "a", "max_tokens": 700, "ignore_eos": True}
        running = [
            pool.submit(server.client.post, "/v1/completions", json={**asked, "stream": i % 2 == 0}) for i in range(4)
        ]
        while server.load()["running"] < 4:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        with contextlib.suppress(httpx.TransportError):  # it may have ended by now
            assert server.client.post("/v1/completions", json=asked).status_code == 503
        for one in running:
            answer = one.result()
            assert answer.status_code == 200
            assert answer.text.endswith("data: [DONE]\n\n") or answer.json()["usage"]["completion_tokens"] == 700
        assert server.process.wait(20) == 0


@pytest.mark.slow
def test_sigterm_does_not_wait_for_ever(long_target: Path) -> None:
    with serving("--target", str(long_target), "--drain-seconds", "0.3") as server:
        connections = [raw(server, {**ENDLESS, "stream": stream}) for stream in (False, True)]
        while server.load()["running"] < 2:
            time.sleep(0.01)
        assert server.end() == 0
        for connection in connections:
            connection.close()


@pytest.mark.slow
def test_ctrl_c(long_target: Path) -> None:
    with serving("--target", str(long_target)) as server:
        assert server.end(signal.SIGINT) == 130


KILL = """
import ctypes, threading, time
from draftwood.runtime.scheduler import Scheduler
def broken(self): raise RuntimeError("the machine is on fire")
def soon():
    while not any(thread.name == "draftwood" for thread in threading.enumerate()): time.sleep(0.01)
    Scheduler.step = broken
threading.Thread(target=soon, daemon=True).start()
from draftwood.cli.main import run
run()
"""


def test_a_broken_engine_ends_the_process(long_target: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The thread that computes dies: requests fail, /health says so, the process ends with an error."""
    script = tmp_path / "killed.py"
    script.write_text(KILL)
    monkeypatch.setattr(sys, "executable", sys.executable)
    command = [sys.executable, str(script), "serve", "--port", "0", "--threads", "1", "--target", str(long_target)]
    original = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: original(command, **options))
    with serving() as server:
        with contextlib.suppress(httpx.TransportError):
            answer = server.client.post("/v1/completions", json=ENDLESS)
            assert answer.status_code == 500 and "fire" not in answer.text
            health = server.client.get("/health")
            assert health.status_code == 503
        assert server.process.wait(20) == 2
        server._reader.join()
        assert "the engine is broken" in "".join(server.said)


def test_a_line_of_json_for_each_request_and_keys_nowhere(server: Server) -> None:
    """Neither prompts nor keys are in the log, and keys are not on the command line."""
    assert server.client.get("/v1/models", headers={"authorization": ""}).status_code == 401
    body = {"prompt": "hidden words", "max_tokens": 3, "ignore_eos": True, "stream": True}
    server.client.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
    assert KEY.encode() not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
    until = time.monotonic() + 20
    while not (mine := [line for line in server.said if '"mine"' in line]):
        assert time.monotonic() < until
        time.sleep(0.01)
    (line,) = map(json.loads, mine)
    assert (line["request_id"], line["status"], line["completion_tokens"]) == ("mine", 200, 3)
    assert not any(secret in "".join(server.said) for secret in ("hidden", KEY))


@pytest.mark.slow
def test_a_warning_beyond_loopback(long_target: Path) -> None:
    with serving("--target", str(long_target), "--host", "0.0.0.0") as server:
        assert any("without an API key" in line for line in server.said)
    with serving("--target", str(long_target), "--host", "0.0.0.0", DRAFTWOOD_API_KEY="k") as server:
        assert not any("without an API key" in line for line in server.said)


def test_a_port_that_is_taken(long_target: Path, command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = command("serve", "--port", taken.getsockname()[1], "--target", long_target)
    assert ended.code == 2 and "cannot be listened on" in ended.err and "--port" in ended.err
