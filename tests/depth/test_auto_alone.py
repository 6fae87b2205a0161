"""The controller `auto` for requests alone, on pairs of models as they are: nominal costs against real ones."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from test_auto import MACHINES, MOST, STREAMS, a_round, asked, requests_of, tokens
from torch import nn

from draftwood.depth import Auto, DraftState, Load
from draftwood.depth.acceptance import MEASURED_TRIALS, PRIOR_TRIALS
from draftwood.models.modules import bytes_of
from draftwood.runtime.cost import NOMINAL_COSTS, NOMINAL_DRAFT_COSTS, Costs, Curve


@dataclass
class Pair:
    """Two models by their weights, and milliseconds that their passes and drafted layers really take, all told."""

    weights: tuple[int, int]
    dtype: torch.dtype
    kernels: str
    layer: float
    passes: Sequence[float]  # over 1, 2, ... rows
    near: float = 1.0  # least speed over that of the best chain

    def nominal(self) -> Load:
        costs = ((NOMINAL_COSTS, 12), (NOMINAL_DRAFT_COSTS, 2))
        verify, draft = (self._curve(weights, *each) for weights, each in zip(self.weights, costs, strict=True))
        return Load(lambda rows: draft.behind(verify) + draft.seconds(rows, 1), lambda rows: verify.seconds(rows, 1))

    def _curve(self, weights: int, costs: Costs, layers: int) -> Curve:
        model: Any = nn.Linear(1000, weights // 1000, bias=False, device="meta", dtype=self.dtype)
        model.n_layers, model.kernels, model.weight_bytes = layers, self.kernels, bytes_of(model)
        return costs.curve(model)

    def seconds(self, depth: int) -> float:
        return depth * self.layer + self.passes[depth]


PAIRS = {  # as measured on two cores; AVX2 takes more rows than fit its registers in two parts: a jump untold
    "12x768": Pair(
        (116_000_000, 2_500_000),
        torch.bfloat16,
        "avx2",
        0.16,
        [6.7, 6.8, 6.8, 6.9, 7.2, *(9.5 + row for row in range(12))],
        near=0.9,
    ),
    "12x768, AVX-512": Pair(
        (116_000_000, 2_500_000),
        torch.bfloat16,
        "avx512bf16",
        0.14,
        [6.5, 6.8, *(7.1 + row / 9 for row in range(15))],
        near=0.99,
    ),
    "embedded": Pair(
        (5_100_000, 700_000),
        torch.float32,
        "avx2",
        0.125,
        [0.55, 0.68, 0.75, 0.82, 0.91, *(1.2 + row / 9 for row in range(12))],
        near=0.93,
    ),
    "embedded, AVX-512": Pair(
        (5_100_000, 700_000),
        torch.float32,
        "avx512bf16",
        0.12,
        [0.6, *(0.67 + row / 20 for row in range(16))],
    ),
    "embedded, AVX-512, bfloat16": Pair(
        (5_100_000, 700_000),
        torch.bfloat16,
        "avx512bf16",
        0.105,
        [0.25, *(0.3 + row / 29 for row in range(16))],
        near=0.97,
    ),
}


def sampled_text(rng: random.Random) -> list[tuple[float, bool]]:
    """The draft's confidence and whether it is accepted, place by place: mostly sure, else far from what it says."""
    easy, places = rng.uniform(0.6, 0.95), []
    for _ in range(200):
        confidence = 0.97 if rng.random() < easy else rng.uniform(0.0, 0.9)
        places.append((confidence, rng.random() < (0.99 if confidence > 0.9 else 0.5 + confidence / 3)))
    return places


@pytest.mark.parametrize("pair", PAIRS)
def test_a_request_alone_is_near_the_best_chain_from_its_few_rounds_and_nominal_costs(pair: str) -> None:
    rng, machine = random.Random(2), PAIRS[pair]
    texts, load = [sampled_text(rng) for _ in range(60)], machine.nominal()

    def speed(depth: int | None) -> float:
        """Tokens per second of 64 each; `depth` None: as far as it pays."""
        made, spent = 0, 0.0
        for text in texts:
            controller, place = Auto(16).repeatable(), 0
            while place < 64:
                drafted = depth or 0
                if depth is None:
                    controller.start(STREAMS, load)
                    while controller.deeper(
                        DraftState(drafted, chances=[text[place + drafted - 1][0]] if drafted else ())
                    ):
                        drafted += 1
                ahead = [accepted for _, accepted in text[place : place + drafted]]
                accepted = [*ahead, False].index(False)
                controller.observe(a_round(accepted, drafted))
                place, spent = place + accepted + 1, spent + machine.seconds(drafted)
            made += place
        return made / spent

    assert speed(None) >= machine.near * max(speed(depth) for depth in range(17))


