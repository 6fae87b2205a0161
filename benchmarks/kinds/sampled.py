"""Cost of choosing tokens beside forwards: milliseconds a token under each setting, and its share of a round."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.bench import Bench, turned
from benchmarks.experiment import Kind, Rows
from draftwood.corpus import mixed
from draftwood.engine.engine import Engine
from draftwood.engine.loading import load
from draftwood.errors import ConfigurationError
from draftwood.eval.intervals import median
from draftwood.methods import Method
from draftwood.sampling.params import SamplingParams

GREEDY = "greedy"  # the setting that the others are compared with
Setting = dict[str, Any]  # options of `Engine.generate`


class Sampled(Kind):
    """Plain decoding with each of the `settings`, in turns; then each of the `methods` with the settings `shown`.

    The target drafts for itself where a method needs a draft model and the pair has none.
    """

    settings: dict[str, Setting]
    methods: dict[str, dict[str, Any]]
    shown: tuple[str, ...] = (GREEDY,)
    prompt: int = 64
    tokens: int = 128
    repeats: int = 9

    def measure(self, bench: Bench) -> dict[str, Rows]:
        engine = self.engine(bench)
        prompts = self.prompts(engine)
        plain: list[dict[str, list[float]]] = []
        for repeat in bench.track(range(self.repeats + 1), "plain decoding"):
            prompt = prompts[repeat % len(prompts)]
            plain.append(
                {
                    name: bench.once(
                        ["plain", repeat, name],
                        partial(self.run, engine, prompt, {"name": "autoregressive"}, self.settings[name], repeat),
                    )
                    for name in turned([*self.settings], repeat)
                }
            )
        plain = plain[1:]  # the first warms up
        methods: Rows = []
        for name, method in self.methods.items():
            for setting in filter(partial(self.suits, method), self.shown):
                found = [
                    bench.once(
                        ["method", name, setting, repeat],
                        partial(
                            self.run, engine, prompts[repeat % len(prompts)], method, self.settings[setting], repeat
                        ),
                    )
                    for repeat in bench.track(range(self.repeats + 1), f"share of a round, {name}")
                ][1:]
                methods.append({"method": name, "setting": setting, **self.shares(found)})
        rows = [
            {
                "setting": name,
                "ms": median([1000 * each[name][0] for each in plain]),
                "to_greedy": median([each[name][0] / each[GREEDY][0] for each in plain]),
                **self.shares([each[name] for each in plain]),
            }
            for name in self.settings
        ]
        return {"plain": rows, "methods": methods}

    def engine(self, bench: Bench) -> Engine:
        """The pair; a target without a draft is loaded as its own."""
        pair, run = bench.pair, bench.run
        if pair.draft is not None:
            return bench.engine
        return load(pair.target, pair.target, dtype=run.dtype, quantize=run.quantize, reuse_prefixes=False)

    def suits(self, method: dict[str, Any], setting: str) -> bool:
        """Whether a method takes a setting: beam search draws nothing."""
        try:
            Method.parse(method).check(SamplingParams(**self.settings[setting].get("sampling", {})))
        except ConfigurationError:
            return False
        return True

    def prompts(self, engine: Engine) -> list[list[int]]:
        """Beginnings of held-out documents of every kind."""
        found: list[list[int]] = []
        for document in mixed("held-out"):
            tokens = engine.tokens(document.text)
            if len(tokens) >= self.prompt:
                found.append(tokens[: self.prompt])
            if len(found) == self.repeats + 1:
                break
        return found

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

    def shares(self, found: list[list[float]]) -> dict[str, Any]:
        """Of the rounds' time: choosing tokens, and bookkeeping."""
        return {
            "choosing": median([choosing / (forwards + choosing + rest) for _, forwards, choosing, rest in found]),
            "other": median([rest / (forwards + choosing + rest) for _, forwards, choosing, rest in found]),
        }
