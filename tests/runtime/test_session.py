"""The session: forest logits equal per-path logits whatever was committed, kept, reused, resumed or left behind."""

import random
from collections import defaultdict
from collections.abc import Sequence

import pytest
import torch
from small_decoder import LAYERS, VOCAB, decoder
from torch import Tensor

from draftwood import RequestError, TabularModel
from draftwood.core.forest import Forest, Verdict, advance
from draftwood.models.base import CausalModel
from draftwood.models.decoder import Decoder
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session

MODEL = decoder()
DOUBLE = decoder(dtype=torch.float64)
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-12}  # absolute and relative


def naive(model: Decoder, tokens: Sequence[int]) -> Tensor:
    """Logits after each token, without any cache."""
    with torch.inference_mode():
        return model.train_forward(torch.tensor([list(tokens)]))[0]


rows: defaultdict[int, float] = defaultdict(float)  # by id of the session: what `answer` computed


def answer(session: Session, forest: Forest, nodes: Sequence[int], upto: int | None = None) -> Tensor:
    with torch.inference_mode():
        found = execute([Run(session, forest, nodes, upto)])[0]
    rows[id(session)] += found.rows
    return found.logits if upto is None else found.hidden.get(upto, found.logits)


def check(session: Session, forest: Forest, nodes: Sequence[int], logits: Tensor) -> None:
    """Every answer equals the logits of its own path, recomputed from scratch."""
    assert logits.shape == (len(nodes), VOCAB)
    model = session.model
    assert isinstance(model, Decoder)
    expected: dict[int, Tensor] = {}
    for leaf in reversed(nodes):
        if leaf not in expected:  # as part of the path to one below it
            path = forest.path(leaf)
            expected |= zip(path, naive(model, forest.sequence(leaf))[-len(path) :], strict=True)
    close = CLOSE[model.dtype]
    for row, node in zip(logits, nodes, strict=True):
        torch.testing.assert_close(row, expected[node], atol=close, rtol=close)


def grow(forest: Forest, rng: random.Random, count: int) -> list[int]:
    """Append about `count` nodes at random places below the fresh nodes."""
    made: list[int] = []
    for _ in range(count):
        parent = rng.choice([*forest.roots, *made])
        made += forest.propose(parent, [rng.randrange(VOCAB)], None)
    return sorted(set(made))


def verdict(forest: Forest, rng: random.Random, roots: int) -> Verdict:
    parents = [rng.randrange(forest.fresh, len(forest)) for _ in range(roots)]
    return Verdict(parents, [rng.randrange(VOCAB) for _ in parents], [], {})


@pytest.mark.some(10)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("roots", [1, 2, 3])
@pytest.mark.parametrize("model", [MODEL, DOUBLE], ids=["float32", "float64"])
def test_forest_logits_equal_path_logits(model: Decoder, roots: int, seed: int) -> None:
    """Random trees, many rounds: slots are reused, holes appear, several hypotheses keep nodes below the trunk."""
    rng = random.Random(f"{seed} {roots}")
    session = Session(model, model.new_cache(32))
    forest = Forest.from_prompt([rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))])
    holes = kept_nodes = 0
    for _ in range(12):
        grow(forest, rng, rng.randrange(9))
        nodes = range(forest.fresh, len(forest))
        check(session, forest, nodes, answer(session, forest, nodes))
        decided = verdict(forest, rng, rng.randrange(1, roots + 1))
        trunk, kept, grown = advance(forest, decided)
        session.commit(trunk, kept, grown)
        assert session.live_slots == len(grown.trunk) + len(kept)
        holes += session.span > session.live_slots
        kept_nodes += len(kept)
        forest = grown
    assert holes > 0
    assert (kept_nodes > 0) == (roots > 1)


def test_a_long_prompt_grows_the_cache() -> None:
    """The extent grows in the middle of a request; what was cached before stays right."""
    rng = random.Random(1)
    session = Session(MODEL, MODEL.new_cache(16))
    forest = Forest.from_prompt([rng.randrange(VOCAB) for _ in range(300)])
    grow(forest, rng, 6)  # prefill and tree in one forward
    capacities = []
    for _ in range(6):
        nodes = range(forest.fresh, len(forest))
        check(session, forest, nodes, answer(session, forest, nodes))
        assert session.extent is not None
        capacities.append(session.extent.capacity)
        deepest = max(nodes, key=lambda node: forest.depth[node])
        trunk, kept, forest_next = advance(forest, Verdict([deepest], [3], [], {}))
        session.commit(trunk, kept, forest_next)
        forest = forest_next
        parent = forest.roots[0]
        for _ in range(60):  # a long chain beside a bushy root
            (parent,) = forest.propose(parent, [rng.randrange(VOCAB)], None)
        grow(forest, rng, 5)
    assert capacities == sorted(capacities) and capacities[0] < 400 and capacities[-1] > 600


