"""Throughput of requests of mixed methods at once, against one by one and against Hugging Face's batched generate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from time import perf_counter
from typing import Any

from benchmarks.bench import Bench
from benchmarks.engines import Cell
from benchmarks.engines.hugging_face import batched
from benchmarks.experiment import Kind, Rows
from draftwood.corpus import mixed
from draftwood.eval.intervals import median


class Requests(Kind):
    """Methods and kinds of text in turn, half of the requests greedy; the same requests each time."""

    methods: list[dict[str, Any]]
    requests: int = 32
    tokens: int = 48
    repeats: int = 5
    concurrent: tuple[int, ...] = (1, 2, 4, 8, 16)

    def measure(self, bench: Bench) -> dict[str, Rows]:
        asked, engine = self.asked(), bench.engine
        total = self.requests * self.tokens
        peer = None

        def sample(name: str) -> dict[str, Any]:
            nonlocal peer
            if name == "alone":
                seconds, alone = timed(lambda: [engine.generate(**request) for request in asked])
                return {"seconds": seconds, "results": [[r.tokens, r.logprobs] for r in alone]}
            n = int(name.split()[-1])
            if name.startswith("ours"):
                seconds, results = timed(lambda: engine.batch(asked, concurrency=n))
                return {"seconds": seconds, "results": [[r.tokens, r.logprobs] for r in results]}
            if peer is None:
                peer = batched(Cell("Hugging Face", "plain", bench.run.dtype, str(bench.pair.target), "", ""))
            prompts = [engine.tokens(request["prompt"]) for request in asked]
            parts = [prompts[start : start + n] for start in range(0, len(prompts), n)]
            return {"seconds": timed(lambda: [peer(some, self.tokens) for some in parts])[0]}

        names = ["alone", *(f"{who} {n}" for n in self.concurrent for who in ("ours", "theirs"))]
        engine.batch(asked[:4], concurrency=4)  # libraries make their kernels
        samples: list[dict[str, dict[str, Any]]] = []
        for repeat in bench.track(range(self.repeats), "requests at once"):
            samples.append({name: bench.once([repeat, name], partial(sample, name)) for name in names})
        rows: Rows = [
            {"concurrent": "one by one", "tokens_per_second": median([total / s["alone"]["seconds"] for s in samples])}
        ]
        for n in self.concurrent:
            ours, theirs = f"ours {n}", f"theirs {n}"
            same = [a == b for s in samples for a, b in zip(s["alone"]["results"], s[ours]["results"], strict=True)]
            rows.append(
                {
                    "concurrent": f"{n} at once",
                    "tokens_per_second": median([total / s[ours]["seconds"] for s in samples]),
                    "to_one_by_one": median([s["alone"]["seconds"] / s[ours]["seconds"] for s in samples]),
                    "hugging_face": median([total / s[theirs]["seconds"] for s in samples]),
                    "to_hugging_face": median([s[theirs]["seconds"] / s[ours]["seconds"] for s in samples]),
                    "same_bits": sum(same) / len(same),
                }
            )
        return {"requests": rows}

    def asked(self) -> list[dict[str, Any]]:
        """The requests."""
        turns = islice(zip(mixed("held-out", seed=2), cycle(self.methods), strict=False), self.requests)
        return [
            {
                "prompt": document.prompt,
                "method": method,
                "sampling": {"temperature": float(i % 2)},
                "seed": i,
                "max_new_tokens": self.tokens,
                "ignore_eos": True,
            }
            for i, (document, method) in enumerate(turns)
        ]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds, result)."""
    began = perf_counter()
    result = work()
    return perf_counter() - began, result
