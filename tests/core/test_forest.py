"""The forest: equal sequences are one node, draws keep order and multiplicity, verdicts grow the next roots."""

import random

import pytest
import torch

from draftwood.core.forest import TRUNK, Forest, Verdict, advance


def test_planting_leaves_the_last_token_pending() -> None:
    forest = Forest.from_prompt([5, 6, 7])
    assert forest.trunk == [5, 6]
    assert forest.roots == [0] and forest.token == [7]
    assert forest.position(0) == 2 and forest.sequence(0) == [5, 6, 7]
    with pytest.raises(ValueError, match="prompt is empty"):
        Forest.from_prompt([])


def test_equal_sequences_are_one_node_but_every_draw_counts() -> None:
    forest = Forest.from_prompt([0])
    q = torch.tensor([0.5, 0.5])
    nodes = forest.propose(0, [1, 0, 1], q)
    assert nodes == [1, 2, 1] and len(forest) == 3
    again = forest.propose(0, [1], None)
    assert again == [1]
    assert [proposal.nodes for proposal in forest.proposals[0]] == [[1, 2, 1], [1]]
    assert forest.propose(2, [1], q) == [3]  # the same token below another parent is another node
    assert forest.path(3) == [0, 2, 3] and forest.depth[3] == 2


def test_positions_are_trunk_plus_depth_not_index() -> None:
    forest = Forest.from_prompt([9, 9, 9])
    a, b = forest.propose(0, [1, 2], None)
    (c,) = forest.propose(a, [1], None)
    (d,) = forest.propose(b, [1], None)
    assert [forest.position(node) for node in (0, a, b, c, d)] == [2, 3, 3, 4, 4]


def test_one_root_takes_its_whole_path_into_the_trunk() -> None:
    forest = Forest.from_prompt([9])
    a, b = forest.propose(0, [1, 2], None)
    (c,) = forest.propose(b, [3], None)
    trunk, kept, grown = advance(forest, Verdict([c], [4], [], {}))
    assert (trunk, kept) == ([0, b, c], [])
    assert grown.trunk == [9, 2, 3] and grown.token == [4] and grown.roots == [0] and grown.fresh == 0
    assert forest.token[a] == 1  # the old forest still tells what was drafted


def test_several_roots_share_what_they_share() -> None:
    forest = Forest.from_prompt([9])
    (a,) = forest.propose(0, [1], None)
    b, c = forest.propose(a, [2, 3], None)
    (d,) = forest.propose(b, [4], None)
    trunk, kept, grown = advance(forest, Verdict([d, c, d], [5, 6, 7], [], {}))
    assert trunk == [0, a] and kept == [b, c, d]
    assert grown.trunk == [9, 1] and grown.token == [2, 3, 4, 5, 6, 7] and grown.fresh == 3
    assert [grown.sequence(root) for root in grown.roots] == [[9, 1, 2, 4, 5], [9, 1, 3, 6], [9, 1, 2, 4, 7]]
    # a verdict that accepts nothing new on one side keeps what the other side needs
    trunk, kept, grown = advance(grown, Verdict([grown.roots[0], 1], [8, 8], [], {}))
    assert trunk == [] and grown.parent[:2] == [TRUNK, TRUNK]
    assert [grown.sequence(root) for root in grown.roots] == [[9, 1, 2, 4, 5, 8], [9, 1, 3, 8]]


def test_roots_below_one_node_leave_nothing_below_the_trunk() -> None:
    forest = Forest.from_prompt([9])
    trunk, kept, grown = advance(forest, Verdict([0, 0], [1, 2], [], {}))
    assert (trunk, kept, grown.fresh) == ([0], [], 0)
    assert grown.roots == [0, 1] and grown.parent == [TRUNK, TRUNK]


def test_random_verdicts_keep_every_hypothesis() -> None:
    """Over many rounds, each new root is its parent's sequence and its token; parents come before children."""
    rng = random.Random(3)
    forest = Forest.from_prompt([1, 2, 3])
    for _ in range(300):
        for _ in range(rng.randrange(8)):
            parent = rng.randrange(forest.fresh, len(forest))
            forest.propose(parent, [rng.randrange(4) for _ in range(rng.randrange(1, 3))], None)
        first = rng.randrange(forest.fresh, len(forest))
        level = [node for node in range(forest.fresh, len(forest)) if forest.depth[node] == forest.depth[first]]
        parents = [rng.choice(level) for _ in range(rng.randrange(1, 4))]  # hypotheses are equally long
        verdict = Verdict(parents, [rng.randrange(4) for _ in parents], [], {})
        expected = [[*forest.sequence(parent), token] for parent, token in zip(parents, verdict.token, strict=True)]
        old = list(forest.trunk)
        trunk, kept, grown = advance(forest, verdict)
        assert not set(trunk) & set(kept)
        assert len(grown) == len(kept) + len(set(zip(verdict.parent, verdict.token, strict=True)))
        assert [grown.sequence(root) for root in grown.roots] == expected
        assert grown.trunk == old + [forest.token[node] for node in trunk]
        assert all(parent < node for node, parent in enumerate(grown.parent))
        assert all(len(grown.trunk) <= len(sequence) - 1 for sequence in expected)
        forest = grown
