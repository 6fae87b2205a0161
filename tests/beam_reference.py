"""Beams written down a second time with plain loops: the exact law of beam sampling, and naive beam search.

Knows tabular models and definitions only; shares no code with the package.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from enumeration import slow_penalties, slow_warp

from draftwood import SamplingParams, TabularModel

Sequence_ = tuple[int, ...]  # generated tokens
Beams = tuple[Sequence_, ...]  # a set of hypotheses, sorted


def log_softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    norm = top + math.log(math.fsum(math.exp(x - top) for x in logits))
    return [x - norm for x in logits]


class BeamLaw:
    """Beam sampling (spec §1) of one prompt on a tabular model, every number from its definition."""

    def __init__(
        self,
        model: TabularModel,
        prompt: Sequence[int],
        params: SamplingParams,
        end: frozenset[int] = frozenset(),
        warp: str = "joint",
    ) -> None:
        self.model, self.prompt, self.params, self.end, self.warp = model, tuple(prompt), params, end, warp
        self._score: dict[Sequence_, float] = {(): 0.0}
        self._logits: dict[Sequence_, list[float]] = {}

    def logits(self, output: Sequence_) -> list[float]:
        """After penalties."""
        if output not in self._logits:
            raw = [math.log(w) if w > 0 else -math.inf for w in self.model.law((*self.prompt, *output))]
            self._logits[output] = slow_penalties(raw, self.prompt, output, self.params)
        return self._logits[output]

    def score(self, output: Sequence_) -> float:
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

    def finished(self, output: Sequence_) -> bool:
        return bool(output) and output[-1] in self.end

    def layer(self, beams: Beams) -> dict[Sequence_, float]:
        """p_beam: each next hypothesis (a finished one stays) with its chance."""
        names: list[Sequence_] = []
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
        law: dict[frozenset[Sequence_], float] = {frozenset(): 1.0}
        for _ in range(width if replacement else min(width, len(p))):
            grown: dict[frozenset[Sequence_], float] = {}
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


def beam_search(
    model: TabularModel,
    prompt: Sequence[int],
    width: int,
    max_new_tokens: int,
    over: Callable[[Sequence_], bool],
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    params: SamplingParams | None = None,
) -> tuple[list[tuple[Sequence_, float, float]], bool]:
    """(tokens, log-likelihood, score) of the best `width` hypotheses, best first; whether nothing was nearly a tie.

    Each step ranks all continuations of the live beams; of the best `width` those that are `over` join the finished
    hypotheses (of which the best `width` are kept), and the best `width` that are not go on. At the limit live beams
    are hypotheses too. It is over when nothing is live, or with `width` finished ones under the rule of
    `early_stopping`.
    """
    settings = params or SamplingParams()

    def score(likelihood: float, length: int) -> float:
        return likelihood / length**length_penalty

    live: list[tuple[Sequence_, float]] = [((), 0.0)]
    finished: list[tuple[Sequence_, float, float]] = []
    clear = True

    def distinct(values: list[float]) -> bool:
        return all(abs(a - b) > 1e-7 for a, b in itertools.pairwise(sorted(values)))

    for length in range(1, max_new_tokens + 1):
        ranked: list[tuple[float, Sequence_]] = []
        for output, likelihood in live:
            raw = [math.log(w) if w > 0 else -math.inf for w in model.law((*prompt, *output))]
            gains = log_softmax(slow_penalties(raw, prompt, output, settings))
            ranked += [(likelihood + gain, (*output, token)) for token, gain in enumerate(gains) if gain > -math.inf]
        ranked.sort(key=lambda entry: -entry[0])
        clear = clear and distinct([s for s, _ in ranked])
        finished += [(output, s, score(s, length)) for s, output in ranked[:width] if over(output)]
        finished.sort(key=lambda entry: -entry[2])
        clear = clear and distinct([s for _, _, s in finished])
        del finished[width:]
        live = [(output, s) for s, output in ranked if not over(output)][:width]
        if not live:
            break
        if len(finished) == width and length < max_new_tokens:
            reach = max_new_tokens if early_stopping == "never" and length_penalty > 0 else length
            clear = clear and distinct([score(live[0][1], reach), finished[-1][2]])
            if early_stopping is True or score(live[0][1], reach) <= finished[-1][2]:
                return finished, clear
    finished += [(output, s, score(s, len(output))) for output, s in live]
    finished.sort(key=lambda entry: -entry[2])
    return finished[:width], clear and distinct([s for _, _, s in finished])
