"""What HTTP adds: the same streamed requests to a server in a process of its own, and to the engine by itself."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic, perf_counter, sleep
from typing import Any
from urllib.request import urlopen

import numpy as np

from benchmarks.bench import Bench, turned
from benchmarks.experiment import Kind, Rows
from draftwood.corpus import mixed
from draftwood.engine.async_engine import AsyncEngine
from draftwood.engine.engine import Engine
from draftwood.errors import DraftwoodError
from draftwood.eval.intervals import median
from draftwood.models.text.tokenizer import Tokenizer

START = 300.0  # seconds that a server has to start
Times = list[float]  # of a request: when it was sent, then when each of its chunks came
Ask = Callable[[list[int], int], Awaitable[tuple[Times, int]]]  # prompt, seed -> times, tokens


class Http(Kind):
    """So many clients at once, each with one request, by way of both in turn; other prompts in each repeat."""

    methods: dict[str, dict[str, Any]]
    clients: tuple[tuple[int, int], ...] = ((1, 40), (16, 18), (64, 3))  # and how many repeats
    tokens: int = 64
    prompt: int = 64  # tokens at most

    def measure(self, bench: Bench) -> dict[str, Rows]:
        engine = bench.engine
        prompts = self.prompts(bench)
        rows: Rows = []
        with started(own_server(bench)) as address:
            for name, method in self.methods.items():
                ways: dict[str, Callable[[], Any]] = {
                    "engine": partial(self.by_engine, engine, method),
                    "HTTP": partial(self.by_http, address, speculation=method),
                }
                counted: dict[str, Callable[[], float]] = {"HTTP": partial(waited, address)}
                for warm in ways.values():
                    asyncio.run(self.load(warm, prompts[:2]))
                for clients, repeats in bench.track(self.clients, name):
                    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
                    for repeat in range(repeats):
                        for way in sorted(ways, reverse=repeat % 2 == 1):
                            some, inside = turned(prompts, repeat)[:clients], counted.get(way, float)
                            sample = partial(self.sample, ways[way], some, inside)
                            found[way].append(bench.once([name, clients, repeat, way], sample))
                    rows.append({"method": name, "clients": clients, **compared(found)})
        return {"http": rows}

    def prompts(self, bench: Bench) -> list[list[int]]:
        """Held-out prompts of all kinds of text in turn, one for each client and repeat at least."""
        tokenizer, count = Tokenizer.load(bench.pair.target), max(max(each) for each in self.clients)
        return [tokenizer.encode(one.text)[: self.prompt] for one in islice(mixed("held-out", seed=4), count)]

    def sample(
        self, way: Callable[[], Any], prompts: list[list[int]], inside: Callable[[], float] = float
    ) -> dict[str, float]:
        """One load: milliseconds to the first chunk and between tokens, medians over requests; tokens a second.

        `outside_ms`: what requests waited for the first chunk, on average, without the seconds that `inside` counts.
        """
        before, began = inside(), perf_counter()
        found = asyncio.run(self.load(way, prompts))
        seconds = perf_counter() - began
        firsts = [times[1] - times[0] for times, _ in found]
        return {
            "first_ms": 1000 * float(np.median(firsts)),
            "outside_ms": 1000 * (sum(firsts) - inside() + before) / len(firsts),
            "gap_ms": 1000 * float(np.median([(times[-1] - times[1]) / (count - 1) for times, count in found])),
            "tokens_per_second": sum(count for _, count in found) / seconds,
        }

    async def load(self, way: Callable[[], Any], prompts: list[list[int]]) -> list[tuple[Times, int]]:
        """All prompts at once."""
        async with way() as ask:
            return list(await asyncio.gather(*(ask(prompt, seed) for seed, prompt in enumerate(prompts))))

    def by_engine(self, engine: Engine, method: dict[str, Any]) -> Any:
        """Requests to the engine."""
        options: dict[str, Any] = {"method": method, "sampling": {"temperature": 0.0}, "ignore_eos": True}

        class Asking(AsyncEngine):
            async def __aenter__(self) -> Any:
                return self.ask

            async def ask(self, prompt: list[int], seed: int) -> tuple[Times, int]:
                times, count = [perf_counter()], 0
                async for event in self.stream(prompt, seed=seed, max_new_tokens=tokens, **options):
                    times.append(perf_counter())
                    count += len(event.tokens)
                return times, count

        tokens = self.tokens
        return Asking(engine)

    def by_http(self, address: tuple[str, int], **options: Any) -> Any:
        """Requests to a server, each on a connection of its own, with more fields than all servers know."""
        body = {
            "max_tokens": self.tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options,
        }

        class Asking:
            async def __aenter__(self) -> Ask:
                return self.ask

            async def __aexit__(self, *error: object) -> None: ...

            async def ask(self, prompt: list[int], seed: int) -> tuple[Times, int]:
                content = json.dumps({**body, "prompt": prompt, "seed": seed})
                times = [perf_counter()]
                reader, writer = await asyncio.open_connection(*address)
                head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n"
                writer.write(f"{head}content-type: application/json\r\n\r\n{content}".encode())
                last = b""
                try:
                    while line := await reader.readline():
                        if line == b"data: [DONE]\n":
                            return times[:-1], json.loads(last.removeprefix(b"data: "))["usage"]["completion_tokens"]
                        if line.startswith(b"data: "):
                            last = line
                            times.append(perf_counter())
                finally:
                    writer.close()
                raise DraftwoodError(f"the server ended an answer early, with {last.decode()!r}")

        return Asking()


def compared(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Each measure of both ways, and of the same repeat what HTTP adds."""
    ours, theirs = found["engine"], found["HTTP"]
    row: dict[str, Any] = {"outside_ms": median([one["outside_ms"] for one in theirs])}
    for key in ("first_ms", "gap_ms", "tokens_per_second"):
        row[f"engine_{key}"] = median([one[key] for one in ours])
        row[f"http_{key}"] = median([one[key] for one in theirs])
        pairs = list(zip(ours, theirs, strict=True))
        row[f"ratio_{key}"] = median([http[key] / engine[key] for engine, http in pairs])
        row[f"more_{key}"] = median([http[key] - engine[key] for engine, http in pairs])
    return row


