"""The protocol of drafters, and how draft logits become proposed nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor

from draftwood.core.forest import Forest
from draftwood.core.row_tops import RowTops
from draftwood.depth import NOTHING, DepthController
from draftwood.draft.suffix import EarlierAnswers
from draftwood.models.heads.state_head import ABSENT_LOGIT
from draftwood.runtime.session import Answer, Run
from draftwood.sampling.distributions import Distributions, Edit, Streams, draw_distinct, draw_iid, warped
from draftwood.sampling.grammar import Grammar
from draftwood.sampling.params import SamplingParams
from draftwood.sampling.rows import largest
from draftwood.verify.coupled import perturb

Drafting: TypeAlias = Generator[Run, Answer, None]  # yields model runs, which are answered
ChildCounts: TypeAlias = Callable[[Sequence[int], Tensor], Sequence[int]]  # (nodes, q [n, V]) -> children of each node
MOST_FORCED = 64  # certain tokens that are looked for in a round: each is a row of the target's forward


@dataclass(slots=True)
class Proposer:
    """Turns draft logits into children: drawn from q = T∘draft, or the best where the target's choice is deterministic.

    Greedy decoding proposes the draft's top tokens; coupled verification the top of log q plus the target's own noise;
    both are point masses. Otherwise draws follow q with or without replacement, and q is kept for verification.
    Where a grammar allows one token alone, that is the only child: certain, and drafted for nothing.
    """

    params: SamplingParams
    streams: Streams
    vocab_size: int  # of the target
    edit: Edit | None = None  # penalties and biases
    coupled: bool = False
    grammar: Grammar | None = None

    def __call__(
        self,
        forest: Forest,
        nodes: Sequence[int],
        logits: Tensor,
        count: int | ChildCounts,
        replacement: bool,
        best: int = 0,
        tops: RowTops | None = None,
    ) -> list[int]:
        """Append up to `count` children below each node; logits [len(nodes), V_draft]. Returns them, distinct.

        A function says how many each node gets, before they are drawn; at temperature 0 q is the softmax of the logits.
        `best` of them are the draft's most probable tokens, the others are drawn from the rest (Hu et al., arXiv
        2502.18779: greedy drafts). `tops` is what is known of the logits.
        """
        children: list[int] = []
        if tops is not None and count == 1 and self.params.greedy and self.edit is None:
            for node, token in zip(nodes, tops.best, strict=True):
                children += forest.propose(node, [token], None)
            return children
        if self.grammar is not None:
            children = [child for node in nodes if (child := self.force(forest, node)) is not None]
        if children:
            free = [row for row, node in enumerate(nodes) if self.only(forest, node) is None]
            nodes, logits = [nodes[row] for row in free], logits[free]
            if not nodes:
                return children
        logits = self.edited(forest, nodes, self.fit(logits))
        if self.params.greedy:
            each = count if isinstance(count, int) else count(nodes, torch.softmax(logits, -1))
            return [*children, *self._propose_best(forest, nodes, logits, each)]
        q = warped(logits, self.params)
        each = count if isinstance(count, int) else count(nodes, torch.stack(list(q)))
        if self.coupled:
            rows = zip(q, nodes, strict=True)
            noisy = torch.stack([perturb(row, forest.position(node) + 1, self.streams) for row, node in rows])
            return [*children, *self._propose_best(forest, nodes, noisy, each, 0.0)]
        count = each if isinstance(each, int) else max(each)
        if best:
            return self._beside_best(forest, nodes, q, count, best)
        if count < 2:
            replacement = True
        drawn = (draw_iid if replacement else draw_distinct)(q, count, self.streams) if count else []
        for row, (node, tokens) in enumerate(zip(nodes, _cut(drawn, each), strict=False)):
            if tokens:
                children += forest.propose(node, tokens, q[row], replacement)
        return list(dict.fromkeys(children))

    def _propose_best(
        self,
        forest: Forest,
        nodes: Sequence[int],
        logits: Tensor,
        counts: int | Sequence[int],
        above: float = -math.inf,
    ) -> list[int]:
        """Children that are the largest of logits [len(nodes), V], as point masses; `above` as of `largest`."""
        most = counts if isinstance(counts, int) else max(counts)
        children: list[int] = []
        for node, tokens in zip(nodes, _cut(largest(logits, most, above) if most else [], counts), strict=False):
            if tokens:
                children += forest.propose(node, tokens, None)
        return children

    def _beside_best(
        self, forest: Forest, nodes: Sequence[int], q: Sequence[Tensor], count: int, best: int
    ) -> list[int]:
        """Children drawn from rows q [V] without its `best` most probable tokens, then those: point masses."""
        children: list[int] = []
        for row, node in zip(q, nodes, strict=True):
            top = [token for token in largest(row[None], best)[0] if row[token] > 0]
            rest = row.index_fill(0, torch.tensor(top, device=row.device), 0.0)
            total = float(rest.sum())
            if total > 0:
                rest = rest / total
                (drawn,) = draw_distinct(rest[None], count - best, self.streams)
                children += forest.propose(node, drawn, rest, count - best == 1)
            children += forest.propose(node, top, None)
        return list(dict.fromkeys(children))

    def edited(self, forest: Forest, nodes: Sequence[int], logits: Tensor) -> Tensor:
        """Logits [len(nodes), V] after penalties, biases and the grammar, each node seeing its own path."""
        return logits if self.edit is None else self.edit(logits, forest, nodes)

    @property
    def blank(self) -> Tensor:
        """An empty tensor where the models' logits are."""
        return torch.empty(0, device=None if self.grammar is None else self.grammar.device)

    def only(self, forest: Forest, node: int) -> int | None:
        """The token that must follow a node, where a grammar leaves no choice."""
        if self.grammar is None or node in forest.finished:
            return None
        return self.grammar.allowed(forest, node).only

    def follow(self, forest: Forest, node: int, token: int, copied: bool = True) -> list[int]:
        """Append a token, which lookup has found if `copied`, below a node, a point mass, where the grammar lets it.

        The node for it, if any.
        """
        if self.grammar is not None and not self.grammar.allowed(forest, node).has(token):
            return []
        forced = self.force(forest, node)
        if forced is not None:
            return [forced]
        children = forest.propose(node, [token], None)
        if copied:
            forest.copied.update(children)
        return children

    def force(self, forest: Forest, node: int) -> int | None:
        """The child for the token that must follow a node; None where there is a choice."""
        token = self.only(forest, node)
        if token is None:
            return None
        child = forest.child.get((node, token))
        if child is None:
            (child,) = forest.propose(node, [token], None)
            forest.forced.add(child)
        return child

    def certain(self, forest: Forest, nodes: Sequence[int]) -> list[int]:
        """Append the chains of tokens that must follow some nodes; returns the chains' ends, or the nodes."""
        if self.grammar is None:
            return list(nodes)
        ends = []
        for node in nodes:
            while forest.grows(node) and len(forest.forced) < MOST_FORCED:
                child = self.force(forest, node)
                if child is None:
                    break
                node = child
            ends.append(node)
        return ends

    def complete(self, forest: Forest) -> None:
        """Append what must follow the leaves of a forest with one hypothesis."""
        if self.grammar is not None:
            self.certain(forest, [node for node in range(len(forest)) if node not in forest.proposals])

    def fit(self, logits: Tensor) -> Tensor:
        """Cut or pad [n, V_draft] to the target's vocabulary: padded vocabularies may differ."""
        extra = self.vocab_size - logits.shape[-1]
        if extra == 0:
            return logits
        if extra < 0:
            return logits[..., : self.vocab_size]
        return torch.nn.functional.pad(logits, (0, extra), value=ABSENT_LOGIT)


