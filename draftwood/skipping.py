"""Which sublayers of a target to skip, so that it drafts fastest for itself (Draft & Verify, §3.2).

Knows how a set's speed is foretold: its acceptance on text that the target wrote, with one forward per set, and what
forwards cost. The search is optuna's (spaces.py). Refuses to know terminals and files.

The forward is that of a draft model which skips the sublayers for every token. Drafts of self-spec read what the whole
target left of verified tokens, so that their acceptance differs a little from what is foretold here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftwood.engine import Engine
from draftwood.errors import ConfigurationError
from draftwood.measuring import forward_seconds, row_counts
from draftwood.models.decoder import Decoder
from draftwood.models.exit import layered
from draftwood.models.skip import Skipped, SkippedDecoder, every_other
from draftwood.sampling import SamplingParams, warp
from draftwood.spaces import Likely
from draftwood.tuning import Cost

KEEP, SKIP = "keep", "skip"
TOGETHER = 8  # texts per forward


class Evidence:
    """Texts that the target wrote, and what it said of each of their tokens."""

    def __init__(self, target: Decoder, texts: Sequence[tuple[Sequence[int], int]], params: SamplingParams) -> None:
        """`texts`: (tokens, tokens of the prompt) each."""
        self.params = params
        self.texts = [(list(tokens), prompt) for tokens, prompt in texts if len(tokens) > prompt]
        if not self.texts:
            raise ConfigurationError("the target wrote nothing to judge skip sets by; give other or more prompts")
        self.p = self._answers(target)

    @staticmethod
    def written(engine: Engine, prompts: Sequence[Any], params: SamplingParams, new: int, seed: int) -> Evidence:
        """Have the engine's target continue prompts by `new` tokens at most."""
        results = engine.batch(prompts, method="autoregressive", sampling=params, max_new_tokens=new, seed=seed)
        texts = [([*result.prompt_tokens, *result.tokens], len(result.prompt_tokens)) for result in results]
        return Evidence(layered(engine.target), texts, params)

    def chances(self, draft: Decoder) -> list[Tensor]:
        """Of each text, the chance [n] that a draft model's proposal is accepted at each generated token.

        sum_x min(p(x), q(x)) with both warped; in greedy decoding whether both have the same best token.
        """
        return [torch.minimum(p, q).sum(-1) for p, q in zip(self.p, self._answers(draft), strict=True)]

    @torch.inference_mode()
    def _answers(self, model: Decoder) -> list[Tensor]:
        """T∘model [n, V] at each text's generated tokens."""
        found: list[Tensor] = []
        for start in range(0, len(self.texts), TOGETHER):
            some = self.texts[start : start + TOGETHER]
            width = max(len(tokens) for tokens, _ in some) - 1
            rows = [tokens[:-1] + [0] * (width + 1 - len(tokens)) for tokens, _ in some]  # padding comes after: unseen
            logits = model.train_forward(torch.tensor(rows, device=model.device))
            for row, (tokens, prompt) in enumerate(some):
                found.append(warp(logits[row, prompt - 1 : len(tokens) - 1].float(), self.params))
        return found


