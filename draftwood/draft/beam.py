"""Drafting beams from any source of logits: layers of the draft's joint of beam and token (DSBD §3, Algorithm 1).

How a joint is made and drawn from is known by verify/joint.py, which the target's side uses too.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from draftwood.core.forest import TRUNK, DraftedLayer, Forest
from draftwood.core.row_tops import LogitsRow
from draftwood.core.topology import trunk_node
from draftwood.depth import LOAD, NOTHING, DepthController, DraftState
from draftwood.draft.base import MOST_FORCED, Drafter, Drafting, Proposer, Source
from draftwood.draft.blocks import BlockSource
from draftwood.draft.row_memory import LIKELIEST, LONGEST, Mixture, RowMemory
from draftwood.draft.shared import SharedSession
from draftwood.runtime.session import Answer, Run
from draftwood.sampling.distributions import Distributions
from draftwood.sampling.rows import Leading, as_rows, leading, log_prob, normalised
from draftwood.verify.beam_search import BeamSearch
from draftwood.verify.joint import Seeded, joint_of_likeliest
from draftwood.verify.layers import extended, joint_over

KNOWN_TOKENS = 64  # of a row of the target that are drawn from
REST_TOKENS = 150  # a guess of how many tokens share what is left of a draft's distribution
BESIDE_A_SOURCE = 2  # tokens, at least, of a context that says more than a source does


@dataclass(slots=True)
class BeamDrafter(Drafter):
    """`width` draws per layer, W_S of the paper: with replacement, without, or with `search` the best continuations.

    `root_weights` "draft" weighs the round's beams by the draft's own joint q(x), as the paper does; "target" by the
    target's p(x), which is as exact: any positive numbers known before drafting are. Where q(x) is not known, since the
    round before drafted nothing, p(x) takes its place. Beams whose next token a grammar leaves no choice about need no
    forward of the draft; a layer of one such beam alone counts as none.

    If it `remembers`, what the source says is mixed with what the target said after the same last tokens (`RowMemory`),
    be that on another beam. Where that is all there is, or the controller does not want the source asked, a layer costs
    no forward.
    """

    source: Source | None  # None: the memory alone
    width: int
    replacement: bool = True
    warp: Literal["joint", "token"] = "joint"
    root_weights: Literal["draft", "target"] = "draft"
    search: BeamSearch | None = None
    remembers: bool = True  # without a source it always does
    memory: RowMemory = field(init=False, default_factory=RowMemory)
    _weight: dict[int, float] = field(init=False, default_factory=dict)  # node -> log q of its generated part
    _row: dict[int, LogitsRow] = field(init=False, default_factory=dict)  # node -> log q of the tokens after it
    _after: dict[int, tuple[int, float]] = field(init=False, default_factory=dict)  # root -> parent, log q of parent

    needs: ClassVar[frozenset[str]] = NOTHING

    def draft(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer) -> Drafting:
        nodes: Sequence[int] = forest.roots
        layer, state = 0, DraftState(0)
        while True:
            live = [node for node in nodes if forest.grows(node)]
            forced = [node for node in live if propose.only(forest, node) is not None]
            alone = len(nodes) == len(forced) == 1 and len(forest.layers) - layer < MOST_FORCED
            if not live or not (alone or (layer < limit and depth.deeper(state))):
                break
            # where the target's own answer is known there is no better draft
            asked = [node for node in live if node not in forest.known and node not in forced]
            said = yield from self._said(forest, asked, depth, propose)
            if not forest.layers:
                self._weigh(forest, said)
            memory = self.memory if self.remembers or self.source is None else None
            if asked and not said and memory is None:
                break
            rows = _Rows(memory, forest, live, forced, said, propose, whole=bool(depth.needs - LOAD))
            if rows.few and not rows.tells:
                break
            if not (alone or depth.keeps(partial(rows.sureness, nodes, self._weight))):
                break
            drafted, weights, fit = self._drawn(forest, nodes, rows)
            forest.layers.append(drafted)
            for outcome, weight in weights.items():
                node = forest.add_outcome(*outcome)
                self._weight[node] = weight
                if outcome[0] in forced:
                    forest.forced.add(node)
            nodes = drafted.nodes
            if alone:
                drafted.certain = True
                continue
            layer += 1
            state = DraftState(layer, nodes)
            if depth.needs - LOAD and fit is not None:
                row = {node: row for row, node in enumerate(live)}
                drawn = [node for node in nodes if node not in forest.finished]
                picked = [(row[forest.parent[node]], forest.token[node]) for node in drawn]
                state = DraftState(layer, nodes, fit, picked)

    def _said(
        self, forest: Forest, asked: Sequence[int], depth: DepthController, propose: Proposer
    ) -> Generator[Run, Answer, dict[int, LogitsRow]]:
        """The source's rows after some nodes, and after the parents of roots that are to be weighed."""
        source = self.source
        if source is None or not depth.asks or (asked and forest.position(asked[0]) >= source.context):
            return {}
        wanted = list(asked) if forest.layers else [*asked, *self._unknown(forest)]
        if not wanted:
            return {}
        answer = yield from source.answer(forest, wanted)
        tops = answer.tops if answer.logits.shape[-1] == propose.vocab_size else None  # else logits are cut or padded
        log_sums = [None] * len(wanted) if tops is None else tops.log_sums
        return dict(zip(wanted, map(LogitsRow, propose.fit(answer.logits), log_sums), strict=True))

    def _drawn(
        self, forest: Forest, nodes: Sequence[int], rows: _Rows
    ) -> tuple[DraftedLayer, dict[tuple[int, int], float], Tensor | None]:
        """The next layer below `nodes`, log q of its beams, and the logits [live nodes, V] that it was drawn from."""
        live, fit, params = rows.live, None, rows.propose.params
        random = Seeded(rows.propose.streams, "draft")
        if self.search is not None:
            q, before = None, [self._weight[node] for node in live]
            step = self.search.step(before, rows.leading, lambda row, token: token in forest.end)
            draws = [(live[row], token) for row, token in step.live]
            weights = dict(zip(draws, step.live_scores, strict=True))
            fit = rows.dense() if rows.whole else None
        else:
            if rows.few and self.warp == "joint":
                told, best = rows.told(), max(self._weight[node] for node in nodes)
                relative, after = [self._weight[node] - best for node in nodes], [told.get(node) for node in nodes]
                q = joint_of_likeliest(relative, after, nodes, rows.propose.vocab_size, params)
            else:
                fit = rows.dense()
                after_live = dict(zip(live, as_rows(fit), strict=True))
                self._row.update(after_live)
                q = joint_over(nodes, self._weight, after_live, params, self.warp)
            draws = q.draws(self.width, random, self.replacement)
            if fit is None:
                weights = {draw: self._weight[draw[0]] + _gain(told.get(draw[0]), draw[1]) for draw in draws}
            else:
                weights = extended(draws, self._weight, self._row)
        nodes = list(dict.fromkeys(forest.add_outcome(*draw) for draw in draws))
        return DraftedLayer(q, draws, nodes), weights, fit

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        """Carry the roots' weights into the next round's `forest`."""
        if self.source is not None:
            self.source.commit(trunk, kept, forest)
        if self.remembers or self.source is None:
            self.memory.learn(target)
        weight, row = self._weight, self._row
        self._weight, self._row, self._after = {}, {}, {}
        for root in forest.roots:
            if root < len(kept):  # a finished one that stays
                if kept[root] in weight:
                    self._weight[root] = weight[kept[root]]
                continue
            parent = forest.parent[root]
            before = trunk[-1] if parent == TRUNK else kept[parent]
            if before not in weight:
                continue
            if before in row:
                self._weight[root] = weight[before] + log_prob(row[before], forest.token[root])
            else:  # a bonus: the draft has not seen its parent
                self._after[root] = parent if parent != TRUNK else trunk_node(len(forest.trunk) - 1), weight[before]

    def _unknown(self, forest: Forest) -> list[int]:
        """Parents whose draft logits are needed to weigh the roots; none where a run would undo what was verified.

        Nor where drafts hang below roots alone.
        """
        without = self.source is None or isinstance(self.source, SharedSession | BlockSource)
        if self.root_weights == "target" or len(forest.roots) == 1 or without:
            return []
        return list(dict.fromkeys(parent for parent, _ in self._after.values()))

    def _weigh(self, forest: Forest, said: Mapping[int, LogitsRow]) -> None:
        """log q of every root; log p of all of them where one is not known, or impossible under the draft."""
        for root, (parent, weight) in self._after.items():
            if parent in said:
                self._weight[root] = weight + log_prob(normalised([said[parent]])[0], forest.token[root])
        known = all(self._weight.get(root, -math.inf) > -math.inf for root in forest.roots)
        if self.root_weights == "target" or not known:
            self._weight = {root: forest.score[root] for root in forest.roots}


