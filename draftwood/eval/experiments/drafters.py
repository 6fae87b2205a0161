"""Methods on tasks, and lookup beside prompt lookup of fixed n-grams on the very same text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from draftwood.eval.experiments.bench import Bench
from draftwood.eval.experiments.experiment import Rows
from draftwood.eval.experiments.methods import ALL, Methods
from draftwood.eval.intervals import ratio
from draftwood.eval.tasks import Instance, parse


class Drafters(Methods):
    """Lookup's text does not depend on what is drafted, so the rounds of another lookup follow from the text alone."""

    lookup: dict[str, Any]
    temperatures: tuple[float, ...] = (0.0, 1.0)

    def measure(self, bench: Bench) -> dict[str, Rows]:
        """The tables of `Methods` and `lookups`: tokens per round of both, and the ratio on the same texts."""
        found = super().measure(bench)
        rows: Rows = []
        for temperature in self.temperatures:
            counts = {task: self._counts(bench, task, temperature) for task in self.tasks}
            counts[ALL] = [one for each in counts.values() for one in each]
            for task, each in counts.items():
                tokens, suffix, fixed = ([one[i] for one in each] for i in range(3))
                row = {"temperature": temperature, "task": task, "ratio": ratio(fixed, suffix)}
                rows.append({**row, "suffix": ratio(tokens, suffix), "fixed": ratio(tokens, fixed)})
        return {**found, "lookups": rows}

    def _counts(self, bench: Bench, task: str, temperature: float) -> list[list[int]]:
        """(tokens, rounds of lookup, rounds of fixed n-grams) of each item's answer."""
        asked = parse(task, {"max_new_tokens": min(self.tokens, parse(task).usual_tokens)})

        def count(item: Instance) -> list[int]:
            prompt, sampling = bench.engine.tokens(item.prompt()), {"temperature": temperature}
            result = bench.engine.generate(prompt, self.lookup, sampling, item.max_new_tokens)
            return [len(result.tokens), result.metrics.rounds, ngram_rounds(prompt, result.tokens)]

        return [
            bench.once(["lookup", temperature, task, item.hash], partial(count, item))
            for item in bench.track(asked.instances(self.limit), f"lookups: {task}")
        ]


def ngram_rounds(
    prompt: Sequence[int], answer: Sequence[int], gamma: int = 6, longest: int = 4, shortest: int = 2
) -> int:
    """Rounds that an answer takes by prompt lookup (Saxena 2023): what followed the latest equal n-gram is drafted.

    The longest n-gram that was there before counts, of `longest` to `shortest` tokens; up to `gamma` are drafted.
    """
    text = [*prompt, *answer]
    after: dict[tuple[int, ...], int] = {}  # n-gram -> place behind it
    at, indexed, rounds = len(prompt), 0, 0
    while at < len(text):
        for end in range(indexed + 1, at):
            for n in range(shortest, min(longest, end) + 1):
                after[tuple(text[end - n : end])] = end
        indexed = at - 1
        matches = (after.get(tuple(text[at - n : at])) for n in range(min(longest, at), shortest - 1, -1))
        place = next((place for place in matches if place is not None), None)
        accepted = 0
        while place is not None and accepted < gamma and text[place + accepted] == text[at + accepted]:
            accepted += 1
            if at + accepted == len(text):
                break
        at, rounds = at + accepted + 1, rounds + 1
    return rounds
