"""Methods that take turns on one prompt: which they are, their timed runs, and the plain runs they must agree with.

Knows fairness. Refuses to know terminals and how a run is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from draftwood.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from draftwood.methods import Method
    from draftwood.results import GenerationResult

BASELINE = "autoregressive"


@dataclass(slots=True)
class Entry:
    """A method and its timed runs; runs of one method and seed give the same tokens, only times differ."""

    method: Method
    runs: list[GenerationResult] = field(default_factory=list)
    reference: GenerationResult | None = None  # plain decoding that must give the same text, if there is one

    @property
    def first(self) -> GenerationResult:
        return self.runs[0]

    @property
    def rate(self) -> float:
        """Median tokens per second."""
        return self.over(lambda run: run.metrics.tokens_per_second)

    def over(self, value: Callable[[GenerationResult], float]) -> float:
        """Median of a value over the runs."""
        return median(value(run) for run in self.runs)

    @property
    def split(self) -> dict[str, float]:
        """Median shares of draft, verify, sampling and other time."""
        splits = [run.metrics.time_shares for run in self.runs]
        return {name: median(split[name] for split in splits) for name in splits[0]}

    @property
    def same_text(self) -> bool | None:
        """Whether the text is that of plain decoding; None where it need not be."""
        return None if self.reference is None else self.first.tokens == self.reference.tokens


def parse_methods(names: str, settings: Iterable[str]) -> list[Method]:
    """The methods of --methods and --set, plain decoding first and each of them once."""
    from draftwood import config
    from draftwood.methods import METHODS, Method

    general = config.assignments(settings)
    found = [_split(part.strip()) for part in re.split(r",(?=\s*[A-Za-z])", names)]
    if all(method.name != BASELINE for method, _ in found):
        found.insert(0, (Method.parse(BASELINE), {}))
    chosen = []
    for method, inline in found:
        own = {key: value for key, value in general.items() if key in METHODS[method.name].model_fields}
        prefix = method.name + "."
        named = {key.removeprefix(prefix): value for key, value in general.items() if key.startswith(prefix)}
        chosen.append(Method.parse(method, {**own, **inline, **named}))  # the more specific wins
    _refuse_unused(general, chosen)
    chosen.sort(key=lambda method: method.name != BASELINE)  # stable: the others stay in order
    return [method for i, method in enumerate(chosen) if method not in chosen[:i]]


def _split(entry: str) -> tuple[Method, dict[str, Any]]:
    """'name:key=value;key=value' or 'file:PATH': the method, and the options that were given here."""
    from draftwood import config
    from draftwood.methods import Method

    if entry.startswith("file:"):
        return Method.parse(entry), {}
    name, _, options = entry.partition(":")
    inline = config.assignments(option for option in options.split(";") if option.strip())
    return Method.parse(name, inline), inline


def _refuse_unused(values: Iterable[str], methods: Sequence[Method]) -> None:
    """A setting that no method takes is a mistake."""
    options = {name for method in methods for name in type(method).model_fields}
    names = {method.name for method in methods}
    for key in values:
        name, dot, _ = key.partition(".")
        if dot and name not in names:
            raise ConfigurationError(f"--set {key}: {name!r} is not among the methods" + did_you_mean(name, names))
        if not dot and key not in options:
            raise ConfigurationError(f"--set {key}: none of the methods has this option" + did_you_mean(key, options))


def interleave(
    entries: Sequence[Entry],
    decode: Callable[[Method], GenerationResult],
    repeat: int,
    warmup: int,
    advance: Callable[[str], None],
) -> None:
    """Run every method `warmup` times and then `repeat` times, all of them once before any of them again."""
    for turn in range(warmup + repeat):
        for entry in entries:
            advance(entry.method.name)
            result = decode(entry.method)
            if turn >= warmup:
                entry.runs.append(result)


def set_references(entries: Sequence[Entry], decode: Callable[[Method], GenerationResult] | None, greedy: bool) -> None:
    """Give each method the run without drafts whose text it must repeat.

    Greedy decoding and beam search have one text. With sampling, rejection draws other numbers than plain decoding
    does, so only coupled methods have one. The run without drafts is done here if need be and `decode` is there.
    """
    runs = {entry.method: entry.first for entry in entries}
    for entry in entries:
        reference = entry.method.reference(greedy)
        if reference is not None and reference not in runs and decode is not None:
            runs[reference] = decode(reference)
        entry.reference = None if reference is None else runs.get(reference)
