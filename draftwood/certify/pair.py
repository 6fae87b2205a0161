"""The checks on a real pair: greedy text beside the text without drafts, and the law of sampled tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from draftwood.certify.checks import RISK, Advance, Budget, Check
from draftwood.certify.distances import Sample, fit
from draftwood.certify.references import slow_warp
from draftwood.core.forest import Forest
from draftwood.core.records import Round
from draftwood.engine.engine import Engine
from draftwood.engine.results import GenerationResult
from draftwood.methods import Method
from draftwood.methods.beams import BeamMethod, BeamSamplingMethod, PlainBeamSampling
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session
from draftwood.sampling.params import SamplingParams

MIN_SAMPLES = 40  # samples of a prefix for which its law is worth a forward
CONCURRENCY = 8  # sampled generations


def logits_after(engine: Engine, tokens: Sequence[int]) -> Tensor:
    """The target's logits [V] after a sequence, from one forward of all of it."""
    session = Session(engine.target, engine.target.new_cache(len(tokens) + 64))
    try:
        forest = Forest.from_prompt(list(tokens))
        with torch.inference_mode():
            return execute([Run(session, forest, forest.roots)])[0].logits[0]
    finally:
        session.close()


def tie_bound(logits: Tensor, epsilon: float, layers: int) -> float:
    """A bound on how far rounding can move two logits apart: 4 sqrt(L) eps max|logit|.

    Each of the 2 L sublayers that add to the residual stream rounds it by eps / 2 of its size at most, and independent
    roundings add like a random walk: a logit is off by eps / 2 sqrt(2 L) of the scale of logits, the difference of two
    by sqrt(2) times that. Four of these deviations.
    """
    return 4 * math.sqrt(layers) * epsilon * float(logits[torch.isfinite(logits)].abs().max())


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two greedy texts differ: `margin` is how far below the best logit the worse choice lies."""

    prompt: int
    place: int
    tokens: tuple[int, int]
    margin: float
    bound: float

    @property
    def tie(self) -> bool:
        return self.margin <= self.bound


def divergence(
    engine: Engine, number: int, prompt: Sequence[int], tokens: Sequence[int], wanted: Sequence[int]
) -> Divergence | None:
    """The first token at which two outputs differ, and whether rounding explains it; None where one only ends early."""
    place = next((i for i, (a, b) in enumerate(zip(tokens, wanted, strict=False)) if a != b), None)
    if place is None:
        if len(tokens) == len(wanted):
            return None
        return Divergence(number, min(len(tokens), len(wanted)), (-1, -1), math.inf, 0.0)
    logits = logits_after(engine, [*prompt, *wanted[:place]])
    chosen = tokens[place], wanted[place]
    margin = float(logits.max()) - min(float(logits[token]) for token in chosen)
    dtype = getattr(torch, str(engine.names.get("dtype", "float32")), torch.float32)
    return Divergence(number, place, chosen, margin, tie_bound(logits, torch.finfo(dtype).eps, engine.target.n_layers))


@dataclass
class ModelPair:
    """Models and prompts (token ids). What several methods are compared with is worked out once."""

    engine: Engine
    prompts: Sequence[Sequence[int]]
    params: SamplingParams = field(default_factory=SamplingParams)  # of sampled tokens
    budget: Budget = field(default_factory=Budget)
    _texts: dict[tuple[Method, int], GenerationResult] = field(default_factory=dict)

    def text(self, method: Method, number: int) -> GenerationResult:
        """A method's greedy text of a prompt."""
        options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": self.budget.max_new_tokens}
        return self.engine.generate(self.prompts[number], method, **options)

    def wanted(self, reference: Method, number: int) -> GenerationResult:
        """`text` of a reference."""
        if (reference, number) not in self._texts:
            self._texts[reference, number] = self.text(reference, number)
        return self._texts[reference, number]

    @cached_property
    def uncertain(self) -> Sequence[int]:
        """The prompt after which the next token is least certain, as long as samples are enough to see its law."""

        def entropy(prompt: Sequence[int]) -> float:
            logits = logits_after(self.engine, prompt).double()
            log_p = torch.log_softmax(logits / max(self.params.temperature, 1e-6), -1)
            return float(torch.special.entr(log_p.exp()).sum())

        max_entropy = math.log(max(2.0, self.budget.pair_runs / 30))
        entropies = [(entropy(prompt), prompt) for prompt in self.prompts]
        fitting = [each for each in entropies if each[0] <= max_entropy]
        return (max(fitting, key=lambda each: each[0]) if fitting else min(entropies, key=lambda each: each[0]))[1]


def greedy_reference(method: Method) -> Method | None:
    """The method without drafts that gives the same text at temperature 0."""
    if isinstance(method, BeamSamplingMethod):
        return PlainBeamSampling(width=1, warp=method.warp)
    return method.reference(True)


