"""Curves of what passes cost: guesses, measured points, and that they never fall."""

import random
from typing import Any

import pytest
import torch
from family_variants import VARIANTS
from torch import nn

from draftwood import Engine, TabularModel
from draftwood.engine.engine import prepare
from draftwood.models.checkpoints.families.table import FAMILIES
from draftwood.models.decoder import Decoder
from draftwood.models.modules import bytes_of
from draftwood.runtime.cost import (
    BYTE_SECONDS,
    CACHE_BYTES,
    CACHED_BYTE_SECONDS,
    CURVE_TOLERANCE,
    NATIVE_LAYER_SECONDS,
    TOKEN_SECONDS,
    WARM_UP_PASSES,
    Costs,
    Curve,
    Measured,
    Overhead,
    draft_units,
    share_read,
)
from draftwood.tune.planner import read_by_rows

pytestmark = pytest.mark.measured
MODEL, OTHER = TabularModel.random(4, seed=1), TabularModel.random(4, seed=2)


def test_a_curve_follows_what_is_measured() -> None:
    costs = Costs()
    for _ in range(5):
        for rows in (1, 2, 4, 8, 16, 64):
            costs.add(MODEL, rows, rows, 0.01 + 0.001 * rows)
    curve = costs.curve(MODEL)
    for rows in (1, 2, 3, 6, 16, 40, 64):
        assert curve.seconds(rows) == pytest.approx(0.01 + 0.001 * rows, rel=1e-6)
    assert curve.marginal(4, 4) == pytest.approx(0.004)
    for _ in range(80):  # the machine has become slower
        costs.add(MODEL, 8, 8, 0.03)
    assert curve.seconds(8) == pytest.approx(0.03, rel=CURVE_TOLERANCE)


def test_curves_never_fall() -> None:
    rng = random.Random(0)
    curve = Curve(1e-3, 1e-5)
    for _ in range(300):
        curve.add(rng.randrange(1, 300), rng.uniform(0.001, 0.1))
        seconds = [curve.seconds(rows) for rows in range(1, 700)]
        assert seconds == sorted(seconds)
        assert seconds[0] > 0


def test_a_disturbed_pass_hardly_moves_a_curve() -> None:
    curve = Curve(1e-3, 1e-5)
    curve.add(1, 9.0)  # the first one compiled
    for _ in range(9):
        curve.add(1, 0.01)
    curve.add(1, 5.0)
    assert curve.seconds(1) < 0.011
    lonely = Curve(1e-3, 1e-5)
    lonely.add(2, 9.0)  # never seen again, and no reason to call all wider passes slow
    for _ in range(30):
        lonely.add(1, 0.01)
        lonely.add(4, 0.012)
    assert lonely.seconds(2) < lonely.seconds(4) < 0.013
    lonely.add(2, 0.011)
    assert lonely.seconds(2) == 0.011


def test_guesses_have_the_scale_of_what_was_measured() -> None:
    costs = Costs()
    guess = costs.curve(OTHER).seconds(1)
    assert guess == costs.curve(OTHER).nominal(1)
    costs.add(MODEL, 1, 1, 100 * costs.curve(MODEL).nominal(1))
    assert costs.curve(OTHER).seconds(1) == pytest.approx(100 * guess)
    slope = costs.curve(MODEL).seconds(200) / costs.curve(MODEL).seconds(100)
    assert slope == pytest.approx(costs.curve(MODEL).nominal(200) / costs.curve(MODEL).nominal(100))


def test_rows_are_guessed_by_weights_whatever_their_type_is() -> None:
    """A type of half the bytes is read in half the time, faster where caches keep it; it takes as long to multiply."""

    def curve(dtype: torch.dtype, width: int = 10_000) -> Curve:
        model: Any = nn.Linear(4000, width, bias=False, device="meta", dtype=dtype)
        model.n_layers, model.kernels, model.weight_bytes = 12, "avx2", bytes_of(model)
        return Curve.of(model, 6, Measured())

    whole, half = curve(torch.float32), curve(torch.bfloat16)
    assert whole.nominal(9) - whole.nominal(1) == pytest.approx(half.nominal(9) - half.nominal(1))
    assert whole.nominal(0) - half.nominal(0) == pytest.approx(BYTE_SECONDS * 40e6)
    small, smaller = curve(torch.float32, 1000), curve(torch.bfloat16, 1000)
    assert (
        small.nominal(0) - smaller.nominal(0)
        == pytest.approx(smaller.nominal(0) - 6 * NATIVE_LAYER_SECONDS)
        == CACHED_BYTE_SECONDS * 4e6
    )