def _gain(row: Leading | None, token: int) -> float:
    """The log-probability of a token; 0 of an end that stays."""
    return 0.0 if row is None else row.log_probs[row.tokens.index(token)]


@dataclass(slots=True)
class _Rows:
    """The draft's distributions after the `live` nodes of a layer."""

    memory: RowMemory | None
    forest: Forest
    live: Sequence[int]
    forced: Sequence[int]
    said: Mapping[int, LogitsRow]  # the source's
    propose: Proposer
    whole: bool = False  # whether somebody reads whole rows
    _dense: Tensor | None = field(init=False, default=None)
    _mixtures: dict[int, Mixture] = field(init=False, default_factory=dict)
    _likeliest: dict[int, Leading] = field(init=False, default_factory=dict)

    def _mixture(self, node: int) -> Mixture:
        """The memory's distribution after a node."""
        found = self._mixtures.get(node)
        if found is None:
            found = self._mixtures[node] = Mixture({}, 1.0)
            if self.memory is not None:
                self.memory.read(self.forest)
                shortest = BESIDE_A_SOURCE if node in self.said else 1
                found = self._mixtures[node] = self.memory.after(self.forest.tail(node, LONGEST), shortest)
        return found

    def likeliest(self, node: int, count: int) -> Leading:
        """The `count` most probable tokens or more after a node, untouched by edits: the target's own where known."""
        found = self._likeliest.get(node)
        if found is None or len(found.tokens) < count:
            known, said = self.forest.known.get(node), self.said.get(node)
            count = max(count, LIKELIEST)
            if known is not None:
                found = leading(normalised([known]), count)[0]
            else:
                other = None if said is None else leading(normalised([said]), count)[0]
                found = self._mixture(node).likeliest(other, count)
            self._likeliest[node] = found
        return found

    def leading(self, count: int) -> list[Leading]:
        """The `count` most probable tokens after each node."""
        if self.propose.edit is None and not self.whole:
            return [self.likeliest(node, count) for node in self.live]
        return leading(as_rows(self.dense()), count)

    @property
    def few(self) -> bool:
        """Whether no more than a few tokens after each node need be drafted: what the memory tells, and no model."""
        return not (self.said or self.whole) and self.propose.edit is None and self.memory is not None

    @property
    def tells(self) -> bool:
        """Whether the memory, or a row of the target itself, tells a token after some node."""
        return any(self._told(node).tokens for node in self.live)

    def told(self) -> dict[int, Leading]:
        """After each node the tokens that the memory tells, or of the target's own row the most probable."""
        return {node: self._told(node) for node in self.live}

    def _told(self, node: int) -> Leading:
        return self.likeliest(node, KNOWN_TOKENS if node in self.forest.known else LIKELIEST)

    def dense(self) -> Tensor:
        """Log-probabilities [live nodes, V]."""
        if self._dense is not None:
            return self._dense
        rows: dict[int, Tensor] = {node: row.logits for node, row in self.forest.known.items() if node in self.live}
        like = next((row.logits for row in self.said.values()), next(iter(rows.values()), self.propose.blank))
        if len(like) != self.propose.vocab_size:
            like = like.new_zeros(self.propose.vocab_size)
        for node in self.live:
            if node in rows:
                continue
            if node in self.forced:  # whatever its row says: one token is left of it
                rows[node] = torch.zeros_like(like)
            else:
                said = self.said.get(node)
                rows[node] = self._mixture(node).dense(None if said is None else said.logits, like)
        logits = torch.stack([rows[node] for node in self.live])
        self._dense = torch.log_softmax(self.propose.edited(self.forest, self.live, logits), -1)
        return self._dense

    def sureness(self, nodes: Sequence[int], weight: Mapping[int, float], least: float) -> float:
        """e^-H of the draft's entropy H, in nats, of the next token given the beam; 1 where the target's own is known.

        The conditional entropy of their joint: beams count by their weights, as `weight` has them in logarithms. What
        lies below `least` is not told exactly.
        """
        best = max(weight[node] for node in nodes)
        shares = {node: math.exp(weight[node] - best) for node in nodes}
        whole, nats = math.fsum(shares.values()), 0.0
        for node in sorted(self.live, key=lambda node: -shares[node]):
            if node not in self.forest.known and node not in self.forced:
                nats += shares[node] / whole * self._entropy(self.likeliest(node, LIKELIEST))
                if math.exp(-nats) < least:
                    break
        return math.exp(-nats)

    def _entropy(self, row: Leading) -> float:
        """The entropy of a distribution, in nats, as if what is not told of it lay on REST_TOKENS tokens alike."""
        probs = [math.exp(log_prob) for log_prob in row.log_probs]
        rest = max(0.0, 1.0 - math.fsum(probs))
        nats = -math.fsum(prob * log_prob for prob, log_prob in zip(probs, row.log_probs, strict=True))
        return nats - rest * math.log(rest / REST_TOKENS) if rest > 0 else nats