def _cut(rows: Sequence[list[int]], counts: int | Sequence[int]) -> Sequence[list[int]]:
    """The first `counts` of each row."""
    return rows if isinstance(counts, int) else [row[:n] for row, n in zip(rows, counts, strict=False)]


class Source(Protocol):
    """Where draft logits come from: a session on a draft model, or what stands for one (an early exit)."""

    @property
    def context(self) -> int:
        """Positions that it has room for; 0 where it cannot draft yet."""

    def answer(self, forest: Forest, nodes: Sequence[int], hidden: bool = False) -> Generator[Run, Answer, Answer]:
        """Logits [len(nodes), V] after each node and, on demand, the [len(nodes), D] that the head read for them.

        Yields the model runs that this takes; `hidden` of the answer is by layer, the head's input the only entry.
        """

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest) -> None:
        """Follow `advance`, as `Session.commit`."""


class Drafter(Protocol):
    """Appends nodes below the roots of a forest, yielding the model runs that it needs.

    `needs` says what else it reads, as a controller's does: 'target', the target's hidden states.
    """

    @property
    def needs(self) -> frozenset[str]: ...

    @property
    def reads(self) -> tuple[int, ...]:
        """Layers of the target whose output it reads: `target.read` of `commit`."""
        return ()

    def draft(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer) -> Drafting:
        """Draft at most `limit` layers; `depth` is asked before each."""

    def commit(self, trunk: Sequence[int], kept: Sequence[int], forest: Forest, target: Distributions) -> None:
        """Follow `advance`, as `Session.commit`; `forest` is the next one, `target` what verification read."""
        return None

    def lacks(self, forest: Forest) -> int:
        """Rows that the target must compute once more to show what drafting reads of it."""
        return 0

    def share(self, earlier: EarlierAnswers) -> None:
        """Use the engine's earlier answers, if the method asked for that; before the first round."""
        return None

    def finish(self, forest: Forest) -> None:
        """The request has come to its end."""
        return None


@dataclass(slots=True)
class CertainDrafter(Drafter):
    """Appends what a grammar leaves no choice about, and nothing else: plain decoding through the same loop."""

    needs: ClassVar[frozenset[str]] = NOTHING

    def draft(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer) -> Drafting:
        propose.complete(forest)
        return
        yield  # a generator that yields nothing


@dataclass(slots=True)
class NoDrafter(Drafter):
    """Appends nothing: plain decoding of beams through the same loop."""

    needs: ClassVar[frozenset[str]] = NOTHING

    def draft(self, forest: Forest, depth: DepthController, limit: int, propose: Proposer) -> Drafting:
        return
        yield  # a generator that yields nothing
