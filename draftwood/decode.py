"""THE loop: draft, verify, advance, for every method. Written for one request; yields its model runs and its rounds.

Knows the order of things and nothing else: drafters append nodes, verifiers choose the next roots, sessions hold
keys and values, drivers (executor.py) answer the runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from draftwood.core.forest import FINISHED, TRUNK, Forest, Verdict, advance
from draftwood.core.records import Beam, EmittedToken, Round, TopLogprobs
from draftwood.depth import DepthController
from draftwood.draft import Drafter, Proposer
from draftwood.errors import NonFiniteError
from draftwood.runtime.executor import Decoding
from draftwood.runtime.session import Run, Session
from draftwood.sampling import Penalties, SamplingParams, Streams, warp
from draftwood.text import Ending
from draftwood.verify import Verifier


@dataclass(frozen=True, slots=True)
class Answers:
    """How many hypotheses a request returns, ranked by log-likelihood / length^length_penalty.

    1 ranks by perplexity, 0 by joint likelihood. Methods with one hypothesis return that one.
    """

    n_best: int = 0
    length_penalty: float = 1.0


@dataclass(slots=True)
class Request:
    """All that one decoding needs: sessions, the method's parts, sampling and where to end."""

    prompt: list[int]
    target: Session
    drafts: Sequence[Session]  # of the models that it drafts with
    drafter: Drafter
    verify: Verifier
    depth: DepthController
    params: SamplingParams
    streams: Streams
    ending: Ending
    top_logprobs: int = 0
    answers: Answers = Answers()
    emitted: list[EmittedToken] = field(default_factory=list)  # so far, where hypotheses are to be returned

    def close(self) -> None:
        """Give all cache rows back."""
        for session in (self.target, *self.drafts):
            session.close()


def rounds(request: Request) -> Decoding[Round]:
    """Decode one request, yielding `Run` (please compute, send logits) and `Round` (round_).

    After a round the next roots are chosen but not forwarded (pending): one target forward per round serves both.
    What all hypotheses share is emitted at once, the rest of the best one when none goes on.
    """
    target, drafts, drafter = request.target, request.drafts, request.drafter
    streams, ending = request.streams, request.ending
    penalties = None
    if request.params.edits_logits:
        penalties = Penalties(request.params, target.model.vocab_size, len(request.prompt), target.model.device)
    propose = Proposer(request.params, streams, target.model.vocab_size, penalties, request.verify.name == "coupled")
    target.keep_hidden = "target" in drafter.needs | request.depth.needs
    forest = Forest.from_prompt(
        request.prompt,
        len(request.prompt) + ending.max_new_tokens,
        ending.end,
        ending.stopped if ending.stop else None,
    )
    try:
        while ending.reason is None:
            began = perf_counter()
            before = _spent(drafts)
            target_before = target.seconds, target.rows
            position = forest.position(forest.live[0])
            streams.at(position)
            request.depth.start(streams)
            yield from drafter.draft(forest, request.depth, forest.room - 1, propose)
            drafted = perf_counter()
            shared = target.seconds - target_before[0]  # drafting with the target's own layers
            fresh = range(forest.fresh, len(forest))
            logits = (
                (yield Run(target, forest, fresh))
                if fresh
                else torch.empty(0, target.model.vocab_size, device=target.model.device)
            )
            assert logits is not None
            answered = perf_counter()
            if forest.layers:
                forest.known.update(
                    (node, row) for node, row in zip(fresh, logits, strict=True) if node not in forest.finished
                )
            verdict = request.verify(forest, logits, request.params, penalties, streams)
            judged = perf_counter()
            roots_said = _say(forest, verdict, logits, request, penalties)
            trunk, kept, grown = advance(forest, verdict)
            target.commit(trunk, kept, grown)
            drafter.commit(trunk, kept, grown)
            for root, said in zip(grown.roots, roots_said, strict=True):
                if said is not None:
                    grown.emitted[root] = said
            round_ = _round(forest, verdict, trunk, grown, request, position)
            after = _spent(drafts)
            round_.draft_seconds = after[0] - before[0] + shared
            round_.draft_rows = after[1] - before[1]
            round_.draft_forwards = after[2] - before[2]
            round_.verify_seconds = target.seconds - target_before[0] - shared
            round_.target_rows = target.rows - target_before[1]
            round_.sampling_seconds = max(0.0, drafted - began - round_.draft_seconds) + judged - answered
            round_.other_seconds = perf_counter() - judged + max(0.0, answered - drafted - round_.verify_seconds)
            last = verdict.parent[0] - forest.fresh
            if target.keep_hidden and target.hidden is not None and last >= 0:
                round_.target_state = target.hidden[last]
            request.depth.observe(round_)
            round_.target_state = None  # the controller's: a result holds no states
            forest = grown
            yield round_
    finally:
        request.close()


def _spent(drafts: Sequence[Session]) -> tuple[float, float, int]:
    """(seconds, rows, forwards) of the draft sessions so far."""
    seconds, rows, forwards = 0.0, 0.0, 0
    for session in drafts:
        seconds += session.seconds
        rows += session.rows
        forwards += session.forwards
    return seconds, rows, forwards