def greedy_check(pair: ModelPair, method: Method, advance: Advance) -> Check:
    """Greedy text of every prompt beside the reference's; a difference is a numeric tie or a bug."""
    name = "greedy text of the pair"
    reference = greedy_reference(method)
    if reference is None:
        return Check(name, "N/A", "has no reference whose greedy text it repeats")
    if reference == method:
        return Check(name, "N/A", "is the reference itself")
    tokens, divergences, prompts = 0, [], pair.prompts
    for number, prompt in enumerate(prompts):
        result, wanted = pair.text(method, number), pair.wanted(reference, number)
        tokens += len(wanted.tokens)
        one = divergence(pair.engine, number, prompt, result.tokens, wanted.tokens)
        if one is not None and isinstance(method, BeamMethod) and not isinstance(method, BeamSamplingMethod):
            one = _of_scores(one, result, wanted)
        if one is not None:
            divergences.append(one)
        advance()
    ties = sum(one.tie for one in divergences)
    bugs = len(divergences) - ties
    figures = {
        "prompts": len(prompts),
        "tokens": tokens,
        "ties": ties,
        "bugs": bugs,
        "divergences": [
            {
                **asdict(one),
                "margin": one.margin if math.isfinite(one.margin) else None,
                "kind": "numeric tie" if one.tie else "bug",
            }
            for one in divergences
        ],
    }
    identical = len(prompts) - len(divergences)
    text = f"{len(prompts)} prompts, {tokens:,} tokens: {identical} identical, {ties} ties, {bugs} bugs"
    if bugs:
        first = next(one for one in divergences if not one.tie)
        text += f"; prompt {first.prompt}, place {first.place}: margin {first.margin:.2g} over {first.bound:.1g}"
    return Check(name, "FAIL" if bugs else "PASS", text, figures)


def _of_scores(one: Divergence, result: GenerationResult, wanted: GenerationResult) -> Divergence:
    """For beam search, whose choices are between scores of whole hypotheses: each token may be off by the bound."""
    gap = abs(result.beams[0].log_likelihood - wanted.beams[0].log_likelihood)
    return Divergence(one.prompt, one.place, one.tokens, gap, one.bound * max(1, len(wanted.tokens)))


def position_check(pair: ModelPair, method: Method, advance: Advance) -> Check:
    """Sampled tokens of the pair up to a position against the target's exact distribution after what came before.

    Position 0 is the first generated token. Of beams it is the first layer: its draws, or its first draw where they
    are distinct.
    """
    name = "sampled tokens of the pair"
    beams = isinstance(method, BeamMethod)
    if beams and not isinstance(method, BeamSamplingMethod):
        return Check(name, "N/A", "draws nothing")
    engine, prompt, params, runs = pair.engine, pair.uncertain, pair.params, pair.budget.pair_runs
    position = 0 if beams else pair.budget.position
    outcomes: list[list[int]] = []
    for rounds in openings(engine, prompt, method, params, runs, position + 1):
        outcomes.append(_first_layer(method, rounds[0]) if beams else _tokens(rounds)[: position + 1])
        advance()
    engine.reset_prefix_cache()  # of what they have left nobody will make use, but everybody would look through it
    samples: dict[tuple[int, ...], Counter[int]] = {}  # after each prefix
    for tokens in outcomes:
        for i, token in enumerate(tokens):
            samples.setdefault(() if beams else tuple(tokens[:i]), Counter())[token] += 1
    taken: list[list[Sample[int]]] = [[] for _ in range(position + 1)]
    for prefix, counts in samples.items():
        if counts.total() >= MIN_SAMPLES:
            probs = slow_warp(logits_after(engine, [*prompt, *prefix]).double().tolist(), params)
            taken[len(prefix)].append(Sample({token: p for token, p in enumerate(probs) if p > 0}, counts))
    fits = [(i, fit(some, RISK / len(taken))) for i, some in enumerate(taken) if some]
    if not fits:
        return Check(name, "N/A", f"needs at least {MIN_SAMPLES} runs; raise --runs")
    failed = [i for i, each in fits if not each.holds]
    if not failed and not any(each.freedom for _, each in fits):
        return Check(name, "N/A", "every token is sure after this prompt; give others with --prompts, or --position")
    place, one = max(fits, key=lambda pair: pair[1].freedom)
    if failed:
        place, one = next(pair for pair in fits if pair[0] == failed[0])
    text = (
        f"{runs:,} runs, token {place + 1} of {len(fits)}: divergence {one.divergence:.1f} nats on {one.freedom}, "
        f"p {one.p_value:.2g}; total variation {one.distance:.3f} (exact: below {one.bound:.3f})"
    )
    figures = {
        "prompt_tokens": list(prompt),
        "sampling": params.model_dump(mode="json"),
        "positions": [{"position": i, **each.as_dict()} for i, each in fits],
    }
    if not method.lossless:
        return Check(name, "LOSSY", text, figures)
    return Check(name, "FAIL" if failed else "PASS", text, figures)


def openings(
    engine: Engine, prompt: Sequence[int], method: Method, params: SamplingParams, runs: int, count: int
) -> Iterator[list[Round]]:
    """The rounds of so many generations, in the order in which they end; each is two tokens longer than `count`."""
    results = engine.as_completed(
        [{"prompt": prompt, "seed": seed} for seed in range(runs)],
        CONCURRENCY,
        method=method,
        sampling=params,
        max_new_tokens=count + 2,
    )
    with closing(results):
        for _, result in results:
            yield result.rounds


def _tokens(rounds: Sequence[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]


def _first_layer(method: Method, round_: Round) -> list[int]:
    """Tokens drawn in a generation's first layer that are independent draws from the target."""
    tokens = [token for _, token in round_.layers[0].beams]
    return tokens if getattr(method, "replacement", True) else tokens[:1]
