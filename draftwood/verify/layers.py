"""Verifying beams over a forest, layer by layer: DSBD and beam sampling, beam search with and without drafts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from draftwood.core.forest import FINISHED, Forest, Verdict
from draftwood.core.records import BeamLayer, Judged, Kind, Outcome
from draftwood.core.row_tops import LogitsRow
from draftwood.sampling.distributions import Distributions, Streams
from draftwood.sampling.params import SamplingParams
from draftwood.sampling.rows import log_probs
from draftwood.verify.beam import bonus_width, least_perplexity, sample_layer, verify_layer
from draftwood.verify.beam_search import BeamSearch, Pool, layer_stands
from draftwood.verify.joint import Joint, Seeded, joint_of
from draftwood.verify.width import WidthRule


def joint_over(
    nodes: Sequence[int],
    score: Mapping[int, float],
    rows: Mapping[int, LogitsRow],
    params: SamplingParams,
    warp: Literal["joint", "token"],
) -> Joint:
    """The joint of distinct `nodes` and tokens (DSBD Eq. 1), by the normalised row after each live node."""
    best = max(score[node] for node in nodes)
    return joint_of([score[node] - best for node in nodes], [rows.get(node) for node in nodes], params, warp, nodes)


def extended(
    outcomes: Sequence[Outcome], score: Mapping[int, float], rows: Mapping[int, LogitsRow]
) -> dict[Outcome, float]:
    """Joint log-likelihoods of outcomes: log p(x) + log p(v|x); `rows`: the normalised row after each live node."""
    grown = [outcome for outcome in dict.fromkeys(outcomes) if outcome[1] != FINISHED]
    gained = dict(zip(grown, log_probs([(rows[node], token) for node, token in grown]), strict=True))
    return {outcome: score[outcome[0]] + gained.get(outcome, 0.0) for outcome in outcomes}


class BeamSampling:
    """DSBD's verification (spec §3); with a drafter that appends nothing it is beam sampling itself (spec §1).

    `one_cache` keeps the output beam of lowest perplexity only (DSBD §3.4), which changes the distribution.
    """

    name = "beam-sampling"
    coupled = False

    def __init__(
        self,
        rule: WidthRule,
        warp: Literal["joint", "token"] = "joint",
        replacement: bool = True,
        one_cache: bool = False,
    ) -> None:
        self.rule = rule
        self.warp = warp
        self.replacement = replacement
        self.one_cache = one_cache
        self.lossless = not one_cache

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        randomness = Seeded(streams, "accept")
        score, nodes = dict(forest.score), list(forest.roots)
        layers: list[BeamLayer] = []
        warped: dict[Outcome, float] = {}
        accepted, last = 0, 0
        for drafted in [*forest.layers, None]:
            live = [node for node in nodes if node not in forest.finished]
            rows = dict(zip(live, target.normalised_edited(live), strict=True))
            p = joint_over(nodes, score, rows, target.params, self.warp)
            if drafted is None:
                layer = sample_layer(p, bonus_width(last, self.rule), randomness, self.replacement)
            else:
                assert drafted.q is not None
                layer = verify_layer(drafted.draws, drafted.q, p, nodes, self.rule, randomness, self.replacement)
            layers.append(layer)
            beams = layer.distinct
            probs = p.probs(beams)
            warped.update(zip(beams, map(_log, probs), strict=True))
            if self.warp == "joint":
                grown = extended(beams, score, rows)
            else:  # log-likelihoods under the warped conditionals: all but the sum over beams is in the joint
                best = max(score[node] for node in nodes)
                total = best + math.log(math.fsum(math.exp(score[node] - best) for node in nodes))
                grown = {beam: total + _log(prob) for beam, prob in zip(beams, probs, strict=True)}
            if not layer.stands:
                break
            accepted, last = accepted + 1, layer.width
            nodes = [forest.add_outcome(*beam) for beam in beams]
            score = {node: grown[beam] for node, beam in zip(nodes, beams, strict=True)}
            if all(node in forest.finished for node in nodes):
                break  # nothing is left to decide, for the reference neither
        if self.one_cache:
            lengths = [forest.length(node) + (token != FINISHED) for node, token in beams]
            beams = [beams[least_perplexity([grown[beam] for beam in beams], lengths)]]
        drafts = set(layer.beams[: layer.accepted])
        rest: Kind = "plain" if not forest.layers else "corrected" if layer.judged else "bonus"
        return Verdict(
            [node for node, _ in beams],
            [token for _, token in beams],
            ["accepted" if beam in drafts else rest for beam in beams],
            warped,
            accepted,
            sum(bool(layer.judged) for layer in layers),
            [grown[beam] for beam in beams],
            layers,
            target.fresh() if forest.layers else {},
        )


class BeamSearching:
    """Beam search: the best `width` continuations, layer by layer as long as all of them were drafted (spec §3).

    Without drafts it is plain beam search; with drafts the output is the same. Finished roots are the pool of finished
    hypotheses, best first.
    """

    name = "beam-search"
    lossless = True
    coupled = False

    def __init__(self, search: BeamSearch) -> None:
        self.search = search

    def __call__(self, forest: Forest, target: Distributions, streams: Streams) -> Verdict:
        pool: Pool[Outcome] = Pool(self.search)
        for root in forest.roots:
            if root in forest.finished:
                pool.add(forest.score[root], forest.length(root), (root, FINISHED))
        nodes = forest.live
        scores = [forest.score[node] for node in nodes]
        layers: list[BeamLayer] = []
        seen: list[Outcome] = []
        drafts: set[Outcome] = set()
        accepted, stands = 0, False
        for drafted in [*forest.layers, None]:
            step = self.search.step(
                scores,
                target.leading_edited(nodes),
                lambda row, token, at=nodes: forest.ends(at[row], token),  # type: ignore[misc]
            )
            length = forest.length(nodes[0]) + 1
            for (row, token), score in zip(step.ended, step.ended_scores, strict=True):
                pool.add(score, length, (nodes[row], token))
                seen.append((nodes[row], token))
            live = [(nodes[row], token) for row, token in step.live]
            scores = step.live_scores
            seen += live
            drafts = set(drafted.draws) if drafted is not None else set()
            stands = layer_stands(live, drafts)
            judged = [
                Judged(draw, "accepted" if draw in live else "rejected")
                for draw in (drafted.draws if drafted is not None else ())
            ]
            layers.append(BeamLayer(len(live), live, sum(beam in drafts for beam in live), judged, stands))
            accepted += stands
            limit = forest.longest - forest.prompt  # where live ones are hypotheses too, whatever was found before
            if length < limit and pool.done(scores, length, limit):
                live, scores = [], []
                break
            if not stands:
                break
            nodes = [forest.add_outcome(*beam) for beam in live]
        rest: Kind = "plain" if not forest.layers else "corrected" if layers[-1].judged else "bonus"
        roots = [*(handle for _, _, handle in pool.finished), *live]
        return Verdict(
            [node for node, _ in roots],
            [token for _, token in roots],
            ["accepted" if root in drafts else rest for root in roots],
            dict.fromkeys(seen, 0.0),
            accepted,
            sum(bool(layer.judged) for layer in layers),
            [*(likelihood for _, likelihood, _ in pool.finished), *scores],
            layers,
            target.fresh() if forest.layers else {},
        )


def _log(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf
