"""Methods on tasks, and lookup beside fixed n-grams and arctic-inference's suffix trees on the very same text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from typing import Any

from benchmarks.bench import Bench
from benchmarks.experiment import Rows
from benchmarks.kinds.methods import ALL, Methods
from draftwood.eval.intervals import ratio
from draftwood.eval.tasks import Instance, parse


class Drafters(Methods):
    """Lookup's text does not depend on what is drafted, so the rounds of another lookup follow from the text alone."""

    lookup: dict[str, Any]
    temperatures: tuple[float, ...] = (0.0, 1.0)

    def measure(self, bench: Bench) -> dict[str, Rows]:
        """The tables of `Methods` and `lookups`: tokens per round of each, and ratios on the same texts.

        Those of arctic-inference only where it is installed.
        """
        found = super().measure(bench)
        rows: Rows = []
        for temperature in self.temperatures:
            counts = {task: self._counts(bench, task, temperature) for task in self.tasks}
            counts[ALL] = [one for each in counts.values() for one in each]
            for task, each in counts.items():
                tokens, suffix, fixed, *trees = ([one[i] for one in each] for i in range(len(each[0])))
                row = {"temperature": temperature, "task": task, "ratio": ratio(fixed, suffix)}
                row |= {"suffix": ratio(tokens, suffix), "fixed": ratio(tokens, fixed)}
                for other in trees:
                    row |= {"trees": ratio(tokens, other), "over_trees": ratio(other, suffix)}
                rows.append(row)
        return {**found, "lookups": rows}

    def _counts(self, bench: Bench, task: str, temperature: float) -> list[list[int]]:
        """(tokens, rounds of lookup, of fixed n-grams, of suffix trees where they are installed) of each answer."""
        asked = parse(task, {"max_new_tokens": min(self.tokens, parse(task).usual_tokens)})

        def count(item: Instance) -> list[int]:
            prompt, sampling = bench.engine.tokens(item.prompt()), {"temperature": temperature}
            result = bench.engine.generate(prompt, self.lookup, sampling, item.max_new_tokens)
            counts = [len(result.tokens), result.metrics.rounds, ngram_rounds(prompt, result.tokens)]
            return [*counts, tree_rounds(prompt, result.tokens)] if find_spec("arctic_inference") else counts

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


def tree_rounds(prompt: Sequence[int], answer: Sequence[int], gamma: int = 32, depth: int = 64) -> int:
    """The same by suffix trees of prompt and answer (Oliaro et al. 2024), as arctic-inference drafts from them."""
    trees = import_module("arctic_inference.suffix_decoding").SuffixDecodingCache(depth, max_cached_requests=0)
    trees.start_request(0, list(prompt))
    at = rounds = 0
    while at < len(answer):
        drafted = trees.speculate(0, [*prompt, *answer[:at]][-depth:], max_spec_tokens=gamma).token_ids
        right = (a == b for a, b in zip(drafted, answer[at:], strict=False))
        step = list(answer[at : at + 1 + sum(takewhile(bool, right))])
        trees.add_active_response(0, step)
        at, rounds = at + len(step), rounds + 1
    return rounds
