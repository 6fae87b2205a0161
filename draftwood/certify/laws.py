"""Reference laws for results on tabular models: of whole outputs, of a round's tokens, or of layers of beams."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from draftwood.certify.distances import Sample, total_variation
from draftwood.certify.references import BeamLaw, Beams, Output, slow_width
from draftwood.core.records import Round
from draftwood.engine.results import GenerationResult
from draftwood.methods.beams import DynamicWidth

History: TypeAlias = tuple[tuple[int, Beams], ...]  # per layer: its width, its draws in order


@dataclass(frozen=True, slots=True)
class Opening:
    """The first rounds of a generation."""

    prompt_tokens: list[int]
    rounds: list[Round]

    @property
    def tokens(self) -> list[int]:
        return [token for round_ in self.rounds for token in round_.tokens]


Observed: TypeAlias = GenerationResult | Opening


class Reference(Protocol):
    """A law to compare results with."""

    def outcome(self, result: Any) -> Hashable:
        """The part of a result that the law is of."""

    def distance(self, law: Mapping[Any, float]) -> float:
        """Total variation between an enumerated law of outcomes and the reference."""

    def samples(self, outcomes: Iterable[Any]) -> list[list[Sample[Any]]]:
        """Counts with the laws that they should follow; those of one list are independent of each other."""


@dataclass(frozen=True, slots=True)
class WholeLaw:
    """One law of whole outcomes."""

    outcome: Callable[[Any], Hashable]
    law: Mapping[Any, float]

    def distance(self, law: Mapping[Any, float]) -> float:
        return total_variation(law, self.law)

    def samples(self, outcomes: Iterable[Any]) -> list[list[Sample[Any]]]:
        return [[Sample(self.law, Counter(outcomes))]]


class OpeningLaw(WholeLaw):
    """A law of whole outputs, for first tokens: a round is exact if plain decoding after it gives the law."""

    def distance(self, law: Mapping[Output, float]) -> float:
        grown: dict[Output, float] = {}
        for start, chance in law.items():
            below = {output: p for output, p in self.law.items() if output[: len(start)] == start} or {start: 1.0}
            total = math.fsum(below.values())
            for output, p in below.items():
                grown[output] = grown.get(output, 0.0) + chance * p / total
        return total_variation(grown, self.law)


@dataclass(frozen=True, slots=True)
class LayerLaws:
    """Beams: given all layers before and its own width, a layer is so many draws of beam sampling (DSBD Theorem 3.1).

    `rules` judges what follows no law, such as widths; `faults` collects what it says.
    """

    law: BeamLaw
    replacement: bool
    rules: Callable[[Round], str] = lambda round_: ""
    faults: set[str] = field(default_factory=set)

    def outcome(self, result: Observed) -> History:
        if len(result.rounds) == 1 and (fault := self.rules(result.rounds[0])):
            self.faults.add(fault)
        return layers_of(result)

    def given(self, history: History, width: int) -> dict[Beams, float]:
        before = history[-1][1] if history else ((),)
        return self.law.draws(before, width, self.replacement)

    def distance(self, law: Mapping[Any, float]) -> float:
        """The largest, over layers, of the mean distance given what came before."""
        laws: dict[tuple[History, int], dict[Beams, float]] = {}
        for history, chance in law.items():
            for i, (width, beams) in enumerate(history):
                of = laws.setdefault((history[:i], width), {})
                of[beams] = of.get(beams, 0.0) + chance
        means: dict[int, float] = {}
        for (history, width), of in laws.items():
            total = math.fsum(of.values())
            off = total_variation({x: p / total for x, p in of.items()}, self.given(history, width))
            means[len(history)] = means.get(len(history), 0.0) + total * off
        return max(means.values())

    def samples(self, outcomes: Iterable[Any]) -> list[list[Sample[Any]]]:
        samples: dict[int, dict[tuple[History, int], Sample[Any]]] = {}
        for history in outcomes:
            for i, (width, beams) in enumerate(history):
                layer = samples.setdefault(i, {})
                key = history[:i], width
                if key not in layer:
                    layer[key] = Sample(self.given(*key))
                layer[key].counts[beams] += 1
        return [list(layer.values()) for _, layer in sorted(samples.items())]


@dataclass(frozen=True, slots=True)
class BeamRules:
    """The rules of DSBD's first round that no law shows: each layer's width (Eq. 2-7), the beam that one-cache keeps.

    `draft` is the law of the draft model's beams.
    """

    method: DynamicWidth
    target: BeamLaw
    draft: BeamLaw

    def __call__(self, round_: Round) -> str:
        """A sentence about what is wrong in a round; empty where nothing is."""
        method = self.method
        min_width = method.width or method.min_width
        last = 0
        alive: list[Output] = [()]  # of the layer before
        drafted: list[Output] = [()]
        for number, layer in enumerate(round_.layers, 1):
            beams = [_output(round_, *beam) for beam in layer.distinct]
            chances = layer.chance, layer.least
            wide, wanted = method.width or max(last, min_width), chances
            p = self.target.layer(tuple(alive))
            if layer.judged:
                parents = frozenset(drafted)
                q = {x: v for x, v in self.draft.layer(tuple(drafted)).items() if _above(x, parents) in alive}
                total = math.fsum(q.values())
                q = {x: v / total for x, v in q.items()}
                drafted = [_output(round_, *one.outcome) for one in layer.judged]
                surviving = [x for x in drafted if _above(x, parents) in alive]
                draws = len(surviving if method.replacement else drafted)
                wide, counts = slow_width(p, q, draws, method.threshold, method.min_width)
                wide = method.width or wide
                wanted = math.fsum(counts[wide:]), math.fsum(counts[min_width:])
            if not method.replacement:
                wide = min(wide, len(p))
            if (layer.width, len(layer.beams)) != (wide, wide):
                return f"layer {number} has {len(layer.beams)} beams of width {layer.width} where it should be {wide}"
            if any(abs(a - b) > 1e-9 for a, b in zip(chances, wanted, strict=True)):
                return f"layer {number} is predicted with {chances[0]:.6f}, not {wanted[0]:.6f}"
            last, alive, drafted = layer.width, beams, list(dict.fromkeys(drafted))
        if method.one_cache:
            roots = [_output(round_, *root) for root in zip(round_.root_parents, round_.roots, strict=True)]
            best = min(alive, key=lambda beam: -self.target.score(beam) / len(beam))
            if roots != [best]:
                return "one-cache mode keeps another beam than that of lowest perplexity"
        return ""


def _above(output: Output, parents: Collection[Output]) -> Output:
    """The beam that an outcome continues: itself where it is over and stays."""
    return output if output in parents else output[:-1]


def _output(round_: Round, node: int, token: int) -> Output:
    """The tokens of a first round's node and the one after it; node 0 is the end of the prompt."""
    return tuple(round_.path(node, token)[1:])


def layers_of(result: Observed) -> History:
    """Every layer of beams that a result went through, as generated tokens."""
    trunk = list(result.prompt_tokens[:-1])
    start = len(result.prompt_tokens)
    layers: list[tuple[int, Beams]] = []
    for round_ in result.rounds:
        for layer in round_.layers:
            beams = (tuple([*trunk, *round_.path(*beam)][start:]) for beam in layer.beams)
            layers.append((layer.width, tuple(beams)))
        trunk += [round_.forest_token[node] for node in round_.forest_path]
    return tuple(layers)


def set_of_beams(result: GenerationResult) -> Beams:
    """All hypotheses, sorted."""
    return tuple(sorted(tuple(beam.tokens) for beam in result.beams))


def output_of(result: Observed) -> Output:
    """The generated tokens."""
    return tuple(result.tokens)


def best_beam(law: BeamLaw, sets: Mapping[Beams, float], length_penalty: float) -> dict[Output, float]:
    """The law of the first hypothesis of sets of beams."""
    best: dict[Output, float] = {}
    for beams, chance in sets.items():
        first = max(beams, key=lambda beam: law.score(beam) / len(beam) ** length_penalty)
        best[first] = best.get(first, 0.0) + chance
    return best
