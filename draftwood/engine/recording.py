"""Turns what happened in a round into a `Round`: emitted tokens, their log-probabilities, times and counts."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

from draftwood.core.forest import FINISHED, TRUNK, Forest, Verdict
from draftwood.core.records import Beam, EmittedToken, Ranking, Round, TopLogprobs
from draftwood.core.row_tops import LogitsRow
from draftwood.engine.stopping import Ending
from draftwood.errors import NonFiniteError
from draftwood.runtime.session import Answer, Run, Session
from draftwood.sampling.distributions import Distributions
from draftwood.sampling.rows import largest, log_prob
from draftwood.verify.bound import bounds

BOUNDED_ROUNDS = 16  # of so many rounds, by the place of its root, one is compared with what any rule could accept

T = TypeVar("T")


@dataclass(slots=True)
class Clock:
    """Seconds and rows of one round. Time between forwards counts as sampling while drafting and verifying run."""

    began: float = field(default_factory=perf_counter)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    sampling_seconds: float = 0.0
    target_rows: float = 0.0
    draft_rows: float = 0.0
    draft_forwards: int = 0

    def count(self, run: Run, answer: Answer, target: Session) -> None:
        """Add a forward: drafting with the target's own layers takes drafting time, but rows of the target."""
        if run.drafts:
            self.draft_seconds += answer.seconds
        else:
            self.verify_seconds += answer.seconds
        if run.session is target:
            self.target_rows += answer.rows
        else:
            self.draft_rows += answer.rows
            self.draft_forwards += answer.forwards

    @property
    def other_seconds(self) -> float:
        """Seconds of the round's wall time beside the counted ones: bookkeeping, and waiting for other requests."""
        known = self.draft_seconds + self.verify_seconds + self.sampling_seconds
        return max(0.0, perf_counter() - self.began - known)


@dataclass(slots=True)
class RoundRecorder:
    """Records the rounds of one request, feeds its `ending` and says when it is over.

    What all hypotheses share is emitted at once, the rest of the best one when none goes on.
    """

    target: Session
    ending: Ending
    ranking: Ranking
    most: int  # layers that a round may draft; 0: no cap, so alpha says nothing
    top_logprobs: int = 0
    _clock: Clock = field(init=False, default_factory=Clock)
    _tokens: dict[int, EmittedToken] = field(init=False, default_factory=dict)  # node -> what to emit, once certain
    _emitted: list[EmittedToken] = field(init=False, default_factory=list)  # where hypotheses are to be returned

    @property
    def over(self) -> bool:
        return self.ending.reason is not None

    def timed(self, work: Generator[Run, Answer, T]) -> Generator[Run, Answer, T]:
        """Do a round's work and take its times."""
        clock = self._clock = Clock()
        answer: Answer | None = None
        while True:
            began = perf_counter()
            try:
                run = next(work) if answer is None else work.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                clock.sampling_seconds += perf_counter() - began
            answer = yield run
            clock.count(run, answer, self.target)

    def finish_round(
        self,
        forest: Forest,
        verdict: Verdict,
        target: Distributions,
        trunk: Sequence[int],
        kept: Sequence[int],
        grown: Forest,
    ) -> Round:
        """The record of a round from `forest` to `grown`; feeds what is certain to the ending, which may cut it."""
        roots = self._judged(forest, verdict, target)
        emitted = [self._tokens[node] for node in trunk if node in self._tokens]
        self._tokens = {new: self._tokens[node] for new, node in enumerate(kept) if node in self._tokens}
        self._tokens.update((root, token) for root, token in zip(grown.roots, roots, strict=True) if token is not None)
        ends, cut = grown.room == 0, self.ending.interrupted()
        beams: list[Beam] = []
        best = grown.roots[0]
        ranked = bool((ends or cut) and self.ranking.n_best)
        if ranked:
            beams, best = self._ranked(grown, [*self._emitted, *emitted])
        decided = ends or ranked or len(grown.roots) == 1  # else the roots are alternatives, of which none was chosen
        if decided:
            emitted += [self._tokens.pop(node) for node in grown.path(best) if node in self._tokens]
        count = self.ending.feed([token.token for token in emitted])
        if self.ranking.n_best:
            self._emitted += emitted
        if (ends or cut) and self.ending.reason is None:
            self.ending.reason = "stop" if decided and best in grown.finished else "cancelled"
        visible, clock = emitted[:count], self._clock
        path = forest.path(verdict.parent[0])
        certain = sum(node in forest.forced for node in path)
        if forest.layers:
            certain = sum(layer.certain for layer in forest.layers[: verdict.accepted])
        forced = sum(node >= forest.fresh for node in forest.forced)
        top = visible if self.top_logprobs else []
        kinds = [token.kind for token in visible]
        return Round(
            position=forest.position(forest.live[0]),
            tokens=[token.token for token in visible],
            logprobs=[token.logprob for token in visible],
            warped_logprobs=[token.warped for token in visible],
            top_logprobs=[token.top for token in top],
            warped_top_logprobs=[token.warped_top for token in top],
            kinds=kinds,
            drafted=len(forest) - forest.fresh - sum(root >= forest.fresh for root in forest.live) - forced,
            draws=sum(len(proposal.nodes) for made in forest.proposals.values() for proposal in made)
            + sum(len(layer.draws) for layer in forest.layers if not layer.certain)
            - (0 if forest.layers else forced),
            accepted=kinds.count("accepted"),
            depth_accepted=verdict.accepted - certain,
            attempted=verdict.attempted - certain,
            draft_seconds=clock.draft_seconds,
            verify_seconds=clock.verify_seconds,
            sampling_seconds=clock.sampling_seconds,
            other_seconds=clock.other_seconds,
            target_rows=clock.target_rows,
            draft_rows=clock.draft_rows,
            draft_forwards=clock.draft_forwards,
            forest_token=forest.token,
            forest_parent=forest.parent,
            forest_path=list(trunk),
            roots=verdict.token,
            root_parents=verdict.parent,
            siblings=_siblings(forest, trunk),
            layers=verdict.layers,
            most=self.most,
            beams=beams,
            text=self.ending.new_text(),
            finish=self.ending.reason,
            forced=forced,
            bounds=bounds(forest, path, target) if forest.position(forest.live[0]) % BOUNDED_ROUNDS == 0 else (),
        )

    def _judged(self, forest: Forest, verdict: Verdict, target: Distributions) -> list[EmittedToken | None]:
        """The token to emit for each new root (None: it emits nothing); notes those of the accepted drafts too."""
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
        row = {parent: i for i, parent in enumerate(dict.fromkeys(parent for parent, _ in edges))}
        logprobs = target.logprobs(list(edges))
        if any(map(math.isnan, logprobs)):
            raise NonFiniteError("the target's logits contain NaN; check the checkpoint, or load it with dtype float32")
        top: list[TopLogprobs] = [[]] * len(row)
        warped_top = top
        if self.top_logprobs:
            top = likeliest(target.normalised(list(row)), self.top_logprobs)
            warped_top = [
                [(token, logprob) for token in tokens if (logprob := target.log_prob(parent, token)) > -math.inf]
                for parent, likely in zip(row, top, strict=True)
                for tokens in (
                    largest(target.probs(parent)[None], self.top_logprobs, 0.0)
                    if target.edits
                    else [[token for token, _ in likely]]  # a temperature and truncation leave them in their order
                )
            ]
        kinds = dict(zip(zip(verdict.parent, verdict.token, strict=True), verdict.kind, strict=True))
        judged = {}
        for ((parent, token), node), logprob in zip(edges.items(), logprobs, strict=True):
            kind = kinds.get((parent, token), "accepted")
            if forest.child.get((parent, token)) in forest.forced:
                kind = "forced"
            warped = verdict.warped[parent, token]
            i = row[parent]
            judged[parent, token] = EmittedToken(token, kind, logprob, warped, top[i], warped_top[i])
            if node != TRUNK:
                self._tokens[node] = judged[parent, token]
        return [
            None if token == FINISHED else judged[parent, token]
            for parent, token in zip(verdict.parent, verdict.token, strict=True)
        ]

    def _ranked(self, forest: Forest, emitted: list[EmittedToken]) -> tuple[list[Beam], int]:
        """The best hypotheses and the root of the first; `emitted` is what all of them begin with."""
        penalty = self.ranking.length_penalty
        score = {root: forest.score[root] / forest.length(root) ** penalty for root in forest.roots}
        ranked = sorted(forest.roots, key=lambda root: -score[root])  # of equals the first
        beams = []
        for root in ranked[: self.ranking.n_best]:
            whole = [*emitted, *(self._tokens[node] for node in forest.path(root) if node in self._tokens)]
            tokens, logprobs = [token.token for token in whole], [token.logprob for token in whole]
            top = [token.top for token in whole] if self.top_logprobs else []
            beams.append(Beam(tokens, logprobs, forest.score[root], score[root], top_logprobs=top))
        return beams, ranked[0]


def _siblings(forest: Forest, path: Sequence[int]) -> list[tuple[int, int]]:
    """(place, draws) of each layer of drafts along an accepted path: the place that was accepted, or as many as drawn.

    The last layer is the one that ended the round; nothing where the path ends without drafts, and of beams.
    """
    layers = []
    for i, node in enumerate(path):
        drawn = [child for proposal in forest.proposals.get(node, ()) for child in proposal.nodes]
        if drawn and drawn[0] not in forest.forced:
            layers.append((drawn.index(path[i + 1]) if i + 1 < len(path) else len(drawn), len(drawn)))
    return layers


def likeliest(rows: Sequence[LogitsRow], count: int) -> list[TopLogprobs]:
    """Of each row, as `normalised` gives it, the `count` most probable tokens with their log-probabilities.

    Impossible ones are left out.
    """
    return [
        [(token, log_prob(row, token)) for token in tokens]
        for row in rows
        for tokens in largest(row.logits[None], count)
    ]
