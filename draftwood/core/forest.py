"""All tokens in flight for one request: one flat data structure for chains, trees and beams.

Pure data: tokens, parents, what was drawn from which distribution and which sequences have ended. Knows no models,
caches, masks and randomness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from draftwood.core.records import BeamLayer, Kind
from draftwood.core.row_tops import LogitsRow
from draftwood.core.topology import TRUNK as TRUNK

FINISHED = -1  # the only 'token' of a finished sequence: it stays as it is


class StopCheck(Protocol):
    """A test that is True if a sequence ends with a stop string.

    It is given the last `reach` tokens, of which only the last `new`, the generated ones, may be part of the string.
    """

    @property
    def reach(self) -> int: ...

    def __call__(self, tokens: Sequence[int], new: int) -> bool: ...


@dataclass(slots=True)
class Proposal:
    """One distribution and the sequence of nodes drawn from it, in drawn order and with multiplicity.

    `q` is a probability vector [V]; None means that every node was proposed deterministically (a point mass).
    Without replacement the i-th draw follows q without the draws before it, renormalised; `q` itself stays as
    it was before the first draw.
    """

    q: Tensor | None
    nodes: list[int]
    replacement: bool = True


@dataclass(slots=True)
class DraftedLayer:
    """A layer of beams: draws (node of the layer before, token or FINISHED) in order and with multiplicity, from `q`.

    `q` is the draft's joint distribution over beams and tokens (verify/joint.py); None where the layer was chosen
    without chance.
    """

    q: Any
    draws: list[tuple[int, int]]
    nodes: list[int]  # distinct, in order of first appearance; FINISHED is the finished node itself
    certain: bool = False  # the only beam's only token that a grammar allows


@dataclass(slots=True)
class Forest:
    """The trunk (final tokens that every hypothesis shares) and the tree of nodes below it, parents before children.

    Node i holds token[i] at sequence position len(trunk) + depth[i]. Nodes [0, fresh) were forwarded through the target
    in earlier rounds or belong to finished hypotheses; nodes from `fresh` on wait for the target. `roots` stand for the
    hypotheses, one each: live ones, which are equally long, and finished ones. Drafting appends below the live ones.
    Of a live root that was itself a draft in the round before, the target's logits are `known`, and those below it.
    """

    trunk: list[int]
    prompt: int = 0  # tokens of the prompt
    longest: int = 1 << 30  # length in tokens at which every sequence ends
    end: frozenset[int] = frozenset()  # tokens that end a sequence
    stop: StopCheck | None = None  # the test for stop strings
    min_new_tokens: int = 0  # number of generated tokens at the beginning that are part of no stop string
    token: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)  # nodes whose sequence has ended: absorbing
    score: dict[int, float] = field(default_factory=dict)  # root -> log-likelihood of its generated part (beams)
    proposals: dict[int, list[Proposal]] = field(default_factory=dict)
    layers: list[DraftedLayer] = field(default_factory=list)  # drafts of beams, drawn layer by layer
    known: dict[int, LogitsRow] = field(default_factory=dict)  # node -> the target's logits after it
    forced: set[int] = field(default_factory=set)  # drafts that a grammar leaves no choice about: they are certain
    copied: set[int] = field(default_factory=set)  # drafts that lookup found
    fresh: int = 0
    child: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def from_prompt(
        cls,
        prompt: list[int],
        longest: int = 1 << 30,
        end: frozenset[int] = frozenset(),
        stop: StopCheck | None = None,
        min_new_tokens: int = 0,
    ) -> Forest:
        """The forest before the first round: the prompt as trunk, its last token as the only, pending, root."""
        if not prompt:
            raise ValueError("the prompt is empty; give at least one token")
        forest = cls(trunk=list(prompt[:-1]), prompt=len(prompt), longest=longest)
        forest.roots = [forest.add(TRUNK, prompt[-1])]
        forest.end, forest.stop, forest.min_new_tokens = (
            end,
            stop,
            min_new_tokens,
        )  # from here on: a prompt may end as an output does
        forest.score = {forest.roots[0]: 0.0}
        return forest

    def __len__(self) -> int:
        return len(self.token)

    def add(self, parent: int, token: int) -> int:
        """The node for `token` below `parent`; equal sequences are one node, so it may exist already."""
        node = self.child.get((parent, token))
        if node is None:
            node = self.child[parent, token] = len(self.token)
            self.token.append(token)
            self.parent.append(parent)
            self.depth.append(self.depth[parent] + 1 if parent >= 0 else 0)
            if token in self.end:
                self.finished.add(node)
        return node

    def ends(self, parent: int, token: int) -> bool:
        """True if `token` below `parent` ends the sequence: it is an end token, or the last one of a stop string."""
        if token in self.end:
            return True
        new = self.length(parent) + 1 - self.min_new_tokens
        return self.stop is not None and new > 0 and self.stop([*self.tail(parent, self.stop.reach - 1), token], new)

    def add_outcome(self, parent: int, token: int) -> int:
        """`add`, where FINISHED is the finished node itself and stop strings end a sequence, too."""
        if token == FINISHED:
            return parent
        known = len(self)
        node = self.add(parent, token)
        if node == known and self.ends(parent, token):
            self.finished.add(node)
        return node

    def propose(self, parent: int, tokens: list[int], q: Tensor | None, replacement: bool = True) -> list[int]:
        """Append the draws `tokens` from q [V] (None: point masses) below `parent`; returns their nodes as drawn."""
        nodes = [self.add(parent, token) for token in tokens]
        self.proposals.setdefault(parent, []).append(Proposal(q, nodes, replacement))
        return nodes

    def grows(self, node: int) -> bool:
        """True if drafts may be added below a node: it has not ended, and a draft and the target's token still fit."""
        return node not in self.finished and self.position(node) + 2 < self.longest

    def position(self, node: int) -> int:
        """Place of a node in the sequence, 0-based."""
        return len(self.trunk) + self.depth[node]

    def path(self, node: int) -> list[int]:
        """Nodes from the trunk down to `node`, both ends included."""
        path = []
        while node != TRUNK:
            path.append(node)
            node = self.parent[node]
        path.reverse()
        return path

    def sequence(self, node: int) -> list[int]:
        """All tokens from the beginning of the prompt to `node`."""
        return self.trunk + [self.token[n] for n in self.path(node)]

    def tail(self, node: int, count: int) -> list[int]:
        """The last tokens of a sequence, up to and with `node`: at most `count`."""
        tail: list[int] = []
        while node != TRUNK and len(tail) < count:
            tail.append(self.token[node])
            node = self.parent[node]
        tail.reverse()
        return self.trunk[max(0, len(self.trunk) + len(tail) - count) :] + tail if len(tail) < count else tail

    def length(self, node: int) -> int:
        """The number of generated tokens up to `node`."""
        return self.position(node) + 1 - self.prompt

    @property
    def unforwarded(self) -> range:
        """The nodes that wait for the target."""
        return range(self.fresh, len(self))

    @property
    def live(self) -> list[int]:
        """The roots that go on."""
        return [root for root in self.roots if root not in self.finished] if self.finished else self.roots

    @property
    def room(self) -> int:
        """The number of tokens that live hypotheses may still grow by; 0 when all are finished."""
        live = self.live
        return self.longest - self.position(live[0]) - 1 if live else 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision of verification: the next roots. Root i is `token[i]` below node `parent[i]`, or that node if
    FINISHED.

    Drafts on the way to a parent are accepted; `kind[i]` says how root i itself came about. `accepted` of the
    `attempted` layers of drafts were accepted. Beams have joint log-likelihoods `score` and what happened in `layers`.
    """

    parent: list[int]
    token: list[int]
    kind: list[Kind]
    warped: dict[tuple[int, int], float]  # (parent, token) of accepted drafts and roots -> log-probability under T∘p
    accepted: int = 0
    attempted: int = 0
    score: Sequence[float] = ()
    layers: Sequence[BeamLayer] = ()
    known: Mapping[int, LogitsRow] = field(default_factory=dict)  # of nodes: the target's logits that may be used again


def advance(forest: Forest, verdict: Verdict) -> tuple[list[int], list[int], Forest]:
    """Grow the verdict's roots: (nodes that join the trunk, nodes kept below it, the next forest).

    The trunk grows by the nodes that all roots descend from. Kept nodes lead to roots, or their logits are known; they
    are renumbered 0, 1, ... in the next forest in the order given. New finished roots follow them, then the live roots
    that wait for the target. `forest` stays as it is.
    """
    known_logits = {**forest.known, **verdict.known}
    roots = list(zip(verdict.parent, verdict.token, strict=True))
    ended = [token != FINISHED and forest.ends(parent, token) for parent, token in roots]
    paths = [forest.path(parent) for parent in verdict.parent]
    shared = paths[0][: -1 if verdict.token[0] == FINISHED else None]  # a root is never a part of the trunk
    for path in paths[1:]:
        length = 0
        while length < min(len(shared), len(path)) and shared[length] == path[length]:
            length += 1
        shared = shared[:length]
    keep = {node for path in paths for node in path[len(shared) :]}
    known = ({forest.child.get(root, TRUNK) for root in roots} & known_logits.keys()) - forest.finished
    if known:  # with all below them
        for node in range(len(forest)):
            if forest.parent[node] in known and node in known_logits and node not in forest.finished:
                known.add(node)
        keep |= known
    kept = sorted(keep)
    grown = Forest(forest.trunk + [forest.token[node] for node in shared], forest.prompt, forest.longest)
    renumbered = dict.fromkeys(shared[-1:], TRUNK)
    for node in kept:
        new = renumbered[node] = grown.add(renumbered.get(forest.parent[node], TRUNK), forest.token[node])
        if node in forest.finished:
            grown.finished.add(new)
        if node in known:
            grown.known[new] = known_logits[node]
    for (parent, token), over in zip(roots, ended, strict=True):
        if over:
            grown.finished.add(grown.add(renumbered[parent], token))
    grown.fresh = len(grown)
    grown.roots = [
        renumbered[parent] if token == FINISHED else grown.add(renumbered[parent], token) for parent, token in roots
    ]
    grown.score = dict(zip(grown.roots, verdict.score, strict=False))
    # Only now: all these sequences have been asked already
    grown.end, grown.stop, grown.min_new_tokens = forest.end, forest.stop, forest.min_new_tokens
    return shared, kept, grown