def _say(
    forest: Forest, verdict: Verdict, logits: Tensor, request: Request, penalties: Penalties | None
) -> list[EmittedToken | None]:
    """What will be said of each new root (None: it stays); what is said of accepted drafts goes to `forest.emitted`."""
    edges: dict[tuple[int, int], int] = {}  # (parent, token) -> node; roots have none yet
    for parent, token in zip(verdict.parent, verdict.token, strict=True):
        node = parent
        upwards = [] if token == FINISHED else [(parent, token, TRUNK)]
        while node not in forest.roots:
            upwards.append((forest.parent[node], forest.token[node], node))
            node = forest.parent[node]
        for above, below, name in reversed(upwards):
            edges.setdefault((above, below), name)
    if not edges:
        return [None] * len(verdict.parent)
    logits = forest.answers([parent for parent, _ in edges], logits)
    raw = torch.log_softmax(logits, -1)
    logprobs = raw.gather(-1, torch.tensor([token for _, token in edges], device=raw.device)[:, None])[:, 0].tolist()
    if any(map(math.isnan, logprobs)):
        raise NonFiniteError("the target's logits contain NaN; check the checkpoint, or load it with dtype float32")
    top: list[TopLogprobs] = [[]] * len(edges)
    warped_top = top
    if request.top_logprobs:
        edited = logits if penalties is None else penalties(logits, forest, [parent for parent, _ in edges])
        top = _best(raw, request.top_logprobs)
        warped_top = _best(warp(edited, request.params).log(), request.top_logprobs)
    kinds = dict(zip(zip(verdict.parent, verdict.token, strict=True), verdict.kind, strict=True))
    said = {}
    for i, (edge, node) in enumerate(edges.items()):
        kind = kinds.get(edge, "accepted")
        said[edge] = EmittedToken(edge[1], kind, logprobs[i], verdict.warped[edge], top[i], warped_top[i])
        if node != TRUNK:
            forest.emitted[node] = said[edge]
    return [
        None if token == FINISHED else said[parent, token]
        for parent, token in zip(verdict.parent, verdict.token, strict=True)
    ]


def _round(forest: Forest, verdict: Verdict, trunk: list[int], grown: Forest, request: Request, position: int) -> Round:
    """The round's record; feeds what is certain to the request's ending, which may cut it."""
    ending = request.ending
    said = [forest.emitted[node] for node in trunk if node in forest.emitted]
    over = grown.room == 0 or ending.interrupted()
    beams: list[Beam] = []
    best = grown.roots[0]
    if over and request.answers.n_best:
        emitted = [*request.emitted, *said]
        beams, best = _ranked(grown, emitted, request.answers)
    if over or len(grown.roots) == 1:
        said += [grown.emitted.pop(node) for node in grown.path(best) if node in grown.emitted]
    tokens = [entry.token for entry in said]
    count = ending.feed(tokens)
    if request.answers.n_best:
        request.emitted += said
    if over and ending.reason is None:
        ending.reason = "stop" if best in grown.finished else "cancelled"
    kinds = [entry.kind for entry in said[:count]]
    return Round(
        position=position,
        tokens=tokens[:count],
        logprobs=[entry.logprob for entry in said[:count]],
        warped_logprobs=[entry.warped for entry in said[:count]],
        top_logprobs=[entry.top for entry in said[:count]] if request.top_logprobs else [],
        warped_top_logprobs=[entry.warped_top for entry in said[:count]] if request.top_logprobs else [],
        kinds=kinds,
        drafted=len(forest) - forest.fresh - sum(root >= forest.fresh for root in forest.live),
        draws=sum(len(proposal.nodes) for made in forest.proposals.values() for proposal in made)
        + sum(len(layer.draws) for layer in forest.layers),
        accepted=kinds.count("accepted"),
        depth_accepted=verdict.accepted,
        attempted=verdict.attempted,
        draft_seconds=0.0,
        verify_seconds=0.0,
        sampling_seconds=0.0,
        other_seconds=0.0,
        target_rows=0.0,
        draft_rows=0.0,
        draft_forwards=0,
        forest_token=forest.token,
        forest_parent=forest.parent,
        forest_path=trunk,
        roots=verdict.token,
        root_parents=verdict.parent,
        siblings=_siblings(forest, trunk),
        layers=verdict.layers,
        beams=beams,
    )


def _ranked(forest: Forest, emitted: list[EmittedToken], answers: Answers) -> tuple[list[Beam], int]:
    """The best hypotheses and the root of the first; `emitted` is what all of them begin with."""
    penalty = answers.length_penalty
    score = {root: forest.score[root] / forest.length(root) ** penalty for root in forest.roots}
    ranked = sorted(forest.roots, key=lambda root: -score[root])  # of equals the first
    beams = []
    for root in ranked[: answers.n_best]:
        said = [*emitted, *(forest.emitted[node] for node in forest.path(root) if node in forest.emitted)]
        beams.append(
            Beam([entry.token for entry in said], [entry.logprob for entry in said], forest.score[root], score[root])
        )
    return beams, ranked[0]


def _siblings(forest: Forest, path: Sequence[int]) -> list[tuple[int, int]]:
    """(place, draws) of each layer of drafts along an accepted path: the place that was accepted, or as many as drawn.

    The last layer is the one that ended the round; nothing where the path ends without drafts, and of beams.
    """
    found = []
    for i, node in enumerate(path):
        proposals = forest.proposals.get(node)
        if proposals is not None:
            drawn = [child for proposal in proposals for child in proposal.nodes]
            found.append((drawn.index(path[i + 1]) if i + 1 < len(path) else len(drawn), len(drawn)))
    return found


def _best(log_probs: Tensor, count: int) -> list[TopLogprobs]:
    """The `count` most probable tokens of each row [n, V] with their log-probabilities, impossible ones left out."""
    best = log_probs.topk(min(count, log_probs.shape[-1]), -1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [[(i, value) for i, value in zip(ids, values, strict=True) if value > -math.inf] for ids, values in pairs]