def test_vectors_take_longer_for_floats_than_for_whole_numbers_and_tiles_are_for_floats() -> None:
    def row_seconds(kernels: str, bytes_each: int) -> float:
        weights = {1: torch.int8, 2: torch.bfloat16}[bytes_each]
        model: Any = nn.Linear(4000, 10_000, bias=False, device="meta", dtype=torch.bfloat16)
        model.weight = nn.Parameter(model.weight.to(weights), requires_grad=False)
        model.n_layers, model.kernels, model.weight_bytes = 12, kernels, bytes_of(model)
        curve = Curve.of(model, 12, Measured())
        return curve.nominal(2) - curve.nominal(1)

    assert row_seconds("avx512bf16", 2) > 1.5 * row_seconds("avx512bf16", 1)
    assert row_seconds("amx", 1) > 1.5 * row_seconds("amx", 2)
    assert row_seconds("avx2", 2) == pytest.approx(row_seconds("avx2", 1))


def test_what_drafts_behind_a_large_target_is_read_from_memory() -> None:
    """Of its weights those that a cache held: the target's pass has taken their place."""

    def curve(bytes_: float) -> Curve:
        return Curve(1e-3, 1e-5, stored=bytes_)

    small, large, draft = curve(CACHE_BYTES / 2), curve(300e6), curve(7e6)
    assert draft.behind(small) == 0
    assert draft.behind(large) == pytest.approx(7e6 * (BYTE_SECONDS - CACHED_BYTE_SECONDS))
    assert large.behind(large) == pytest.approx(CACHE_BYTES * (BYTE_SECONDS - CACHED_BYTE_SECONDS))


def test_rows_of_a_mixture_cost_the_experts_that_they_read() -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 512, "moe_intermediate_size": 512, "num_experts": 32}
    with torch.device("meta"):
        model = Decoder(FAMILIES["qwen3_moe"].config({**VARIANTS["qwen3_moe"][1], **sizes}))
    experts = 2 * 32 * 3 * 512 * 512 * 4
    assert model.routed == (experts, 2 / 32)
    scores = torch.rand(2000, 8, 32, generator=torch.Generator().manual_seed(0))
    chosen = scores.topk(2, -1).indices.flatten(1)  # 8 rows of an even router, many times
    distinct = sum(len(set(row.tolist())) for row in chosen) / 2000
    assert 32 * share_read(2 / 32, 8) == pytest.approx(distinct, rel=0.02)
    curve, other = Curve.of(model, 2, Measured()), Curve.of(model, 1, Measured())
    reading = curve.routed / experts  # seconds of a byte
    for rows in (1, 2, 8):
        read = experts * share_read(2 / 32, rows)
        assert curve.nominal(rows) - rows * curve.each == pytest.approx(curve.fixed + reading * read)
    assert curve.fixed < curve.nominal(1) / 2 and other.nominal(3) == pytest.approx(curve.nominal(3) / 2, rel=0.05)
    dense = Curve(curve.nominal(1) - curve.each, curve.each)  # as if it read no more for more rows
    assert curve.marginal(1, 4) > 3 * dense.marginal(1, 4)
    assert curve.piece_rows > 7 * curve.routed / curve.each
    assert read_by_rows(model)[0].startswith("a mixture of experts: share of the weights that K tokens at once read")
    assert read_by_rows(MODEL) == []


def test_pieces_of_prompts_follow_what_rows_were_measured_to_take() -> None:
    """A request that arrives waits for one piece: as many rows as take eight times as long as one, as measured."""
    curve = Curve(4e-3, 1e-3, Measured())
    assert curve.piece_rows == 36
    curve.add_reading(36, 4e-3 + 36 * 2e-3)  # each row takes twice as long
    assert curve.piece_rows == 36  # nobody knows yet what a single row takes
    curve.add(1, 5e-3)
    rows = curve.piece_rows
    assert 16 <= rows < 20 and 4e-3 + rows * 2e-3 <= 8.5 * 5e-3
    for _ in range(40):  # rows that cost less than they should do not make pieces longer
        curve.add_reading(36, 6e-3)
    assert curve.piece_rows == 36


def test_layer_ranges_count_by_their_share() -> None:
    model = TabularModel.random(4, seed=1)
    model.n_layers = 12
    costs = Costs()
    assert costs.curve(model, 3).nominal(5) == pytest.approx(costs.curve(model).nominal(5) / 4)
    costs.add(model, 8, 8 * 3 / 12, 0.002)  # a pass over layers [0, 3)
    assert costs.curve(model, 3).seconds(8) == pytest.approx(0.002)
    assert not costs.curve(model).points
    costs.add(model, 0, 0.0, 0.1)
    assert costs.curve(model).seconds(8) == pytest.approx(0.008, rel=0.01)


def test_what_a_first_pass_took_beside_its_forward_is_soon_forgotten() -> None:
    """It loads and warms up what later ones find."""
    overhead = Overhead()
    overhead.add(1, 0, 0.1)
    for _ in range(3):
        overhead.add(1, 0, 0.001)
        assert overhead.seconds(1, 0) <= 0.0021
    overhead.add(1, 0, 0.1)
    assert overhead.seconds(1, 0) <= 0.0025


