"""What the loop itself costs: against a bare loop, the share of a round that is not a forward, memory, perplexity."""

from __future__ import annotations

import math
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

import torch

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows
from benchmarks.kinds.quantisation import read
from benchmarks.machine import bandwidth, peak_bytes
from draftwood.corpus import DOMAINS, documents, mixed
from draftwood.engine.engine import Engine
from draftwood.eval.intervals import median
from draftwood.models.base import Batch, Segment


class Loop(Kind):
    """All on held-out prompts of every kind of text."""

    methods: dict[str, dict[str, Any]]
    tokens: int = 96
    repeats: int = 15
    documents: int = 6

    def measure(self, bench: Bench) -> dict[str, Rows]:
        before = peak_bytes()
        engine, began = bench.engine, perf_counter()
        prompts = [
            engine.tokens(item.prompt) for domain in DOMAINS for item in islice(documents(domain, "held-out"), 2)
        ]
        pairs = [
            bench.once(["loop", repeat], partial(self._both, engine, prompts[repeat % len(prompts)]))
            for repeat in bench.track(range(self.repeats + 1), "plain loop")
        ][1:]  # the first warms up
        shares: Rows = []
        for name, method in self.methods.items():
            for temperature in (0.0, 1.0):
                values = [
                    bench.once(
                        ["share", name, temperature, repeat],
                        partial(self._share, engine, prompts[repeat % len(prompts)], method, temperature, repeat),
                    )
                    for repeat in bench.track(range(self.repeats + 1), f"share of a round, {name}")
                ][1:]
                shares.append({"method": name, "temperature": temperature, "not_a_forward": median(values)})
        copy = bench.once(["bandwidth"], bandwidth)["copy"]
        loop_ms = median([1000 * loop for _, loop in pairs])
        target: Any = engine.target
        weights = target.weight_bytes
        row = {
            "ratio": median([loop / bare for bare, loop in pairs]),
            "bare_ms": median([1000 * bare for bare, _ in pairs]),
            "loop_ms": loop_ms,
            "perplexity": bench.once(["perplexity"], lambda: perplexity(engine, self.documents)),
            "target_bytes": weights,
            "copy_bandwidth": copy,
            "of_copy_bandwidth": weights / ((loop_ms["value"] or math.nan) / 1000) / copy,
            "bytes_before": before,
            "peak_bytes": peak_bytes(),
            "seconds": perf_counter() - began,
        }
        return {"loop": [row], "shares": shares}

    def _both(self, engine: Engine, prompt: list[int]) -> list[float]:
        """Seconds a token of the bare loop and of ours; the tokens must be the same."""
        began = perf_counter()
        bare = bare_greedy(engine.target, prompt, self.tokens)
        between = perf_counter()
        ours = engine.generate(prompt, "autoregressive", {"temperature": 0}, self.tokens, ignore_eos=True)
        ended = perf_counter()
        if ours.tokens != bare:
            raise AssertionError("the loop gives other tokens than the bare loop")
        return [(between - began) / self.tokens, (ended - between) / self.tokens]

    def _share(self, engine: Engine, prompt: list[int], method: dict[str, Any], temperature: float, seed: int) -> float:
        sampling = {"temperature": temperature}
        result = engine.generate(prompt, method, sampling, self.tokens, seed=seed, ignore_eos=True)
        rounds = result.rounds[1:] or result.rounds
        model = sum(round_.draft_seconds + round_.verify_seconds for round_ in rounds)
        return 1 - model / sum(round_.seconds for round_ in rounds)


def bare_greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """The shortest greedy loop over the decoder: no sampling options, no end of text, no records."""
    n, cache = len(prompt), model.new_cache()
    extent = cache.lend(n + count)
    with torch.inference_mode():
        logits = model(Batch.of(model, prompt, range(n), [Segment.causal(extent, 0, n)], [n - 1]), cache)
        out = [int(logits.argmax())]
        for place in range(n, n + count - 1):
            logits = model(Batch.of(model, out[-1:], [place], [Segment.causal(extent, place, 1)]), cache)
            out.append(int(logits.argmax()))
    return out


def perplexity(engine: Engine, count: int) -> float:
    """The target's, teacher-forced on `count` held-out documents of each kind."""
    assert engine.tokenizer is not None
    target: Any = engine.target
    some = islice(mixed("held-out", seed=1), count * len(DOMAINS))
    found = read(target, [engine.tokenizer.encode(document.text) for document in some])
    return math.exp(math.fsum(found["nats"]) / sum(map(len, found["greedy"])))