@pytest.mark.parametrize("pair", PAIRS)
def test_one_rejection_is_bad_luck(pair: str) -> None:
    controller, load = Auto(16).repeatable(), PAIRS[pair].nominal()
    asked(controller, load)
    controller.observe(a_round(0, 1))
    assert asked(controller, load) > 0


def test_requests_alone_find_out_what_pays_in_their_own_texts() -> None:
    """Two kinds of text take turns, drafts that are mostly right and mostly wrong: neither spoils the other."""
    rng, machine, first = random.Random(3), PAIRS["embedded"], Auto(MOST)
    load = Load(lambda rows: machine.layer, lambda rows: machine.passes[rows - 1])
    made, spent = {0.9: 0, 0.2: 0}, {0.9: 0.0, 0.2: 0.0}
    for chance in [0.9, 0.2, 0.2] * 30:
        controller, place = first.for_request(), 0
        while place < 64:
            depth, accepted = asked(controller, load), 0
            while accepted < depth and rng.random() < chance:
                accepted += 1
            controller.observe(a_round(accepted, depth))
            place, spent[chance] = place + accepted + 1, spent[chance] + machine.seconds(depth)
        made[chance] += place
    for chance in made:
        best = max(tokens(chance, depth) / machine.seconds(depth) for depth in range(MOST + 1))
        assert made[chance] / spent[chance] > 0.93 * best


def test_a_request_alone_begins_no_worse_than_what_the_engine_has_seen() -> None:
    """Where a first guess does not pay it drafts at once if those of others were accepted."""

    def drafts(accepted: int, shared: bool = True) -> list[int]:
        """Layers of the first round after 30 rounds of another request, of which so many of 4 layers were accepted."""
        found = []
        for load in (cheap, dear):
            engine = Auto(4)
            first = engine.for_request() if shared else engine.repeatable()
            for _ in range(30):
                asked(first, cheap if shared else load)  # nominal costs are always the same
                first.observe(a_round(accepted, 4))
            found.append(asked(engine.for_request() if shared else engine.repeatable(), load))
        return found

    cheap, dear = (Load(lambda rows, layer=layer: layer, lambda rows: 1.0) for layer in (0.05, 0.82))
    assert drafts(4) == [4, 1]
    assert drafts(0) == [4, 0]
    assert drafts(4, shared=False) == drafts(0, shared=False) == [4, 0]


@pytest.mark.parametrize(("read_seconds", "keeps_up"), [(0.0, True), (0.004, True), (0.02, False)])
def test_what_trials_would_read_is_kept_where_that_takes_no_more_than_trials_may(
    read_seconds: float, keeps_up: bool
) -> None:
    """In rounds without drafts of a request alone, whose pass takes a second; where it is not, none is tried."""
    controller = requests_of(Auto(MOST), 1)[0]
    load, tried = Load(*MACHINES["dear drafts"], read_seconds=read_seconds), 0
    for number in range(600):
        drafted = asked(controller, load)
        assert controller.prepares is (keeps_up or drafted > 0)
        tried += drafted if number > 200 else 0
        controller.observe(a_round(0, drafted))
    assert bool(tried) is keeps_up


def test_what_must_be_read_first_is_not_read_because_lookup_searches() -> None:
    """Else a short answer to a long prompt would have the target show its states of the whole prompt once more."""
    controller = Auto(MOST, lookup=True).repeatable()
    load = Load(*MACHINES["weights are read"], catch_up_seconds=lambda: 50.0, tokens_left=lambda: 5)
    controller.start(STREAMS, load)
    assert not controller.rests and not controller.deeper(DraftState(0))
    assert controller.deeper(DraftState(0, ahead=(0.9,)))  # what lookup has found needs nothing read


def test_what_training_measured_outweighs_a_few_unlucky_rounds() -> None:
    """A head that accepts half is not given up because its first dozen drafts fail; one that never does is."""
    load = Load(lambda rows: 0.1, lambda rows: 1 + 0.1 * rows)

    def drafted(trials: float) -> int:
        controller = Auto(MOST, prior=0.5, prior_trials=trials).repeatable()
        depths = []
        for _ in range(100):
            depths.append(asked(controller, load))
            controller.observe(a_round(0, depths[-1]))
        return sum(map(bool, depths))

    assert drafted(PRIOR_TRIALS) < 15 and 30 < drafted(MEASURED_TRIALS) < 60
