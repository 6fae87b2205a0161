"""Many replicas and clients: simulated with costs that are measured here, and checked against Ray Serve's replicas.

Measured are the engine's passes by their rows, alone and while engines of other processes compute, and at a server
processor time per token outside of passes and the way of a lone request. What the check compares is not among them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows
from benchmarks.kinds.http import Http, own, started
from benchmarks.kinds.simulation import Asked, Machine, Simulation
from draftwood.cluster.prefix_routing import blocks_of
from draftwood.engine.engine import Engine
from draftwood.errors import ConfigurationError, DraftwoodError
from draftwood.eval.intervals import median
from draftwood.runtime.cost import Costs, Curve
from draftwood.runtime.prefix import SHARE

PLAIN = {"name": "autoregressive"}
STEPS = 12  # passes that are timed for each number of requests
LONE = 5  # requests, one after the other, that tell how long the way is
Talk = list[list[int]]  # a client's prompts; each begins with the one before
Way = Callable[[], Any]
Times = Sequence[tuple[float, float]]  # seconds of requests to their first and to their last token


class Scale(Kind):
    """Clients with `turns` requests each, one after the other: `prompt` tokens, then `more` tokens behind these."""

    replicas: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)  # each on a machine such as this one
    clients: tuple[int, ...] = (100, 1000, 10_000)
    checked: tuple[tuple[int, int], ...] = ((1, 16), (2, 24))  # replicas on this machine, clients
    running: int = 8  # requests that share a replica's passes
    prompt: int = 96
    more: int = 48
    turns: int = 3
    tokens: int = 16
    rows: tuple[int, ...] = (32, 128, 400)  # of prompts whose passes are timed
    repeats: int = 3

    def measure(self, bench: Bench) -> dict[str, Rows]:
        engine, curves = bench.engine, []
        for others in bench.track(range(max((1, *dict(self.checked)))), "passes"):
            with neighbours(bench, others, self.running):
                curves.append(self.passes(engine))
        machine = Machine(curves, os.cpu_count() or 1, bench.run.threads)
        slot = engine.generation([1], method=PLAIN).target.slot_bytes
        how: dict[str, Any] = {"running": self.running, "room": (engine.scheduler.memory or 0) // SHARE // slot}
        words, checks, rows = range(engine.target.vocab_size), list[dict[str, Any]](), list[dict[str, Any]]()
        for replicas, clients in bench.track(self.checked, "servers"):
            command = own(bench, "serve", "--port", 0, "--ray", "--replicas", replicas, "--max-running", self.running)
            with started(command) as address:
                way = partial(Http(methods={}, tokens=self.tokens).by_http, address, speculation=PLAIN)
                asyncio.run(talked(way, self.talks(words, 4 * replicas, f"warm {replicas}")))  # warm
                if not checks:
                    talks = self.talks(words, clients, "handling")
                    passes = Simulation(machine, replicas, shared=True, **how).run(self.asked(talks)).worked
                    handling = (processor_seconds(way, talks) - passes * machine.threads) / self.made(clients)
                    lone = [asyncio.run(talked(way, [talk[:1]]))[0][0] for talk in self.talks(words, LONE, "lone")]
                    reach = float(np.median(lone)) - machine.seconds(self.prompt, 1)
                    machine = replace(machine, handling=max(0.0, handling), reach=max(0.0, reach))
                found = []
                for repeat in range(self.repeats):
                    talks = self.talks(words, clients, f"check {repeat}")
                    simulated = Simulation(machine, replicas, shared=True, **how).run(self.asked(talks))
                    measured = bench.once([replicas, repeat], partial(self.sample, way, talks))
                    found.append((figures(simulated.times, self.made(clients), simulated.now), measured))
            checks += [
                {
                    "replicas": replicas,
                    "clients": clients,
                    "figure": name,
                    "simulated": median([mine[name] for mine, _ in found]),
                    "measured": median([real[name] for _, real in found]),
                    "ratio": median([mine[name] / real[name] for mine, real in found]),
                }
                for name in found[0][0]
            ]
        for clients in self.clients:
            asked = self.asked(self.talks(words, clients, "scale"))
            for replicas in bench.track(self.replicas, f"{clients} clients"):
                simulated = Simulation(machine, replicas, **how).run(asked)
                row = {"replicas": replicas, "clients": clients, "queue": simulated.waited / simulated.now}
                row["reused"] = sum(one.reused for one in simulated.done) / sum(one.of.prompt for one in simulated.done)
                rows.append({**row, **figures(simulated.times, self.made(clients), simulated.now)})
        points = sorted({1, self.running, *self.rows})
        around = {"handling_ms": 1000 * machine.handling, "reach_ms": 1000 * machine.reach}
        return {
            "scale": rows,
            "check": checks,
            "passes": [
                {"busy": busy, "rows": n, "ms": 1000 * curve.seconds(n, n if n <= self.running else 1)}
                for busy, curve in enumerate(machine.curves, 1)
                for n in points
            ],
            "machine": [{"cores": machine.cores, "room": how["room"], **around}],
        }

    def passes(self, engine: Engine) -> Curve:
        """The engine's own curve, measured anew as requests run together, and with passes of prompts."""
        scheduler, rng = engine.scheduler, random.Random(0)
        scheduler.prefixes.enabled, scheduler.calls.running, scheduler.costs = False, self.running, Costs()
        curve = scheduler.costs.curve(engine.target)

        def submit(rows: int, tokens: int) -> Any:
            prompt, greedy = rng.choices(range(engine.target.vocab_size), k=rows), {"temperature": 0.0}
            return engine.submit(
                engine.generation(prompt, method=PLAIN, sampling=greedy, max_new_tokens=tokens, ignore_eos=True)
            )

        for load in sorted({*(2**i for i in range(self.running.bit_length())), self.running}):
            tasks = [submit(8, STEPS) for _ in range(load)]
            while not all(task.done for task in tasks):
                scheduler.step()
        for rows in 3 * self.rows:
            submit(rows, 1)
            began = perf_counter()
            scheduler.step()
            curve.add(rows, perf_counter() - began)
        return curve

    def talks(self, words: Sequence[int], clients: int, purpose: str) -> list[Talk]:
        """Random tokens, other ones for each purpose, since the server keeps prompts (numbers n and -n seed alike)."""
        rng, lengths = random.Random(purpose), [self.prompt + turn * self.more for turn in range(self.turns)]
        texts = [rng.choices(words, k=lengths[-1]) for _ in range(clients)]
        return [[text[:length] for length in lengths] for text in texts]

    def asked(self, talks: Sequence[Talk]) -> list[list[Asked]]:
        """What the simulation is told of them."""

        def one(prompt: list[int]) -> Asked:
            return Asked(len(prompt), self.tokens, blocks_of(json.dumps({"prompt": prompt}).encode()))

        return [[one(prompt) for prompt in talk] for talk in talks]

    def made(self, clients: int) -> int:
        """Tokens of so many clients."""
        return clients * self.turns * self.tokens

    def sample(self, way: Way, talks: Sequence[Talk]) -> dict[str, float]:
        """What clients see of the server."""
        began = perf_counter()
        times = asyncio.run(talked(way, talks))
        return figures(times, self.made(len(talks)), perf_counter() - began)


