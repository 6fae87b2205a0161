"""A method on tabular models, whose every distribution is known: by enumeration, by seed and by samples.

The engine runs as it is, with the method's own drafter and rule. Knows how to make a method small enough and what its
reference is; refuses to know how laws are enumerated and judged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch

from draftwood.certify.distances import Sample, total_variation
from draftwood.certify.references import BeamLaw, Beams, exact_law
from draftwood.core.forest import FINISHED, TRUNK
from draftwood.depth import parse_depth
from draftwood.engine import Engine
from draftwood.methods import Method
from draftwood.methods.beams import BeamMethod, BeamSamplingMethod
from draftwood.methods.self_speculative import SelfSpeculative
from draftwood.models.base import CausalModel
from draftwood.models.heads import Heads
from draftwood.models.tabular import TabularModel
from draftwood.results import GenerationResult
from draftwood.sampling import SamplingParams

END = frozenset({0})
VARYING = 0.3  # a threshold at which dynamic widths are of several sizes
COST = 0.1  # of a draft in target forwards, where a depth controller would measure it: clocks cannot be replayed

WARPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "top-k": {"temperature": 1.4, "top_k": 3},
    "top-2": {"temperature": 1.2, "top_k": 2},
    "top-p": {"temperature": 0.8, "top_p": 0.85},
    "penalties": {
        "repetition_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.5,
        "logit_bias": {1: 0.5},
    },
}

History: TypeAlias = tuple[tuple[int, Beams], ...]  # per layer: its width, its draws in order


class Reference(Protocol):
    """What a result is judged by."""

    def outcome(self, result: GenerationResult) -> Hashable:
        """What matters of a result."""

    def distance(self, law: Mapping[Any, float]) -> float:
        """Total variation between an enumerated law of outcomes and the reference."""

    def samples(self, outcomes: Iterable[Any]) -> list[list[Sample[Any]]]:
        """Counts beside the laws that they should follow; those of one list are independent of each other."""


@dataclass(frozen=True, slots=True)
class WholeLaw:
    """One law of whole outcomes."""

    outcome: Callable[[GenerationResult], Hashable]
    law: Mapping[Any, float]

    def distance(self, law: Mapping[Any, float]) -> float:
        return total_variation(law, self.law)

    def samples(self, outcomes: Iterable[Any]) -> list[list[Sample[Any]]]:
        return [[Sample(self.law, Counter(outcomes))]]


@dataclass(frozen=True, slots=True)
class LayerLaws:
    """Beams of dynamic width: given all layers before and its own width, a layer is so many draws of beam sampling.

    That is what DSBD's Theorem 3.1 says; the widths themselves have no reference.
    """

    law: BeamLaw
    replacement: bool

    def outcome(self, result: GenerationResult) -> History:
        return layers_of(result)

    def given(self, history: History, width: int) -> dict[Beams, float]:
        before = history[-1][1] if history else ((),)
        return self.law.draws(before, width, self.replacement)

    def distance(self, law: Mapping[Any, float]) -> float:
        """The largest, over layers, of the mean distance given what came before."""
        found: dict[tuple[History, int], dict[Beams, float]] = {}
        for history, chance in law.items():
            for i, (width, beams) in enumerate(history):
                of = found.setdefault((history[:i], width), {})
                of[beams] = of.get(beams, 0.0) + chance
        means: dict[int, float] = {}
        for (history, width), of in found.items():
            total = math.fsum(of.values())
            off = total_variation({x: p / total for x, p in of.items()}, self.given(history, width))
            means[len(history)] = means.get(len(history), 0.0) + total * off
        return max(means.values())

    def samples(self, outcomes: Iterable[Any]) -> list[list[Sample[Any]]]:
        found: dict[int, dict[tuple[History, int], Sample[Any]]] = {}
        for history in outcomes:
            for i, (width, beams) in enumerate(history):
                layer = found.setdefault(i, {})
                key = history[:i], width
                if key not in layer:
                    layer[key] = Sample(self.given(*key))
                layer[key].counts[beams] += 1
        return [list(layer.values()) for _, layer in sorted(found.items())]


def layers_of(result: GenerationResult) -> History:
    """Every layer of beams that a result went through, as generated tokens."""
    trunk = list(result.prompt_tokens[:-1])
    start = len(result.prompt_tokens)
    found: list[tuple[int, Beams]] = []
    for round_ in result.rounds:
        for layer in round_.layers:
            beams = []
            for node, token in layer.beams:
                path = [] if token == FINISHED else [token]
                while node != TRUNK:
                    path.append(round_.forest_token[node])
                    node = round_.forest_parent[node]
                beams.append(tuple([*trunk, *reversed(path)][start:]))
            found.append((layer.width, tuple(beams)))
        trunk += [round_.forest_token[node] for node in round_.forest_path]
    return tuple(found)


def set_of_beams(result: GenerationResult) -> Beams:
    """All hypotheses, sorted."""
    return tuple(sorted(tuple(beam.tokens) for beam in result.beams))


def output_of(result: GenerationResult) -> tuple[int, ...]:
    """The generated tokens."""
    return tuple(result.tokens)


def best_beam(law: BeamLaw, sets: Mapping[Beams, float], length_penalty: float) -> dict[tuple[int, ...], float]:
    """The law of the first hypothesis of sets of beams."""
    best: dict[tuple[int, ...], float] = {}
    for beams, chance in sets.items():
        first = max(beams, key=lambda beam: law.score(beam) / len(beam) ** length_penalty)
        best[first] = best.get(first, 0.0) + chance
    return best


class _Exit(TabularModel):
    """In the place of parts that a method makes or loads for its target: an unrelated model, read after one layer."""

    layers = 1

    def __init__(self, model: TabularModel, target: TabularModel) -> None:
        super().__init__(model.law, model.vocab_size, n_layers=model.n_layers)


class _Part(TabularModel):
    """In the place of the target without some sublayers: an unrelated model that reads the target's cache."""

    def __init__(self, model: TabularModel, target: TabularModel) -> None:
        super().__init__(model.law, model.vocab_size, n_layers=model.n_layers)
        self.whole = target


@dataclass(slots=True)
class Case:
    """A method on random tabular models with an end token: its engine, one request and the reference for it."""

    method: Method
    vocab: int
    tokens: int
    warp: str = "plain"
    seed: int = 0
    drafts: int | None = None
    order: int | None = None  # tokens that a distribution depends on; None: all
    target: TabularModel = field(init=False)
    models: list[TabularModel] = field(init=False)
    engine: Engine = field(init=False)
    prompt: list[int] = field(init=False)
    params: SamplingParams = field(init=False)

    def __post_init__(self) -> None:
        count = self.method.drafts_needed[0] if self.drafts is None else self.drafts
        self.target = self._random(0)
        self.models = [self._random(1 + i) for i in range(count)]
        self.engine = self._engine()
        self.prompt = [1, 0, 1]  # a repetition, so that n-grams are found; the end token has no meaning in a prompt
        self.params = SamplingParams(**WARPS[self.warp])

    def _random(self, number: int) -> TabularModel:
        """A model of two layers, so that drafts may come from the first."""
        return TabularModel.random(self.vocab, 1000 * self.seed + number, self.order, n_layers=2)

    def _engine(self) -> Engine:
        """An engine of its own: nothing that was learned in other runs. What drafts from the target has a stand-in."""
        engine = Engine(self.target, self.models, end_tokens=END)
        method = self.method
        if method.drafts_needed[0] == 0 and type(method).models is not Method.models:
            engine.draft_with(method, [self._stand_in()])
        return engine

    def _stand_in(self) -> CausalModel:
        """Heads, an exit, or a part of the target."""
        if "heads" in type(self.method).model_fields:
            return self._heads()
        return (_Part if isinstance(self.method, SelfSpeculative) else _Exit)(self._random(9), self.target)

    def _heads(self) -> Heads:
        """Two heads of random weights, which read a table's row of logits for a hidden state."""
        heads = Heads(self.vocab, self.vocab, 2, "").double().requires_grad_(False)
        generator = torch.Generator().manual_seed(1000 * self.seed + 9)
        for weights in heads.parameters():
            weights.normal_(std=0.5, generator=generator)
        return heads

    @property
    def reference(self) -> Reference:
        """Plain decoding; of beams beam sampling; for a dynamic width each layer given those before."""
        method = self.method
        if not isinstance(method, BeamSamplingMethod):
            return WholeLaw(output_of, exact_law(self.target, self.prompt, self.params, self.tokens, END))
        law = BeamLaw(self.target, self.prompt, self.params, END, method.warp)
        width = getattr(method, "width", None)
        if method.lossless and width is None:
            return LayerLaws(law, method.replacement)
        sets = law.law(width or method.widest, method.replacement, self.tokens)
        if method.lossless:
            return WholeLaw(set_of_beams, sets)
        return WholeLaw(output_of, best_beam(law, sets, method.length_penalty))

    def run(self, method: Method | None = None, seed: int = 0) -> GenerationResult:
        """One generation."""
        return self._engine().generate(self.prompt, method or self.method, self.params, self.tokens, seed)

    def runs(self, seeds: Sequence[int], concurrency: int) -> list[GenerationResult]:
        """A generation per seed, several at a time."""
        requests = [{"prompt": self.prompt, "seed": seed} for seed in seeds]
        return self.engine.batch(
            requests, concurrency, method=self.method, sampling=self.params, max_new_tokens=self.tokens
        )