@pytest.mark.parametrize("upto", [1, 2, 3])
def test_a_run_in_two_layer_ranges_equals_one(upto: int) -> None:
    """Layers [0, N) first, the rest later: on a chain and on trees, with the prompt at the lower level too."""
    rng = random.Random(upto)
    for tree in (False, True):
        session, whole = (Session(MODEL, MODEL.new_cache(64)) for _ in range(2))
        rows.clear()
        forest = Forest.from_prompt([rng.randrange(VOCAB) for _ in range(9)])
        for _ in range(5):
            # draft layer by layer below the lower level, as early exit does
            frontier = [forest.roots[0]]
            for _ in range(3):
                hidden = answer(session, forest, frontier, upto)
                assert hidden.shape == (len(frontier), 24)
                frontier = [
                    child
                    for node in frontier
                    for child in forest.propose(node, [rng.randrange(VOCAB) for _ in range(1 + tree)], None)
                ]
                frontier = list(dict.fromkeys(frontier))
            nodes = range(forest.fresh, len(forest))
            before = rows[id(session)]
            logits = answer(session, forest, nodes)  # the last layer's nodes come from layer 0, the others resume
            assert rows[id(session)] - before < len(nodes) + 8  # what was computed below is not computed again
            torch.testing.assert_close(logits, answer(whole, forest, nodes), atol=1e-5, rtol=1e-5)
            check(session, forest, nodes, logits)
            trunk, kept, grown = advance(forest, verdict(forest, rng, 1))
            session.commit(trunk, kept, grown)
            whole.commit(trunk, kept, grown)
            forest = grown
        assert rows[id(session)] == pytest.approx(rows[id(whole)])  # each token passed each layer once


def test_a_trunk_that_stopped_at_lower_levels_is_completed() -> None:
    """Commits of nodes and prompts that reached different layers only; several rounds later a full run needs them."""
    rng = random.Random(5)
    session = Session(MODEL, MODEL.new_cache(64))
    forest = Forest.from_prompt([rng.randrange(VOCAB) for _ in range(7)])
    for upto in (2, 1, 3, None, 1, 2):
        made = grow(forest, rng, 4)
        nodes = [*forest.roots, *made]
        out = answer(session, forest, nodes, upto)
        if upto is None:
            check(session, forest, nodes, out)
        trunk, kept, grown = advance(forest, Verdict([rng.choice(nodes)], [rng.randrange(VOCAB)], [], {}))
        session.commit(trunk, kept, grown)
        forest = grown
    nodes = [*forest.roots, *grow(forest, rng, 4)]
    check(session, forest, nodes, answer(session, forest, nodes))
    assert all(session.level(slot) == LAYERS for slot in session._trunk_slot[: session.cached])
    assert not session._hidden  # nothing is kept that no later run can resume


def test_mixed_levels_in_one_run() -> None:
    """Nodes at levels 0, 1, 2 and 3 of one tree, asked for at once."""
    rng = random.Random(8)
    session = Session(MODEL, MODEL.new_cache(64))
    forest = Forest.from_prompt([1, 2, 3, 4])
    a, b, c, d = forest.propose(0, [1, 2, 3, 4], None)
    answer(session, forest, [0, a], 1)
    answer(session, forest, [b], 2)
    answer(session, forest, [c], 3)
    for parent in (a, b, c, d):
        forest.propose(parent, [rng.randrange(VOCAB)], None)
    nodes = range(len(forest))
    check(session, forest, nodes, answer(session, forest, nodes))


def test_a_draft_session_may_lag_behind() -> None:
    """A draft never sees the last token that it drafted; later runs compute what is missing on the way."""
    rng = random.Random(2)
    session = Session(MODEL, MODEL.new_cache(64), "draft")
    forest = Forest.from_prompt([3, 1, 4])
    for depth in (1, 4, 0, 2, 0, 0, 3):
        node = forest.roots[0]
        for _ in range(depth):
            logits = answer(session, forest, [node])
            check(session, forest, [node], logits)
            (node,) = forest.propose(node, [rng.randrange(VOCAB)], None)
        trunk, kept, grown = advance(forest, Verdict([node], [rng.randrange(VOCAB)], [], {}))  # all accepted
        session.commit(trunk, kept, grown)
        forest = grown
    check(session, forest, forest.roots, answer(session, forest, forest.roots))


