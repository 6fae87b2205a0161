"""THE loop: draft, verify, advance, for every method. Written for one request; yields its model runs and its rounds.

Knows the order of things and nothing else: drafters append nodes, verifiers choose the next roots, sessions hold
keys and values, drivers (executor.py) answer the runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import Tensor

from draftwood.depth import DepthController
from draftwood.draft import Drafter, Proposer
from draftwood.errors import NonFiniteError
from draftwood.executor import Decoding
from draftwood.forest import Forest, Verdict, advance, plant
from draftwood.sampling import Penalties, SamplingParams, Streams, warp
from draftwood.session import Run, Session
from draftwood.text import Ending
from draftwood.trace import Round, TopLogprobs
from draftwood.verify import Verifier


@dataclass(slots=True)
class Request:
    """All that one decoding needs: sessions, the method's parts, sampling and where to end."""

    prompt: list[int]
    target: Session
    drafter: Drafter
    verify: Verifier
    depth: DepthController
    params: SamplingParams
    streams: Streams
    ending: Ending
    top_logprobs: int = 0

    def close(self) -> None:
        """Give all cache rows back."""
        for session in (self.target, *self.drafter.sessions):
            session.close()


def rounds(request: Request) -> Decoding[Round]:
    """Decode one request, yielding `Run` (please compute, send logits) and `Round` (news).

    After a round the next roots are chosen but not forwarded (pending): one target forward per round serves both.
    """
    target, drafter, streams, ending = request.target, request.drafter, request.streams, request.ending
    penalties = None
    if request.params.edits_logits:
        penalties = Penalties(request.params, target.model.vocab_size, len(request.prompt), target.model.device)
    propose = Proposer(
        request.params, streams, target.model.vocab_size, ending.end, penalties, request.verify.name == "coupled"
    )
    forest = plant(request.prompt)
    try:
        while ending.reason is None:
            began = perf_counter()
            before = _spent(target, drafter)
            position = len(forest.trunk)
            streams.at(position)
            request.depth.start(streams)
            yield from drafter.draft(forest, request.depth, ending.remaining - 1, propose)
            drafted = perf_counter()
            logits = yield Run(target, forest, range(forest.fresh, len(forest)))
            assert logits is not None
            answered = perf_counter()
            verdict = request.verify(forest, logits, request.params, penalties, streams)
            judged = perf_counter()
            trunk, kept, grown = advance(forest, verdict)
            target.commit(trunk, kept, forest)
            drafter.commit(trunk, kept, forest)
            news = _record(forest, verdict, trunk, logits, request, penalties, position)
            after = _spent(target, drafter)
            news.draft_seconds = after[0] - before[0]
            news.draft_rows = after[1] - before[1]
            news.draft_forwards = int(after[2] - before[2])
            news.verify_seconds = after[3] - before[3]
            news.target_rows = after[4] - before[4]
            news.sampling_seconds = max(0.0, drafted - began - news.draft_seconds) + judged - answered
            news.other_seconds = perf_counter() - judged + max(0.0, answered - drafted - news.verify_seconds)
            request.depth.observe(news)
            forest = grown
            yield news
    finally:
        request.close()


def _spent(target: Session, drafter: Drafter) -> tuple[float, float, int, float, float]:
    """(draft seconds, draft rows, draft forwards, target seconds, target rows) so far."""
    seconds, rows, forwards = 0.0, 0.0, 0
    for session in drafter.sessions:
        seconds += session.seconds
        rows += session.rows
        forwards += session.forwards
    return seconds, rows, forwards, target.seconds, target.rows


def _record(
    forest: Forest,
    verdict: Verdict,
    path: list[int],
    logits: Tensor,
    request: Request,
    penalties: Penalties | None,
    position: int,
) -> Round:
    """The round's record; feeds its tokens to the request's ending, which may cut them."""
    emitted = [forest.token[node] for node in path[1:]] + verdict.token
    rows = [node - forest.fresh for node in path]
    logits = logits[: len(rows)] if rows == list(range(len(rows))) else logits[rows]  # of the emitted tokens
    raw = torch.log_softmax(logits, -1)
    logprobs = raw.gather(-1, torch.tensor(emitted, device=raw.device)[:, None])[:, 0].tolist()
    if any(map(math.isnan, logprobs)):
        raise NonFiniteError("the target's logits contain NaN; check the checkpoint, or load it with dtype float32")
    top, warped_top = [], []
    if request.top_logprobs:
        edited = logits
        if penalties is not None:  # with the trunk as it was: by now it has grown by the path
            edited = penalties(logits, replace(forest, trunk=forest.trunk[:position]), path)
        top = _best(raw, request.top_logprobs)
        warped_top = _best(warp(edited, request.params).log(), request.top_logprobs)
    count = request.ending.feed(emitted)
    depth = len(path) - 1
    proposals = forest.proposals
    return Round(
        position=position,
        tokens=emitted[:count],
        logprobs=logprobs[:count],
        warped_logprobs=verdict.warped[:count],
        top_logprobs=top[:count],
        warped_top_logprobs=warped_top[:count],
        drafted=len(forest) - forest.fresh - len(forest.roots),
        draws=sum(len(proposal.nodes) for made in proposals.values() for proposal in made),
        accepted=min(depth, count),
        depth_accepted=depth,
        attempted=depth + (verdict.parent[0] in proposals),
        draft_seconds=0.0,
        verify_seconds=0.0,
        sampling_seconds=0.0,
        other_seconds=0.0,
        target_rows=0.0,
        draft_rows=0.0,
        draft_forwards=0,
        forest_token=forest.token,
        forest_parent=forest.parent,
        forest_path=path,
        roots=verdict.token,
    )


def _best(log_probs: Tensor, count: int) -> list[TopLogprobs]:
    """The `count` most probable tokens of each row [n, V] with their log-probabilities, impossible ones left out."""
    best = log_probs.topk(min(count, log_probs.shape[-1]), -1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [[(i, value) for i, value in zip(ids, values, strict=True) if value > -math.inf] for ids, values in pairs]