def shrunk(method: Method, beams_only: bool = False) -> Method:
    """The same rule with few drafts, so that all of its choices can be enumerated; all beams are returned.

    With `beams_only` just the number of beams becomes small, so that the law of their sets can be written down.
    """
    values = method.as_dict()
    beams = isinstance(method, BeamMethod)
    if not beams_only:
        if "gamma" in values:
            values["gamma"] = min(values["gamma"], 2)
        for name in ("tree", "expansion"):
            if values.get(name):
                values[name] = [min(wide, most) for wide, most in zip(values[name], (2, 2), strict=False)]
        if "heads" in values:
            values |= {"tree": [2, 1], "paths": None}
        if "min_ngram" in values:
            values["min_ngram"] = 1
        if values.get("initial", 1) > 1:
            values |= {"initial": 2, "tree": [1]}
    if values.get("depth"):
        values["depth"] = _repeatable(values["depth"])
    if values.get("width") and (beams or not beams_only):
        values["width"] = min(values["width"], 2)
    if beams:
        if "min_width" in values:
            values["min_width"] = min(values["min_width"], 2)
        if values.get("draft_width"):
            least = values.get("width") or values.get("min_width") or 2
            most = (4 if values.get("width") else 3) if beams_only else 2
            values["draft_width"] = max(min(values["draft_width"], most), least)
        values["n_best"] = 1
        values["n_best"] = Method.parse(values).widest  # type: ignore[attr-defined]
    return Method.parse(values)


def variants(method: Method) -> list[Method]:
    """`shrunk` in the forms that have different things to get wrong, and few enough choices.

    Several rounds of one beam, and one of two; a dynamic width also with a threshold at which widths vary.
    """
    small = shrunk(method)
    values = small.as_dict()
    if not isinstance(method, BeamSamplingMethod) or "draft_width" not in values:
        return [small]
    if values["width"] is None:
        return [small] if values["threshold"] <= VARYING else [small, _changed(values, threshold=VARYING)]
    wide = _changed(values, gamma=1)
    return [_changed(values, width=1, draft_width=2, n_best=1), *([wide] if values["width"] > 1 else [])]


def _changed(values: Mapping[str, Any], **changes: Any) -> Method:
    return Method.parse({**values, **changes})


def _repeatable(depth: str) -> str:
    """The depth controller without a clock, and without a model trained for one draft."""
    try:
        settings = parse_depth(depth)
    except ValueError:
        return "fixed"
    if "cost" in type(settings).model_fields:
        given = settings.model_dump(exclude_defaults=True)
        rest = ",".join(f"{key}={value}" for key, value in {"cost": COST, **given}.items())
        return f"{settings.name}:{rest}"
    if any(isinstance(value, str) for value in settings.model_dump().values()):
        return "fixed"  # a file of learned weights
    return depth
