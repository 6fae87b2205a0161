"""Correct outputs on tabular models: exact laws of plain decoding and beam sampling, beam search, DSBD's widths.

Written from the definitions with plain loops; no code is shared with what is judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import TypeAlias, TypeVar

from draftwood.models.tabular import TabularModel
from draftwood.sampling.params import SamplingParams

Output: TypeAlias = tuple[int, ...]  # generated tokens
Beams: TypeAlias = tuple[Output, ...]  # a set of hypotheses, sorted
Label = TypeVar("Label", bound=Hashable)
End: TypeAlias = Iterable[int] | Callable[[Output], bool]  # the tokens that end an output, or whether one is over


def ended(end: End) -> Callable[[Output], bool]:
    """A function that says whether an output of at least one token has ended."""
    if callable(end):
        return end
    tokens = frozenset(end)
    return lambda output: output[-1] in tokens


def slow_warp(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """T∘softmax, written out: temperature, top-k, top-p on the renormalised rest, min-p, renormalise; ties are kept."""
    if params.temperature == 0:
        best = max(range(len(logits)), key=lambda i: (logits[i], -i))
        return [float(i == best) for i in range(len(logits))]
    top = max(logits)
    weights = [math.exp((x - top) / params.temperature) for x in logits]
    norm = math.fsum(weights)
    probs = [w / norm for w in weights]
    alive = set(range(len(probs)))
    if 0 < params.top_k < len(probs):
        threshold = sorted(probs, reverse=True)[params.top_k - 1]
        alive = {i for i in alive if probs[i] >= threshold}
    if params.top_p < 1:
        # the mass that top-p is a fraction of: the k best, whatever their ties add
        ranked = sorted((probs[i] for i in alive), reverse=True)[: params.top_k or None]
        mass, reached = params.top_p * math.fsum(ranked), 0.0
        for threshold in ranked:
            reached += threshold
            if reached >= mass:
                break
        alive = {i for i in alive if probs[i] >= threshold}
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
    model: TabularModel, prompt: Sequence[int], params: SamplingParams, max_new_tokens: int, end: End = ()
) -> dict[Output, float]:
    """Every possible output of plain decoding and its probability."""
    over = ended(end)
    law: dict[Output, float] = {}
    todo: list[tuple[Output, float]] = [((), 1.0)]
    while todo:
        output, chance = todo.pop()
        if len(output) == max_new_tokens or (output and over(output)):
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
        end: End = frozenset(),
        warp: str = "joint",
        scored: str | None = None,
    ) -> None:
        """`scored` says under which softmax hypotheses are weighed: as `warp`, or "joint" for the untouched one."""
        self.model, self.prompt, self.params, self.over, self.warp = model, tuple(prompt), params, ended(end), warp
        self.scored = scored or warp
        self._score: dict[Output, float] = {(): 0.0}
        self._draws: dict[tuple[Beams, int, bool], dict[Beams, float]] = {}
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
            if self.scored == "joint":
                gain = log_softmax(self.logits(before))[token]
            else:
                chance = slow_warp(self.logits(before), self.params)[token]
                gain = math.log(chance) if chance > 0 else -math.inf
            self._score[output] = self.score(before) + gain
        return self._score[output]

    def finished(self, output: Output) -> bool:
        """True where a hypothesis has ended: it stays in the set unchanged."""
        return bool(output) and self.over(output)

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
        law: dict[Beams, float] = {}
        for drawn, chance in self.draws(beams, width, replacement).items():
            together = tuple(sorted(set(drawn)))
            law[together] = law.get(together, 0.0) + chance
        return law

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
        key = tuple(sorted(set(before))), width, replacement
        if key not in self._draws:
            self._draws[key] = ordered_draws(self.layer(key[0]), width, replacement)
        return self._draws[key]


def ordered_draws(p: Mapping[Label, float], count: int, replacement: bool) -> dict[tuple[Label, ...], float]:
    """The law of `count` draws from p, all above 0, in order; of distinct ones all names where there are fewer."""
    law: dict[tuple[Label, ...], float] = {(): 1.0}
    for _ in range(count if replacement else min(count, len(p))):
        law = {
            (*drawn, name): chance * value / (1.0 if replacement else 1.0 - math.fsum(p[x] for x in drawn))
            for drawn, chance in law.items()
            for name, value in p.items()
            if replacement or name not in drawn
        }
    return law


def slow_width(
    p: Mapping[Output, float], q: Mapping[Output, float], draws: int, threshold: float, minimum: int
) -> tuple[int, list[float]]:
    """(W, P(m, 0..m)) of m draws from q where p is wanted: DSBD Eq. 2-7 with the errata of spec §9.3."""
    alphas, rest = [], dict(p)
    for _ in range(draws):
        alphas.append(math.fsum(min(rest.get(x, 0.0), chance) for x, chance in q.items()) if rest else 1.0)
        left = {x: max(0.0, chance - q.get(x, 0.0)) for x, chance in rest.items()}
        total = math.fsum(left.values())
        rest = {x: chance / total for x, chance in left.items()} if total > 0 else {}

    @cache
    def accepted(m: int, k: int) -> float:
        if k > m:
            return 0.0
        if k == 0:
            return math.prod(1 - alpha for alpha in alphas[:m])
        firsts = (alphas[i] * math.prod(1 - alpha for alpha in alphas[:i]) for i in range(m))
        return math.fsum(first * accepted(m - i - 1, k - 1) for i, first in enumerate(firsts))

    counts = [accepted(draws, k) for k in range(draws + 1)]
    wide = max(k for k in range(draws + 1) if math.fsum(counts[k:]) >= threshold - 1e-12 or k == 0)
    return max(minimum, wide), counts


def slow_beam_search(
    model: TabularModel,
    prompt: Sequence[int],
    width: int,
    max_new_tokens: int,
    over: Callable[[Output], bool],
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    params: SamplingParams | None = None,
) -> tuple[list[tuple[Output, float, float]], bool]:
    """(tokens, log-likelihood, score) of the best `width` hypotheses, best first; whether nothing was nearly a tie.

    Each step ranks all continuations of the live beams, ties by beam, then token. Of the best `width` those that are
    `over` join the finished hypotheses (the best `width` are kept); the best `width` that are not go on. At the limit
    live beams are hypotheses too. It ends when nothing is live, or with `width` finished ones by `early_stopping`.
    """
    settings = params or SamplingParams()
    live: list[tuple[Output, float]] = [((), 0.0)]
    finished: list[tuple[Output, float, float]] = []
    clear = True

    def score(likelihood: float, length: int) -> float:
        return float(likelihood / length**length_penalty)

    def distinct(values: Iterable[float]) -> bool:
        return all(abs(a - b) > 1e-7 for a, b in pairwise(sorted(values)))

    for length in range(1, max_new_tokens + 1):
        ranked: list[tuple[float, Output]] = []
        for output, likelihood in live:
            gains = log_softmax(slow_penalties(raw_logits(model, (*prompt, *output)), prompt, output, settings))
            ranked += [(likelihood + gain, (*output, token)) for token, gain in enumerate(gains) if gain > -math.inf]
        ranked.sort(key=lambda entry: -entry[0])
        clear = clear and distinct(s for s, _ in ranked)
        finished += [(output, s, score(s, length)) for s, output in ranked[:width] if over(output)]
        finished.sort(key=lambda entry: -entry[2])
        clear = clear and distinct(s for _, _, s in finished)
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
    return finished[:width], clear and distinct(s for _, _, s in finished)