def tokens_per_round(chances: Sequence[Tensor], gamma: int) -> float:
    """Expected tokens per round of a chain of `gamma` drafts over texts whose tokens have known chances.

    Rounds from token t on: R(t) = 1 + sum_j P(exactly j are accepted) R(t + j + 1). Unlike a formula of the mean
    chance this knows that hard tokens come together.
    """
    longest = max(map(len, chances))
    a = torch.zeros(len(chances), longest + gamma, dtype=torch.float64)  # texts end together
    for row, each in enumerate(chances):
        a[row, longest - len(each) : longest] = each.double().clamp(max=1.0)
    rounds = torch.zeros(len(chances), longest + gamma + 1, dtype=torch.float64)
    for t in range(longest - 1, -1, -1):
        reach = torch.ones(len(chances), dtype=torch.float64)
        total = torch.ones_like(reach)
        for j in range(gamma):
            total += reach * (1 - a[:, t + j]) * rounds[:, t + j + 1]
            reach = reach * a[:, t + j]
        rounds[:, t] = total + reach * rounds[:, t + gamma + 1]
    spent = sum(float(rounds[row, longest - len(each)]) for row, each in enumerate(chances))
    return sum(map(len, chances)) / spent


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: of target forwards by rows, and of what a draft's forward of one row is made of."""

    target: Cost
    attention: float  # of one sublayer
    mlp: float
    rest: float  # embeddings, final norm, head

    @staticmethod
    def measured(target: Decoder, most: int, context: int = 128) -> Costs:
        """Time the target with up to `most` drafts, without any MLP, and without all attention but the first."""
        layers = tuple(range(target.n_layers))
        seconds = forward_seconds(target, row_counts(most + 1), context)
        whole = seconds[1]
        calm = forward_seconds(SkippedDecoder(target, Skipped((), layers)), [1], context)[1]
        blind = forward_seconds(SkippedDecoder(target, Skipped(layers[1:], ())), [1], context)[1]
        mlp = max(0.0, whole - calm) / len(layers)
        attention = max(0.0, whole - blind) / max(1, len(layers) - 1)
        rest = max(0.0, whole - len(layers) * (attention + mlp))
        return Costs(Cost(seconds), attention, mlp, rest)

    def draft(self, layers: int, skipped: Skipped) -> float:
        """Seconds of a forward of one row without the skipped sublayers."""
        kept = (layers - len(skipped.attention)) * self.attention + (layers - len(skipped.mlp)) * self.mlp
        return self.rest + kept


@dataclass(frozen=True, slots=True)
class Foretold:
    """What a set is expected to give: the best chain's length, tokens per round and speed over plain decoding."""

    skipped: Skipped
    acceptance: float  # mean chance
    cost: float  # c, a draft's forward in target forwards
    gamma: int
    tau: float
    speed_up: float


def foretell(target: Decoder, skipped: Skipped, evidence: Evidence, costs: Costs, most: int) -> Foretold:
    """Judge a set: speed-up of gamma drafts = tokens per round T(1) / (T(gamma + 1) + gamma D), the best gamma."""
    chances = evidence.chances(SkippedDecoder(target, skipped))
    draft, one = costs.draft(target.n_layers, skipped), costs.target(1)
    mean = float(torch.cat(chances).double().mean())
    best: Foretold | None = None
    for gamma in range(1, most + 1):
        tau = tokens_per_round(chances, gamma)
        speed = tau * one / (costs.target(gamma + 1) + gamma * draft)
        if best is None or speed > best.speed_up:
            best = Foretold(skipped, mean, draft / one, gamma, tau, speed)
    assert best is not None
    return best


def search(
    target: Decoder,
    evidence: Evidence,
    costs: Costs,
    budget: int,
    most: int,
    seed: int,
    told: Callable[[Foretold], None],
) -> list[Foretold]:
    """Judge `budget` sets that TPE asks for, every other layer first; best first. Ctrl-C ends it early.

    `told` hears of the best one so far after each.
    """
    layers = target.n_layers
    names = [(kind, layer) for layer in range(layers) for kind in ("attention", "mlp")]
    usual = every_other(layers)
    first = {f"{kind} {layer}": SKIP if layer in getattr(usual, kind) else KEEP for kind, layer in names}
    likely = Likely({f"{kind} {layer}": (KEEP, SKIP) for kind, layer in names}, seed, budget, first)
    judged: dict[Skipped, Foretold] = {}
    try:
        for _ in range(budget):
            asked = likely.ask() or {}
            chosen = {
                kind: tuple(layer for one, layer in names if one == kind and asked[f"{kind} {layer}"] == SKIP)
                for kind in ("attention", "mlp")
            }
            skipped = Skipped(**chosen)
            if len(skipped.attention) == layers:
                likely.tell(None)
                continue
            if skipped not in judged:
                judged[skipped] = foretell(target, skipped, evidence, costs, most)
            likely.tell(judged[skipped].speed_up)
            told(max(judged.values(), key=lambda one: one.speed_up))
    except KeyboardInterrupt:
        if not judged:
            raise
    return sorted(judged.values(), key=lambda one: -one.speed_up)
