"""Search for the sublayers to skip when a target drafts for itself (Draft & Verify, §3.2).

The speed of a set is predicted from its acceptance on text that the target wrote and from the measured cost of
forwards. The search is optuna's (spaces.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwood.engine.engine import Engine
from draftwood.engine.request import Prompt
from draftwood.errors import ConfigurationError
from draftwood.models.base import Batch, Segment
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.decoder import Decoder
from draftwood.models.heads.exit import layered
from draftwood.models.heads.skip import Skipped, SkippedDecoder, every_other, lenders, save
from draftwood.sampling.distributions import warp
from draftwood.sampling.params import SamplingParams
from draftwood.tune.measuring import forward_seconds, row_counts
from draftwood.tune.shapes import Cost
from draftwood.tune.spaces import TPESearch

KEEP, SKIP = "keep", "skip"
GROUP_SIZE = 8  # texts per forward


class PromptGroup:
    """Some texts with the target's keys and values of their tokens, in one cache.

    Slots [0, width) hold the target's keys and values of tokens 0, 1, ...; behind them are `max_count` slots for the
    drafts of each depth.
    """

    def __init__(self, target: Decoder, texts: Sequence[tuple[list[int], int]], params: SamplingParams) -> None:
        self.params = params
        device, lengths = target.device, [len(tokens) - 1 for tokens, _ in texts]  # nothing follows the last token
        self.width = max(lengths)
        self.counts = [length - prompt for length, (_, prompt) in zip(lengths, texts, strict=True)]
        self.max_count = max(self.counts)
        padded = [tokens[:-1] + [0] * (self.width - len(tokens) + 1) for tokens, _ in texts]
        self.tokens = torch.tensor(padded, device=device)
        prompts = torch.tensor([prompt for _, prompt in texts], device=device)[:, None]
        ends = torch.tensor(lengths, device=device)[:, None] - 1
        self.places = torch.minimum(prompts + torch.arange(self.max_count, device=device), ends)  # [B, max_count]
        self.cache = target.new_cache()
        self.extents = [self.cache.lend(self.width + self.max_count) for _ in texts]
        segments = [Segment.causal(extent, 0, self.width) for extent in self.extents]
        wanted = torch.arange(len(texts), device=device)[:, None] * self.width + self.places
        self.p = self._answer(target, self.tokens, [range(self.width)] * len(texts), segments, wanted)

    def drafted(self, part: SkippedDecoder, depth: int) -> list[Tensor]:
        """The draft's warped distributions [n, V] of each text at one depth. Call it for depths 0, 1, ... in order.

        Row r is a draft whose round began at row r - depth: it attends to the target's keys and values of all tokens
        before that root, and to the part's own from the root on. Rows below `depth` have no root and mean nothing.
        """
        start = self.width + depth * self.max_count  # slots of this depth
        for extent in self.extents:
            self.cache.reserve(extent, start + self.max_count)
        slots, trunk = range(start, start + self.max_count), array("i", range(self.width))
        places, segments = self.places.tolist(), []
        for extent, own in zip(self.extents, places, strict=True):
            lengths = [1 + min(depth, row, place) for row, place in enumerate(own)]
            paths = [  # row r - 1 of the depth before, and so on
                [slot - back * (self.max_count + 1) for back in reversed(range(length))]
                for slot, length in zip(slots, lengths, strict=True)
            ]
            seen = [place + 1 - length for place, length in zip(own, lengths, strict=True)]
            segments.append(Segment(extent, slots, trunk, seen, paths))
        tokens = self.tokens.gather(1, self.places)
        wanted = torch.arange(tokens.numel(), device=tokens.device).view_as(tokens)
        return self._answer(part, tokens, places, segments, wanted)

    def _answer(
        self,
        model: Decoder,
        tokens: Tensor,
        positions: Sequence[Sequence[int]],
        segments: Sequence[Segment],
        wanted: Tensor,
    ) -> list[Tensor]:
        """Warped distributions of the `wanted` rows of one forward; tokens [B, n], a segment for each text."""
        places = list(chain.from_iterable(positions))
        batch = Batch.of(model, tokens.flatten().tolist(), places, segments, wanted.flatten().tolist())
        logits = model.forward(batch, self.cache).view(*wanted.shape, -1)
        return [warp(row[:count].float(), self.params) for row, count in zip(logits, self.counts, strict=True)]


class WrittenTexts:
    """Texts that the target wrote, with its keys and values, and its distribution of each token but the first.

    The first token is left out: it comes from the round that reads the prompt, in which nothing is drafted.
    """

    @torch.inference_mode()
    def __init__(self, target: Decoder, texts: Sequence[tuple[Sequence[int], int]], params: SamplingParams) -> None:
        """`texts`: (tokens, tokens of the prompt) each."""
        self.target = target
        self.texts = [(list(tokens), prompt) for tokens, prompt in texts if len(tokens) > prompt + 1]
        if not self.texts:
            raise ConfigurationError("the target wrote nothing to judge skip sets by; give other or more prompts")
        groups = range(0, len(self.texts), GROUP_SIZE)
        self.groups = [PromptGroup(target, self.texts[start : start + GROUP_SIZE], params) for start in groups]

    @staticmethod
    def written(engine: Engine, prompts: Sequence[Any], params: SamplingParams, new: int, seed: int) -> WrittenTexts:
        """WrittenTexts from continuations of prompts by the engine's target, of at most `new` tokens."""
        results = engine.batch(prompts, method="autoregressive", sampling=params, max_new_tokens=new, seed=seed)
        texts = [([*result.prompt_tokens, *result.tokens], len(result.prompt_tokens)) for result in results]
        return WrittenTexts(layered(engine.target), texts, params)

    def chances(self, skipped: Skipped) -> Iterator[list[Tensor]]:
        """Yield for each draft depth, from 0 on, the acceptance chances [n] of each text.

        Entry r is the chance that a draft of generated token r + 1 is accepted, given that the drafts before it in its
        round were: sum_x min(p(x), q(x)) with both warped; in greedy decoding 1 if both have the same best token, or 0.
        As in self-spec, drafts read the target's keys and values of verified tokens and the part's own of the tokens of
        their round. At depth j the first j entries mean nothing: such a round would begin before the text.
        """
        part, depth = SkippedDecoder(self.target, skipped), 0
        while True:
            with torch.inference_mode():
                pairs = [pair for some in self.groups for pair in zip(some.p, some.drafted(part, depth), strict=True)]
                overlaps = [torch.minimum(p, q).sum(-1) for p, q in pairs]
            yield overlaps
            depth += 1


