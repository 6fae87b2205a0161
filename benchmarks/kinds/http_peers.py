"""`draftwood serve` beside other servers: the same weights, prompts, clients and threads, in turn.

Each server is a process of its own, and the others idle while one is asked. What cannot be measured here is a row with
the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import product
from typing import Any

from benchmarks.bench import Bench, turned
from benchmarks.engines import Cell, Unavailable, llama_cpp_server
from benchmarks.experiment import Rows, Strict
from benchmarks.kinds.http import Http, own_server, started
from draftwood.errors import DraftwoodError
from draftwood.eval.intervals import median

OURS = "draftwood"
MEASURES = ("first_ms", "gap_ms", "tokens_per_second")
Way = tuple[str, str]  # a server and its mode


class Against(Strict):
    """Our method against a mode of another server."""

    method: str
    server: str
    mode: str


class HttpPeers(Http):
    """`peers`: servers with their modes."""

    clients: tuple[tuple[int, int], ...] = ((1, 5), (8, 5), (16, 5))
    peers: dict[str, tuple[str, ...]]
    compare: tuple[Against, ...] = ()
    gamma: int = 4

    def measure(self, bench: Bench) -> dict[str, Rows]:
        prompts = self.prompts(bench)
        found: dict[tuple[int, Way], list[dict[str, float]]] = {}
        with ExitStack() as running:
            ways, failures = self.ways(bench, running)
            order = list(ways)
            for way in bench.track(order, "warming up"):
                self.sample(ways[way], prompts[:2])
            turns = [(clients, repeat) for clients, repeats in self.clients for repeat in range(repeats)]
            for clients, repeat in bench.track(turns, "clients"):
                for way in turned(order, repeat):
                    sample = partial(self.sample, ways[way], turned(prompts, repeat)[:clients])
                    found.setdefault((clients, way), []).append(bench.once([clients, repeat, *way], sample))
        rows = [
            {"server": way[0], "mode": way[1], "clients": clients}
            | {key: median([one[key] for one in found[clients, way]]) for key in MEASURES}
            for (clients, _), way in product(self.clients, order)
        ]
        failed = [{"server": server, "mode": mode, "failure": why} for (server, mode), why in failures.items()]
        return {"servers": rows + failed, "ratios": self.ratios(found)}

    def ways(self, bench: Bench, running: ExitStack) -> tuple[dict[Way, Callable[[], Any]], dict[Way, str]]:
        """How each server is asked, all of them started; why others are not."""
        address = running.enter_context(started(own_server(bench)))
        ways: dict[Way, Callable[[], Any]] = {
            (OURS, name): partial(self.by_http, address, speculation=method) for name, method in self.methods.items()
        }
        failures = {}
        run, pair, most = bench.run, bench.pair, max(self.clients)[0]
        places = str(pair.target), str(pair.draft), str(pair.made)
        context = -(-(self.prompt + self.tokens + self.gamma + 1) // 64) * 64
        for server, modes in self.peers.items():
            for mode in bench.track(modes, f"starting {server}"):
                cell = Cell(server, mode, run.quantize or run.dtype, *places, run.threads, self.gamma, context)
                try:
                    address = running.enter_context(started(llama_cpp_server.command(cell, most)))
                    ways[server, mode] = partial(self.by_http, address, cache_prompt=False)
                except (Unavailable, DraftwoodError) as error:
                    failures[server, mode] = str(error)
        return ways, failures

    def ratios(self, found: dict[tuple[int, Way], list[dict[str, float]]]) -> Rows:
        """How many times as many tokens per second ours gives, repeat by repeat."""
        rows: Rows = []
        for (clients, _), each in product(self.clients, self.compare):
            ours, theirs = found.get((clients, (OURS, each.method))), found.get((clients, (each.server, each.mode)))
            if ours and theirs:
                pairs = zip(ours, theirs, strict=True)
                values = [one["tokens_per_second"] / other["tokens_per_second"] for one, other in pairs]
                rows.append({**each.model_dump(), "clients": clients, "ratio": median(values)})
        return rows
