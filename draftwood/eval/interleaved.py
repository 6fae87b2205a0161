"""Interleaved runs of several methods on one prompt, against plain decoding: which they are, and what came of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.sampling.params import SamplingParams

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine
    from draftwood.engine.request import Prompt
    from draftwood.engine.results import GenerationResult
    from draftwood.methods import Method

BASELINE = "autoregressive"


@dataclass(slots=True)
class Entry:
    """A method and its timed runs; runs of one method and seed give the same tokens, only times differ."""

    method: Method
    runs: list[GenerationResult] = field(default_factory=list)
    reference: GenerationResult | None = None  # plain decoding that must give the same text, if there is one
    bound: dict[str, float] | None = (
        None  # how often independent drafts were accepted, and could be: `Explanation.bound`
    )

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
        """True where the text is that of plain decoding; None where it need not be."""
        return None if self.reference is None else self.first.tokens == self.reference.tokens

    def as_dict(self, baseline: float) -> dict[str, Any]:
        """Plain data, ready for JSON; `baseline` is plain decoding's tokens per second."""
        first, metrics = self.first, self.first.metrics
        return {
            "method": first.method,
            "lossless": first.lossless,
            "tokens_per_second": self.rate,
            "speedup": self.rate / baseline if baseline else None,
            "tau": metrics.tau,
            "acceptance_rate": metrics.acceptance_rate if metrics.drafted else None,
            "draft_cost_ratio": self.over(lambda run: run.metrics.draft_cost_ratio) or None,
            "time_split": self.split,
            "acceptance_bound": self.bound,
            "same_text": self.same_text,
            "finish_reason": first.finish_reason,
            "text": first.text,
            "tokens": first.tokens,
            "runs": [run.metrics.as_dict() for run in self.runs],
        }


@dataclass(slots=True)
class Comparison:
    """Methods on one prompt, plain decoding first; an interrupted one has those that ran."""

    entries: list[Entry]
    warmup: int
    interrupted: bool = False

    @property
    def baseline(self) -> Entry:
        return self.entries[0]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        first = self.baseline.first
        return {
            "prompt_tokens": first.prompt_tokens,
            "sampling": first.sampling,
            "seed": first.seed,
            "repeat": len(self.baseline.runs),
            "warmup": self.warmup,
            "text": first.text,
            "methods": [entry.as_dict(self.baseline.rate) for entry in self.entries],
        }


def compare(
    engine: Engine,
    prompt: Prompt,
    methods: Sequence[Method] | str,
    sampling: SamplingParams | None = None,
    repeat: int = 3,
    warmup: int = 1,
    advance: Callable[[str], None] = lambda name: None,
    bounds: bool = False,
    **options: Any,
) -> Comparison:
    """Decode a prompt `repeat` times with each method, interleaved: a slow moment of the machine hits all alike.

    `methods` are objects or, as on the command line, 'lookup,mcsd:tree=4,2,2,1'; plain decoding is added to these.
    With `bounds` each runs once more, untimed, for what any rule could accept. `options` are those of
    `Engine.generate`. Ctrl-C keeps what ran. Raises ConfigurationError before anything runs.
    """
    params = sampling or SamplingParams(temperature=0.0)
    chosen = parse_methods(methods, ()) if isinstance(methods, str) else methods
    for method in chosen:
        engine.method(method).check(params)
    comparison = Comparison([Entry(method) for method in chosen], warmup)

    def decode(method: Method) -> GenerationResult:
        with engine.scheduler.prefixes.off():
            return engine.generate(prompt, method, params, **options)

    try:
        interleave(comparison.entries, decode, repeat, warmup, advance)
        set_references(comparison.entries, decode, params.greedy)
        for entry in comparison.entries if bounds and not params.greedy else ():
            entry.bound = engine.explain(prompt, method=entry.method, sampling=params, **options).bound
    except KeyboardInterrupt:
        comparison.interrupted = True
        comparison.entries = [entry for entry in comparison.entries if entry.runs]
        if not comparison.entries:
            raise
        set_references(comparison.entries, None, params.greedy)
    return comparison


def parse_methods(names: str, settings: Iterable[str]) -> list[Method]:
    """The methods of --methods and --set, plain decoding first and each of them once."""
    from draftwood.methods import METHODS, Method
    from draftwood.util import config

    general = config.assignments(settings)
    parsed = [_split(part.strip()) for part in re.split(r",(?=\s*[A-Za-z])", names)]
    if all(method.name != BASELINE for method, _ in parsed):
        parsed.insert(0, (Method.parse(BASELINE), {}))
    chosen = []
    for method, inline in parsed:
        own = {key: value for key, value in general.items() if key in METHODS[method.name].model_fields}
        prefix = method.name + "."
        named = {key.removeprefix(prefix): value for key, value in general.items() if key.startswith(prefix)}
        chosen.append(Method.parse(method, {**own, **inline, **named}))  # the more specific wins
    _check_used(general, chosen)
    chosen.sort(key=lambda method: method.name != BASELINE)  # stable: the others stay in order
    return [method for i, method in enumerate(chosen) if method not in chosen[:i]]


def _split(entry: str) -> tuple[Method, dict[str, Any]]:
    """'name:key=value;key=value' or 'file:PATH': the method, and the options that were given here."""
    from draftwood.methods import Method
    from draftwood.util import config

    if entry.startswith("file:"):
        return Method.parse(entry), {}
    name, _, options = entry.partition(":")
    inline = config.assignments(option for option in options.split(";") if option.strip())
    return Method.parse(name, inline), inline


def _check_used(values: Iterable[str], methods: Sequence[Method]) -> None:
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