def tokens_per_round(chances: Sequence[Sequence[Tensor]]) -> float:
    """Expected tokens per round of a chain of len(chances) drafts.

    `chances` are those of `WrittenTexts.chances`, [depth][text] -> [n]. The expected number of rounds from token t on
    is R(t) = 1 + sum_j P(exactly j are accepted) R(t + j + 1). Unlike a formula of the mean chance it takes into
    account that tokens which are hard to draft come in groups.
    """
    gamma, lengths = len(chances), [len(each) for each in chances[0]]
    longest = max(lengths)
    a = torch.zeros(gamma, len(lengths), longest + gamma, dtype=torch.float64)  # texts end together
    for depth, texts in enumerate(chances):
        for row, each in enumerate(texts):
            a[depth, row, longest - len(each) : longest] = each.double().clamp(max=1.0)
    rounds = torch.zeros(len(lengths), longest + gamma + 1, dtype=torch.float64)
    for t in range(longest - 1, -1, -1):
        reach = torch.ones(len(lengths), dtype=torch.float64)
        total = torch.ones_like(reach)
        for j in range(gamma):
            total += reach * (1 - a[j, :, t + j]) * rounds[:, t + j + 1]
            reach = reach * a[j, :, t + j]
        rounds[:, t] = total + reach * rounds[:, t + gamma + 1]
    return sum(lengths) / sum(float(rounds[row, longest - length]) for row, length in enumerate(lengths))


@dataclass(frozen=True, slots=True)
class SublayerCosts:
    """Seconds of target forwards by rows, and of the parts of a draft's forward of one row."""

    target: Cost
    attention: float  # of one sublayer
    mlp: float
    rest: float  # embeddings, final norm, head

    @staticmethod
    def measured(target: Decoder, max_gamma: int, context: int = 128) -> SublayerCosts:
        """Time the target with up to `max_gamma` drafts, without any MLP, and without all attention but the first."""
        layers = tuple(range(target.n_layers))
        seconds = forward_seconds(target, row_counts(max_gamma + 1), context)
        full = seconds[1]
        calm = forward_seconds(SkippedDecoder(target, Skipped((), layers)), [1], context)[1]
        blind = forward_seconds(SkippedDecoder(target, Skipped(layers[1:], ())), [1], context)[1]
        mlp = max(0.0, full - calm) / len(layers)
        attention = max(0.0, full - blind) / max(1, len(layers) - 1)
        rest = max(0.0, full - len(layers) * (attention + mlp))
        return SublayerCosts(Cost(seconds), attention, mlp, rest)

    def draft(self, layers: int, skipped: Skipped) -> float:
        """Seconds of a forward of one row without the skipped sublayers."""
        kept = (layers - len(skipped.attention)) * self.attention + (layers - len(skipped.mlp)) * self.mlp
        return self.rest + kept


@dataclass(frozen=True, slots=True)
class SkipPrediction:
    """The predicted speed of a skip set with the best length of chains."""

    skipped: Skipped
    acceptance: float  # mean chance of a round's first draft
    cost: float  # c, a draft's forward in target forwards
    gamma: int
    tau: float
    speed_up: float