def figures(times: Times, tokens: int, seconds: float) -> dict[str, float]:
    """Tokens a second, and seconds to the first and to the last token: medians and 99th percentiles."""
    found = {"tokens a second": tokens / seconds}
    for name, each in zip(("first", "last"), zip(*times, strict=True), strict=True):
        for share in (50, 99):
            found[f"seconds to the {name}, {share}%"] = float(np.percentile(each, share))
    return found


async def talked(way: Way, talks: Sequence[Talk]) -> Times:
    """All clients at once."""
    async with way() as ask:

        async def client(talk: Talk) -> Times:
            each = [(await ask(prompt, 0))[0] for prompt in talk]
            return [(times[1] - times[0], times[-1] - times[0]) for times in each]

        return [times for found in await asyncio.gather(*map(client, talks)) for times in found]


def processor_seconds(way: Way, talks: Sequence[Talk]) -> float:
    """Seconds that all cores of this machine work for some requests."""

    def worked() -> int:
        user, nice, system, _, _, interrupts, soft, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
        return user + nice + system + interrupts + soft

    try:
        before = worked()
        asyncio.run(talked(way, talks))
        return (worked() - before) / os.sysconf("SC_CLK_TCK")
    except FileNotFoundError:
        raise ConfigurationError("processor time is read from /proc/stat; run this experiment on Linux") from None


@contextmanager
def neighbours(bench: Bench, count: int, running: int) -> Iterator[None]:
    """So many other processes that compute passes of as many rows all the time."""
    request = {"prompt": "a", "ignore_eos": True, "max_tokens": 256}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "requests.jsonl"
        source.write_text("\n".join(map(json.dumps, [{**request, "max_tokens": 1}, *[request] * 2000])))
        outs = [source.with_name(f"{number}.jsonl") for number in range(count)]
        how, quiet = ("--method", PLAIN["name"], "--concurrency", running), subprocess.DEVNULL
        commands = [own(bench, "batch", source, "--out", out, *how) for out in outs]
        processes = [subprocess.Popen(command, stdout=quiet, stderr=quiet) for command in commands]
        try:
            while not all(out.is_file() and out.stat().st_size for out in outs):
                if any(process.poll() is not None for process in processes):
                    raise DraftwoodError("`draftwood batch`, which was to keep a core busy, ended early")
                sleep(0.1)
            yield
        finally:
            for process in processes:
                process.kill()
                process.wait()
