"""All tokens in flight for one request: one flat data structure for chains, trees and beams.

Pure data. Knows tokens, parents and what was drawn from which distribution; refuses to know models, caches,
masks and randomness.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

TRUNK = -1  # parent of a node that hangs directly on the trunk


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
class Forest:
    """The trunk (final tokens that every live node shares) and the nodes that hang on it, parents before children.

    Node i holds token[i] at sequence position len(trunk) + depth[i]. Nodes [0, fresh) were forwarded through the
    target in earlier rounds (inner nodes of live hypotheses); nodes from `fresh` on wait for the target. `roots`
    are the leaves that stand for the live hypotheses, one each; drafting appends below them.
    """

    trunk: list[int]
    token: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    proposals: dict[int, list[Proposal]] = field(default_factory=dict)
    fresh: int = 0
    child: dict[tuple[int, int], int] = field(default_factory=dict)

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
        return node

    def propose(self, parent: int, tokens: list[int], q: Tensor | None, replacement: bool = True) -> list[int]:
        """Append the draws `tokens` from q [V] (None: point masses) below `parent`; returns their nodes as drawn."""
        nodes = [self.add(parent, token) for token in tokens]
        self.proposals.setdefault(parent, []).append(Proposal(q, nodes, replacement))
        return nodes

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


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided: the next roots. Root i is `token[i]` below the accepted node `parent[i]`.

    The accepted drafts are the ancestors of the parents. `warped` holds, per token emitted along a single path
    (the drafts accepted, then the root), its log-probability under the warped target.
    """

    parent: list[int]
    token: list[int]
    warped: list[float]


def plant(prompt: list[int]) -> Forest:
    """The forest before the first round: the prompt as trunk, its last token as the only, pending, root."""
    if not prompt:
        raise ValueError("the prompt is empty; give at least one token")
    forest = Forest(trunk=list(prompt[:-1]))
    forest.roots = [forest.add(TRUNK, prompt[-1])]
    return forest


def advance(forest: Forest, verdict: Verdict) -> tuple[list[int], list[int], Forest]:
    """Grow the verdict's roots: (nodes that join the trunk, nodes kept below it, the next forest).

    The trunk grows by the nodes that all roots descend from. Kept nodes are renumbered 0, 1, ... in the next forest
    in the order given; the new roots follow them, pending. `forest` itself is left as it was, except that
    the next forest owns its trunk list, grown in place.
    """
    paths = [forest.path(parent) for parent in verdict.parent]
    shared = paths[0]
    for path in paths[1:]:
        length = 0
        while length < min(len(shared), len(path)) and shared[length] == path[length]:
            length += 1
        shared = shared[:length]
    kept = sorted({node for path in paths for node in path[len(shared) :]}) if len(paths) > 1 else []
    trunk = forest.trunk
    trunk.extend([forest.token[node] for node in shared])
    grown = Forest(trunk=trunk)
    renumbered = {node: TRUNK for node in shared[-1:]}
    for node in kept:
        parent = forest.parent[node]
        renumbered[node] = grown.add(renumbered.get(parent, TRUNK), forest.token[node])
    grown.fresh = len(kept)
    grown.roots = [
        grown.add(renumbered[parent], token) for parent, token in zip(verdict.parent, verdict.token, strict=True)
    ]
    return shared, kept, grown