def predict(
    target: Decoder, skipped: Skipped, evidence: WrittenTexts, costs: SublayerCosts, max_gamma: int
) -> SkipPrediction:
    """Predict a set's speed: for chains of gamma drafts it is tokens per round T(1) / (T(gamma + 1) + gamma D).

    T and D are the costs of a target forward by rows and of a draft; gamma is the best one, and is no longer raised
    once two more drafts are no better.
    """
    draft, one = costs.draft(target.n_layers, skipped), costs.target(1)
    chances: list[list[Tensor]] = []
    best: SkipPrediction | None = None
    for gamma, last in zip(range(1, max_gamma + 1), evidence.chances(skipped), strict=False):
        chances.append(last)
        tau = tokens_per_round(chances)
        speed = tau * one / (costs.target(gamma + 1) + gamma * draft)
        if best is None or speed > best.speed_up:
            best = SkipPrediction(skipped, float(torch.cat(chances[0]).double().mean()), draft / one, gamma, tau, speed)
        elif gamma > best.gamma + 1:
            break
    assert best is not None
    return best


@dataclass(frozen=True, slots=True)
class SkipSearch:
    """The predicted sets, best first, and the set of every other layer, with which they are compared."""

    target: Decoder
    ranked: list[SkipPrediction]
    usual: SkipPrediction
    about: dict[str, Any]

    @property
    def best(self) -> SkipPrediction:
        return self.ranked[0]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON, as it is stored with the best set."""
        best, usual = self.best, self.usual
        return {
            "gamma": best.gamma,
            "acceptance": best.acceptance,
            "cost": best.cost,
            "tokens_per_round": best.tau,
            "speed_up": best.speed_up,
            "every_other_layer": {"acceptance": usual.acceptance, "cost": usual.cost, "speed_up": usual.speed_up},
            "judged": len(self.ranked),
            **self.about,
        }

    def save(self, path: Path) -> None:
        """Write the best set, for skip=PATH of self-spec."""
        save(path, self.best.skipped, fingerprint(self.target), **self.as_dict())


def search_skip_sets(
    engine: Engine,
    prompts: Sequence[Prompt],
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 64,
    budget: int = 200,
    gamma: int = 8,
    seed: int = 0,
    search_seed: int = 0,
    on_progress: Callable[[SkipPrediction], None] = lambda best: None,
) -> SkipSearch:
    """Search `budget` skip sets of the engine's target for chains of at most `gamma` drafts, on its own continuations.

    `on_progress` is called with the best set so far after each. Ctrl-C ends the search and keeps its results. Raises
    ConfigurationError where the target writes nothing.
    """
    params = sampling or SamplingParams()
    target = layered(engine.target)
    evidence = WrittenTexts.written(engine, prompts, params, max_new_tokens, seed)
    costs = SublayerCosts.measured(target, gamma)
    ranked = search(target, evidence, costs, budget, gamma, search_seed, on_progress)
    usual = predict(target, every_other(target.n_layers, lenders(target)), evidence, costs, gamma)
    sampled = params.model_dump(mode="json")
    about = {"search_seed": search_seed, "texts": len(evidence.texts), "sampling": sampled}
    return SkipSearch(target, ranked, usual, about)


def search(
    target: Decoder,
    evidence: WrittenTexts,
    costs: SublayerCosts,
    budget: int,
    max_gamma: int,
    seed: int,
    on_progress: Callable[[SkipPrediction], None],
) -> list[SkipPrediction]:
    """Predict `budget` sets that TPE asks for, every other layer first; the results, best first.

    `on_progress` is called with the best one so far after each. Ctrl-C ends the search early.
    """
    layers, lent = target.n_layers, lenders(target)
    both = [(kind, layer) for layer in range(layers) for kind in ("attention", "mlp")]
    names = [(kind, layer) for kind, layer in both if kind == "mlp" or layer not in lent]
    usual = every_other(layers, lent)
    first = {f"{kind} {layer}": SKIP if layer in getattr(usual, kind) else KEEP for kind, layer in names}
    likely = TPESearch({f"{kind} {layer}": (KEEP, SKIP) for kind, layer in names}, seed, budget, first)
    judged: dict[Skipped, SkipPrediction] = {}
    try:
        for _ in range(budget):
            choices = likely.ask() or {}
            chosen = {
                kind: tuple(layer for one, layer in names if one == kind and choices[f"{kind} {layer}"] == SKIP)
                for kind in ("attention", "mlp")
            }
            skipped = Skipped(**chosen)
            if len(skipped.attention) == layers:
                likely.tell(None)
                continue
            if skipped not in judged:
                judged[skipped] = predict(target, skipped, evidence, costs, max_gamma)
            likely.tell(judged[skipped].speed_up)
            on_progress(max(judged.values(), key=lambda one: one.speed_up))
    except KeyboardInterrupt:
        if not judged:
            raise
    return sorted(judged.values(), key=lambda one: -one.speed_up)
