"""Time to the first token of a light request beside a heavy one, over that alone: each method beside each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, islice
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any

from benchmarks.bench import Bench
from benchmarks.experiment import Kind, Rows, Strict
from benchmarks.intervals import median
from draftwood.corpus import mixed
from draftwood.engine.engine import Engine
from draftwood.errors import DraftwoodError

LEAD = 0.05  # seconds that the heavy call decodes before light requests come


class Heavy(Strict):
    """A client's call: `texts` of one method."""

    method: dict[str, Any]
    texts: int = 1


class Fairness(Kind):
    """Light requests come one after the other, at moments that the heavy one's passes do not know; all greedy."""

    light: dict[str, dict[str, Any]]
    heavy: dict[str, Heavy]
    tokens: int = 8  # of a light request
    prompt: int = 24  # tokens of every prompt
    requests: int = 12  # light ones of a sample
    repeats: int = 3

    def measure(self, bench: Bench) -> dict[str, Rows]:
        engine = bench.engine
        prompts = self.prompts(engine)
        for method in self.light.values():  # libraries make their kernels, costs are measured
            self.times(engine, method, prompts, 2)
        samples: dict[tuple[int, str | None, str], dict[str, float]] = {}
        for repeat in bench.track(range(self.repeats), "light requests"):
            for heavy in (None, *self.heavy):
                for light, method in self.light.items():
                    make = partial(self.sample, engine, heavy, method, prompts)
                    samples[repeat, heavy, light] = bench.once([repeat, heavy, light], make)
        rows: Rows = []
        for heavy in self.heavy:
            for light in self.light:
                pairs = [(samples[r, heavy, light], samples[r, None, light]) for r in range(self.repeats)]
                row: dict[str, Any] = {"heavy": heavy, "light": light}
                for at in ("first", "whole"):
                    row[f"{at}_ms"] = median([mine[at] for mine, _ in pairs])
                    row[f"alone_{at}_ms"] = median([alone[at] for _, alone in pairs])
                    row[f"{at}_to_alone"] = median([mine[at] / alone[at] for mine, alone in pairs])
                rows.append(row)
        return {"fairness": rows}

    def sample(
        self, engine: Engine, heavy: str | None, method: dict[str, Any], prompts: Iterator[list[int]]
    ) -> dict[str, float]:
        """The times of light requests, alone or beside a heavy call."""
        if heavy is None:
            return self.times(engine, method, prompts, self.requests)
        with self.beside(engine, self.heavy[heavy], prompts):
            return self.times(engine, method, prompts, self.requests)

    def times(
        self, engine: Engine, method: dict[str, Any], prompts: Iterator[list[int]], requests: int
    ) -> dict[str, float]:
        """Median milliseconds of so many requests to their `first` and to their last tokens (`whole`)."""
        options: dict[str, Any] = {"method": method, "sampling": {"temperature": 0}, "ignore_eos": True}
        first, whole = [], []
        for prompt in islice(prompts, requests):
            began = perf_counter()
            events = engine.stream(prompt, max_new_tokens=self.tokens, **options)
            next(events)
            first.append(1000 * (perf_counter() - began))
            for _ in events:
                pass
            whole.append(1000 * (perf_counter() - began))
        return {name: float(median(each)["value"] or 0) for name, each in (("first", first), ("whole", whole))}

    @contextmanager
    def beside(self, engine: Engine, heavy: Heavy, prompts: Iterator[list[int]]) -> Iterator[None]:
        """A heavy call decodes meanwhile, again and again."""
        begun, over, failed = Event(), Event(), list[BaseException]()

        def decode() -> None:
            try:
                while not over.is_set():
                    request = {"prompt": next(prompts), "cancelled": over.is_set, "ignore_eos": True}
                    request |= {"method": heavy.method, "max_new_tokens": engine.target.context - self.prompt}
                    begun.set()
                    requests = [{**request, "seed": seed} for seed in range(heavy.texts)]
                    with closing(engine.as_completed(requests, heavy.texts)) as found:
                        for _ in found:
                            pass
            except BaseException as error:
                failed.append(error)

        thread = Thread(target=decode, daemon=True)
        thread.start()
        try:
            begun.wait()
            sleep(LEAD)
            yield
        finally:
            over.set()
            thread.join()
        if failed:
            raise DraftwoodError(f"the heavy call failed: {failed[0]}") from failed[0]

    def prompts(self, engine: Engine) -> Iterator[list[int]]:
        """Other ones each time, none of which is known."""
        for seed in count():
            for document in islice(mixed("held-out", seed=seed), 64):
                if len(tokens := engine.tokens(document.prompt)) >= self.prompt:
                    yield tokens[: self.prompt]
