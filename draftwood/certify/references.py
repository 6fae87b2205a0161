"""What outputs should look like: the exact laws of plain decoding and of beam sampling on tabular models.

Written down from the definitions with plain loops and numbers. Refuses to share code with what it judges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from draftwood.models.tabular import TabularModel
from draftwood.sampling import SamplingParams

Output: TypeAlias = tuple[int, ...]  # generated tokens
Beams: TypeAlias = tuple[Output, ...]  # a set of hypotheses, sorted


def slow_warp(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """T∘softmax, written out: temperature, top-k, top-p on the renormalised rest, min-p, renormalise; ties are kept."""
    if params.temperature == 0:
        best = max(range(len(logits)), key=lambda i: (logits[i], -i))
        return [float(i == best) for i in range(len(logits))]
    top = max(logits)
    weights = [math.exp((x - top) / params.temperature) for x in logits]
    whole = math.fsum(weights)
    probs = [w / whole for w in weights]
    alive = set(range(len(probs)))
    if 0 < params.top_k < len(probs):
        least = sorted(probs, reverse=True)[params.top_k - 1]
        alive = {i for i in alive if probs[i] >= least}
    if params.top_p < 1:
        # the mass that top-p is a fraction of: the k best, whatever their ties add
        ranked = sorted((probs[i] for i in alive), reverse=True)[: params.top_k or None]
        mass, reached = params.top_p * math.fsum(ranked), 0.0
        for least in ranked:
            reached += least
            if reached >= mass:
                break
        alive = {i for i in alive if probs[i] >= least}
    if params.min_p > 0:
        floor = params.min_p * max(probs)
        alive = {i for i in alive if probs[i] >= floor}
    total = math.fsum(probs[i] for i in alive)
    return [probs[i] / total if i in alive else 0.0 for i in range(len(probs))]


def slow_penalties(
    logits: Sequence[float], prompt: Sequence[int], output: Sequence[int], params: SamplingParams
) -> list[float]:
    """Penalties and bias for one path, counted from scratch."""
    edited = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        times = list(output).count(token)
        logit -= params.frequency_penalty * times + params.presence_penalty * (times > 0)
        edited.append(logit + params.logit_bias.get(token, 0.0))
    return edited


def raw_logits(model: TabularModel, prefix: Sequence[int]) -> list[float]:
    """Log-weights [V] of a tabular model after a prefix."""
    return [math.log(w) if w > 0 else -math.inf for w in model.law(tuple(prefix))]


def step_law(model: TabularModel, prompt: Sequence[int], output: Sequence[int], params: SamplingParams) -> list[float]:
    """Next-token probabilities [V] of plain decoding."""
    logits = raw_logits(model, (*prompt, *output))
    return slow_warp(slow_penalties(logits, prompt, output, params), params)


def exact_law(
    model: TabularModel,
    prompt: Sequence[int],
    params: SamplingParams,
    max_new_tokens: int,
    end: Iterable[int] = (),
) -> dict[Output, float]:
    """Every possible output of plain decoding and its probability."""
    ends = frozenset(end)
    law: dict[Output, float] = {}
    todo: list[tuple[Output, float]] = [((), 1.0)]
    while todo:
        output, chance = todo.pop()
        if len(output) == max_new_tokens or (output and output[-1] in ends):
            law[output] = chance
            continue
        for token, p in enumerate(step_law(model, prompt, output, params)):
            if p > 0:
                todo.append(((*output, token), chance * p))
    return law


def log_softmax(logits: Sequence[float]) -> list[float]:
    """Log-probabilities of logits."""
    top = max(logits)
    norm = top + math.log(math.fsum(math.exp(x - top) for x in logits))
    return [x - norm for x in logits]


class BeamLaw:
    """Beam sampling (DSBD Eq. 1, spec §1) of one prompt on a tabular model, every number from its definition."""

    def __init__(
        self,
        model: TabularModel,
        prompt: Sequence[int],
        params: SamplingParams,
        end: frozenset[int] = frozenset(),
        warp: str = "joint",
    ) -> None:
        self.model, self.prompt, self.params, self.end, self.warp = model, tuple(prompt), params, end, warp
        self._score: dict[Output, float] = {(): 0.0}
        self._logits: dict[Output, list[float]] = {}

    def logits(self, output: Output) -> list[float]:
        """After penalties."""
        if output not in self._logits:
            raw = raw_logits(self.model, (*self.prompt, *output))
            self._logits[output] = slow_penalties(raw, self.prompt, output, self.params)
        return self._logits[output]

    def score(self, output: Output) -> float:
        """Joint log-likelihood of a hypothesis: under the edited softmax, or under the warped one where tokens are."""
        if output not in self._score:
            before, token = output[:-1], output[-1]
            if self.warp == "joint":
                gain = log_softmax(self.logits(before))[token]
            else:
                chance = slow_warp(self.logits(before), self.params)[token]
                gain = math.log(chance) if chance > 0 else -math.inf
            self._score[output] = self.score(before) + gain
        return self._score[output]

    def finished(self, output: Output) -> bool:
        """Whether a hypothesis has ended: it stays in the set as it is."""
        return bool(output) and output[-1] in self.end

    def layer(self, beams: Beams) -> dict[Output, float]:
        """p_beam: each next hypothesis (a finished one stays) with its chance."""
        names: list[Output] = []
        values: list[float] = []
        top = max(map(self.score, beams))
        total = math.fsum(math.exp(self.score(beam) - top) for beam in beams)
        for beam in sorted(beams):
            weight = self.score(beam) - top
            if self.finished(beam):
                names.append(beam)
                values.append(weight if self.warp == "joint" else math.exp(weight) / total)
                continue
            names += [(*beam, token) for token in range(self.model.vocab_size)]
            if self.warp == "joint":
                values += [weight + gain for gain in log_softmax(self.logits(beam))]
            else:
                values += [math.exp(weight) / total * p for p in slow_warp(self.logits(beam), self.params)]
        if self.warp == "joint":
            values = slow_warp(values, self.params)
        return {name: value for name, value in zip(names, values, strict=True) if value > 0}

    def next_sets(self, beams: Beams, width: int, replacement: bool) -> dict[Beams, float]:
        """Law of the set that `width` draws make."""
        p = self.layer(beams)
        law: dict[frozenset[Output], float] = {frozenset(): 1.0}
        for _ in range(width if replacement else min(width, len(p))):
            grown: dict[frozenset[Output], float] = {}
            for drawn, chance in law.items():
                left = 1.0 if replacement else math.fsum(v for name, v in p.items() if name not in drawn)
                for name, value in p.items():
                    if replacement or name not in drawn:
                        new = drawn | {name}
                        grown[new] = grown.get(new, 0.0) + chance * value / left
            law = grown
        return {tuple(sorted(drawn)): chance for drawn, chance in law.items()}

    def law(self, width: int, replacement: bool, tokens: int) -> dict[Beams, float]:
        """Law of the final set of beams after `tokens` layers."""
        law: dict[Beams, float] = {((),): 1.0}
        for _ in range(tokens):
            grown: dict[Beams, float] = {}
            for beams, chance in law.items():
                nexts = {beams: 1.0} if all(map(self.finished, beams)) else self.next_sets(beams, width, replacement)
                for new, share in nexts.items():
                    grown[new] = grown.get(new, 0.0) + chance * share
            law = grown
        return law

    def draws(self, before: Beams, width: int, replacement: bool) -> dict[Beams, float]:
        """Law of `width` draws in order and with multiplicity, below the hypotheses `before`."""
        p = self.layer(tuple(sorted(set(before))))
        law: dict[Beams, float] = {(): 1.0}
        for _ in range(width if replacement else min(width, len(p))):
            law = {
                (*drawn, name): chance * value / (1.0 if replacement else 1.0 - math.fsum(p[x] for x in drawn))
                for drawn, chance in law.items()
                for name, value in p.items()
                if replacement or name not in drawn
            }
        return law
