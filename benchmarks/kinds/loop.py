"""Costs of the loop beside forwards: against a bare loop, under each sampling setting, and as a share of a round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch

from benchmarks.bench import Bench, rotated
from benchmarks.experiment import Kind, Rows
from benchmarks.intervals import median
from draftwood.corpus import mixed
from draftwood.engine.engine import Engine
from draftwood.engine.loading import load
from draftwood.errors import ConfigurationError
from draftwood.methods import Method
from draftwood.models.base import Batch, Segment
from draftwood.sampling.params import SamplingParams

GREEDY = "greedy"  # the setting that the others are compared with
PLAIN = {"name": "autoregressive"}
Setting = dict[str, Any]  # options of `Engine.generate`


class Loop(Kind):
    """Plain decoding with each of the `settings` and by a bare loop, in turns; then each method with those `shown`.

    The target drafts for itself where a method needs a draft model and the pair has none.
    """

    settings: dict[str, Setting]
    methods: dict[str, dict[str, Any]]
    shown: tuple[str, ...] = (GREEDY,)
    prompt: int = 64  # tokens
    tokens: int = 96
    repeats: int = 15

    def measure(self, bench: Bench) -> dict[str, Rows]:
        engine = self.engine(bench)
        prompts = self.prompts(engine)
        repeats = range(self.repeats + 1)  # the first warms up
        bare = [
            bench.once(["bare", repeat], partial(self.bare, engine, prompts[repeat]))
            for repeat in bench.track(repeats, "plain loop")
        ][1:]
        plain: list[dict[str, list[float]]] = []
        for repeat in bench.track(repeats, "plain decoding"):
            plain.append({})
            for name in rotated([*self.settings], repeat):
                make = partial(self.run, engine, prompts[repeat], PLAIN, self.settings[name], repeat)
                plain[-1][name] = bench.once(["plain", repeat, name], make)
        shares: Rows = []
        for name, method in self.methods.items():
            for setting in filter(partial(self.suits, method), self.shown):
                result = []
                for repeat in bench.track(repeats, f"share of a round, {name}"):
                    make = partial(self.run, engine, prompts[repeat], method, self.settings[setting], repeat)
                    result.append(bench.once(["method", name, setting, repeat], make))
                shares.append({"method": name, "setting": setting, **parts(result[1:])})
        rows = [
            {
                "setting": name,
                "ms": median([1000 * each[name][0] for each in plain[1:]]),
                "to_greedy": median([each[name][0] / each[GREEDY][0] for each in plain[1:]]),
                **parts([each[name] for each in plain[1:]]),
            }
            for name in self.settings
        ]
        loop = {
            "ratio": median([ours / bare for bare, ours in bare]),
            "bare_ms": median([1000 * bare for bare, _ in bare]),
            "loop_ms": median([1000 * ours for _, ours in bare]),
        }
        return {"loop": [loop], "plain": rows, "shares": shares}

    def engine(self, bench: Bench) -> Engine:
        """The pair; a target without a draft is loaded as its own."""
        pair, run = bench.pair, bench.run
        if pair.draft is not None:
            return bench.engine
        return load(pair.target, pair.target, dtype=run.dtype, quantize=run.quantize, reuse_prefixes=False)

    def suits(self, method: dict[str, Any], setting: str) -> bool:
        """True if a method takes a setting: beam search draws nothing."""
        try:
            Method.parse(method).check(SamplingParams(**self.settings[setting].get("sampling", {})))
        except ConfigurationError:
            return False
        return True

    def prompts(self, engine: Engine) -> list[list[int]]:
        """Beginnings of held-out documents of every kind."""
        result: list[list[int]] = []
        for document in mixed("held-out"):
            tokens = engine.tokens(document.text)
            if len(tokens) >= self.prompt:
                result.append(tokens[: self.prompt])
            if len(result) == self.repeats + 1:
                break
        return result

    def bare(self, engine: Engine, prompt: list[int]) -> list[float]:
        """Seconds a token of the bare loop and of ours; the tokens must be the same."""
        began = perf_counter()
        bare = bare_greedy(engine.target, prompt, self.tokens)
        between = perf_counter()
        ours = engine.generate(prompt, PLAIN, {"temperature": 0}, self.tokens, ignore_eos=True)
        ended = perf_counter()
        if ours.tokens != bare:
            raise AssertionError("the loop gives other tokens than the bare loop")
        return [(between - began) / self.tokens, (ended - between) / self.tokens]

    def run(
        self, engine: Engine, prompt: list[int], method: dict[str, Any], setting: Setting, seed: int
    ) -> list[float]:
        """Seconds a token, of the rounds behind the prompt's; seconds of forwards, of choosing tokens, of the rest."""
        result = engine.generate(prompt, method, max_new_tokens=self.tokens, seed=seed, ignore_eos=True, **setting)
        rounds = result.rounds[1:] or result.rounds
        forwards = sum(each.draft_seconds + each.verify_seconds for each in rounds)
        choosing = sum(each.sampling_seconds for each in rounds)
        seconds = sum(each.seconds for each in rounds)
        count = sum(len(each.tokens) for each in rounds)
        return [seconds / max(1, count), forwards, choosing, seconds - forwards - choosing]


def parts(result: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Shares of the rounds' time: outside forwards, and of that choosing tokens."""
    whole = [(choosing, rest, forwards + choosing + rest) for _, forwards, choosing, rest in result]
    return {
        "not_a_forward": median([(choosing + rest) / all for choosing, rest, all in whole]),
        "choosing": median([choosing / all for choosing, _, all in whole]),
    }


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