def waited(address: tuple[str, int]) -> float:
    """Seconds that all requests together have waited for their first tokens within the server, as its metrics say."""
    with urlopen(f"http://{address[0]}:{address[1]}/metrics") as answer:
        found = re.search(r"time_to_first_token_seconds_sum\S* (\S+)", answer.read().decode())
    return float(found[1]) if found else 0.0


def own_server(bench: Bench) -> list[str]:
    """The command `draftwood serve` with the run's models."""
    return own(bench, "serve", "--port", "0", "--no-reuse-prefixes")


def own(bench: Bench, *arguments: object) -> list[str]:
    """A command of draftwood with the run's models."""
    run, pair = bench.run, bench.pair
    command = [sys.executable, "-m", "draftwood", *map(str, arguments)]
    command += ["--target", str(pair.target), "--draft", str(pair.draft), "--dtype", run.dtype]
    return [*command, "--threads", str(run.threads), *(["--quantize", run.quantize] if run.quantize else [])]


@contextmanager
def started(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    """A server in a process of its own: where it listens, which is what it says first."""
    with TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        try:
            until = monotonic() + START
            while True:
                ended = process.poll() is not None
                text = os.pread(said.fileno(), 1 << 20, 0).decode("utf-8", "replace")
                if found := re.search(r"on http://([\d.]+):(\d+)", text):
                    yield found[1], int(found[2])
                    return
                if ended or monotonic() > until:
                    raise DraftwoodError(f"{Path(command[0]).name} did not start: {text.strip()[-300:]}")
                sleep(0.05)
        finally:
            process.terminate()
            process.wait()