def test_a_slow_first_draft_pass_does_not_end_drafting() -> None:
    """Else nothing would be drafted, and no pass would ever show that the first one was slow by chance."""
    costs = Costs()
    target, draft = costs.curve(MODEL), costs.curve(OTHER)
    for _ in range(8):
        costs.add(MODEL, 1, 1, 2 * target.nominal(1))
        target.add_overhead(1, 1, 0, 1e-4)
    before = draft.seconds(1, 1)
    assert before == pytest.approx(2 * draft.nominal(1) + 1e-4 + TOKEN_SECONDS * OTHER.vocab_size)
    for number in range(WARM_UP_PASSES + 1):
        costs.add(OTHER, 1, 1, 20 * draft.nominal(1))
        draft.add_overhead(1, 1, 0, 1.0 if not number else 5e-5)
        costs.add(MODEL, 1, 1, 2 * target.nominal(1))
        if number < WARM_UP_PASSES:
            assert draft.seconds(1, 1) <= before
    assert draft.seconds(1, 1) == pytest.approx(20 * draft.nominal(1) + 5e-5)  # so it is


def test_drafts_of_few_requests_do_not_tell_what_many_requests_cost() -> None:
    """Chains of one request have as many rows as many plain requests: what answers take goes by requests."""
    costs = Costs()
    curve = costs.curve(MODEL)

    def took(requests: int, rows: int) -> float:
        return 3e-4 * requests + (1.2e-4 * requests + 2e-5 * (rows - requests) if rows > requests else 0)

    for _ in range(20):
        for requests, rows in ((1, 1), (1, 5), (8, 8), (2, 10), (8, 40)):
            costs.add(MODEL, rows, rows, 1e-3 + 1e-4 * rows)
            curve.add_overhead(requests, rows, requests if rows > requests else 0, took(requests, rows))
    for requests, rows in ((8, 8), (8, 40)):
        assert curve.seconds(rows, requests) == pytest.approx(1e-3 + 1e-4 * rows + took(requests, rows), rel=0.02)
    assert curve.seconds(10, 2) < curve.seconds(8, 8)
    assert curve.seconds(12, 8, 1) < curve.seconds(12, 8, 4)  # few rows of one chain, or of each of four
    for _ in range(3):  # disturbed passes
        curve.add_overhead(8, 8, 0, 1.0)
    assert curve.seconds(8, 8) < 1.5 * (1e-3 + 8e-4 + 8 * 3e-4)


def test_what_drafts_take_is_known_after_a_rest_and_plain_answers_while_all_draft() -> None:
    """Else drafting would begin for the guess that it takes little, each time that it has ended because it takes more.

    An answer to one request with drafts takes 0.4 ms, to two of them 0.5 ms: not so much each.
    """
    curve = Curve(1e-3, 1e-5)
    for _ in range(40):
        curve.add_overhead(2, 2, 0, 2e-4)
    for _ in range(200):
        curve.add_overhead(1, 3, 1, 4e-4)
        curve.add_overhead(2, 6, 2, 5e-4)
    assert curve.overhead.seconds(2, 0) == pytest.approx(2e-4, rel=0.1)
    drafts = draft_units(2, 6)
    assert curve.overhead.seconds(2, drafts) == pytest.approx(5e-4, rel=0.15)
    for _ in range(1000):
        curve.add_overhead(2, 2, 0, 2e-4)
    assert curve.overhead.seconds(2, drafts) == pytest.approx(5e-4, rel=0.15)


def test_until_drafts_were_seen_they_take_half_of_a_request() -> None:
    curve = Curve(1e-3, 1e-5)
    for _ in range(3):
        curve.add(1, 1e-3)
        curve.add_overhead(1, 1, 0, 5e-4)
    assert curve.overhead.draft_seconds == pytest.approx(curve.overhead.request_seconds / 2)
    assert curve.seconds(1, 1) - curve.seconds(1) == pytest.approx(5e-4, rel=0.01)


def test_what_answers_take_is_learned_from_requests_that_decide_by_it() -> None:
    """Those of fixed depth, and beams, may take far longer."""
    engine = Engine(MODEL, [OTHER])
    target, draft = engine.scheduler.costs.curve(MODEL), engine.scheduler.costs.curve(OTHER)
    chain, options = {"name": "speculative", "gamma": 3}, {"sampling": {"temperature": 0.0}, "max_new_tokens": 20}
    for method in ({"name": "dsbd"}, chain):
        engine.generate([1, 2], method, **options)
    assert draft.points and not draft.overhead.request_seconds
    engine.generate([1, 2], "autoregressive", **options)
    assert target.overhead.request_seconds > 0
    assert draft.seconds(1, 1) > draft.seconds(1)  # until it is known, as of the other
    deciding = engine.builder.task(prepare(engine, [1, 2], method=chain, **options))
    deciding.follows_load = True
    next(engine.driver.events(deciding))
    assert draft.overhead.request_seconds > 0