def test_unseen_ancestors_are_computed_on_the_way() -> None:
    session = Session(MODEL, MODEL.new_cache(64))
    forest = Forest.from_prompt([3, 1, 4])
    node, leaves = 0, []
    for token in range(5):
        (node,) = forest.propose(node, [token], None)
        leaves += forest.propose(node, [18], None)
    asked = [leaves[4], leaves[1]]  # rows come in the order that was asked for
    check(session, forest, asked, answer(session, forest, asked))
    assert session.live_slots == 2 + 1 + 5 + 2


@pytest.mark.parametrize("upto", [None, 1])
def test_a_node_may_be_asked_for_again(upto: int | None) -> None:
    """A drafter wants the logits of a node that an earlier run computed on the way to another one."""
    model = TabularModel.random(5, seed=4, n_layers=2)
    session = Session(model, model.new_cache(64))
    forest = Forest.from_prompt([1, 2, 3])
    child = forest.propose(forest.roots[0], [4], None)[0]
    grandchild = forest.propose(child, [0], None)[0]
    execute([Run(session, forest, [grandchild])])
    used = session.live_slots
    again = answer(session, forest, [child, grandchild], upto)
    other = Session(model, model.new_cache(64))
    assert torch.equal(again, answer(other, forest, [child, grandchild], upto))
    assert session.live_slots == used
    if upto is not None:  # and from there to the end
        assert torch.equal(
            answer(session, forest, [grandchild]),
            answer(other, forest, [grandchild]),
        )


def test_slots_of_dead_branches_are_reused() -> None:
    """Wide trees over many rounds hold no more slots than trunk and tree need."""
    rng = random.Random(4)
    session = Session(MODEL, MODEL.new_cache(32))
    forest = Forest.from_prompt([1, 2, 3])
    for _ in range(40):
        grow(forest, rng, 12)
        answer(session, forest, range(forest.fresh, len(forest)))
        trunk, kept, grown = advance(forest, verdict(forest, rng, 1))
        session.commit(trunk, kept, grown)
        forest = grown
        assert session.live_slots == len(forest.trunk)
    assert session.span <= len(forest.trunk) + 13
    assert session.peak <= len(forest.trunk) + 14


def test_positions_and_masks_are_what_a_function_of_the_prefix_sees() -> None:
    """A tabular model raises when a cell sees anything but positions 0..n-1; its law depends on the whole prefix."""
    model = TabularModel.random(5, seed=3, n_layers=3)
    rng = random.Random(6)
    session = Session(model, model.new_cache(16))
    forest = Forest.from_prompt([1, 2, 3])
    for round_ in range(30):
        made = []
        for _ in range(rng.randrange(1, 7)):
            made += forest.propose(rng.randrange(forest.fresh, len(forest)), [rng.randrange(5)], None)
        if round_ % 3 == 0:
            answer(session, forest, sorted(set(made))[:3], 1 + round_ % 2)
        nodes = range(forest.fresh, len(forest))
        logits = answer(session, forest, nodes)
        for row, node in enumerate(nodes):
            expected = torch.tensor(model.law(tuple(forest.sequence(node))), dtype=torch.float64).log()
            assert torch.equal(logits[row], expected)
        parents = [rng.randrange(forest.fresh, len(forest)) for _ in range(1 + round_ % 3)]
        trunk, kept, grown = advance(forest, Verdict(parents, [rng.randrange(5) for _ in parents], [], {}))
        session.commit(trunk, kept, grown)
        forest = grown


def test_the_end_of_the_context_is_said() -> None:
    model = decoder(context=8)
    session = Session(model, model.new_cache(16))
    forest = Forest.from_prompt([1] * 8)
    check(session, forest, [0], answer(session, forest, [0]))
    (node,) = forest.propose(0, [1], None)
    with pytest.raises(RequestError, match="position 8 is beyond the target model's context of 8"):
        answer(session, forest, [node])


def test_a_closed_session_gives_its_extent_back() -> None:
    cache = MODEL.new_cache()
    first, second = Session(MODEL, cache), Session(MODEL, cache)
    assert first.extent is second.extent is None and cache.lent == 0  # nothing is held before the first run
    for session in (first, second):
        forest = Forest.from_prompt([1, 2])
        check(session, forest, [0], answer(session, forest, [0]))
    assert first.extent is not None and first.extent is not second.extent and cache.lent == 64
    first.close()
    first.close()
    assert first.extent is None and cache.lent == 32
    second.close()
    assert cache.slots == 0
    check(second, forest, [0], answer(second, forest, [0]))  # what it needs is computed anew
    assert isinstance(MODEL, CausalModel)
