"""The controller `auto` in simulation: many requests on a machine of known costs, no clock and no models."""

import gc
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftwood.core.records import Round
from draftwood.depth import ALONE, LOAD, Auto, DraftState, Load
from draftwood.depth.acceptance import PRIOR_RATE, UNKNOWN_BIN, SiblingAcceptance
from draftwood.depth.auto import LOOKUP_ROUNDS, PLAN_ROUNDS
from draftwood.sampling.distributions import Streams

Cost = Callable[[int], float]
MACHINES: dict[str, tuple[Cost, Cost]] = {  # seconds of a drafted layer, of a target pass, by rows
    "weights are read": (lambda rows: 0.08 + 0.0005 * rows, lambda rows: 1 + 0.004 * rows),
    "then arithmetic": (lambda rows: 0.1 + 0.0005 * rows, lambda rows: 1 + 0.002 * rows + 0.06 * max(0, rows - 16)),
    "arithmetic": (lambda rows: 0.05 + 0.005 * rows, lambda rows: 0.6 + 0.12 * rows),
    "dear drafts": (lambda rows: 0.5 + 0.02 * rows, lambda rows: 1 + 0.02 * rows),
    "steps": (lambda rows: 0.1, lambda rows: -(-rows // 16)),
}
MOST, STREAMS = 12, Streams(0)


def a_round(accepted: int, drafted: int, siblings: list[tuple[int, int]] | None = None) -> Round:
    attempted = min(accepted + 1, drafted)
    numbers = (drafted, drafted, accepted, accepted, attempted, 0.0, 1.0, 0.0, 0.0, drafted + 1.0, drafted)
    return Round(0, [], [], [], [], [], [], *numbers, drafted, [], [], [], [], [], siblings or [])


def asked(controller: Auto, load: Load) -> int:
    """Layers of a round."""
    controller.start(STREAMS, load)
    depth = 0
    while controller.deeper(DraftState(depth)):
        depth += 1
    return depth


def tokens(chance: float, depth: int) -> float:
    """Expected of a round of a chain."""
    return sum(chance**k for k in range(depth + 1))


def fixed(machine: str, requests: int, chance: float, depth: int) -> float:
    """Tokens per second where all draft so deep."""
    draft, verify = MACHINES[machine]
    return requests * tokens(chance, depth) / (depth * draft(requests) + verify(requests * (depth + 1)))


def requests_of(controller: Any, count: int) -> list[Any]:
    return [controller, *(controller.for_request() for _ in range(count - 1))]


def simulated(controllers: list[Auto], machine: str, chance: float, steps: int, others: int = 0) -> float:
    """Tokens per second, expected ones of each decision; the first quarter of the steps is for learning."""
    draft, verify = MACHINES[machine]
    rng, load = random.Random(1), Load(draft, verify, len(controllers), others, others)
    made = spent = 0.0
    for step in range(steps):
        depths = [asked(controller, load) for controller in controllers]
        if step >= steps // 4:
            layers = [sum(depth > layer for depth in depths) for layer in range(max(depths))]
            spent += sum(map(draft, layers)) + verify(sum(depths) + len(depths) + others)
            made += sum(tokens(chance, depth) for depth in depths) + others
        for controller, depth in zip(controllers, depths, strict=True):
            accepted = 0
            while accepted < depth and rng.random() < chance:
                accepted += 1
            controller.observe(a_round(accepted, depth))
    return made / spent


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("chance", [0.3, 0.7, 0.95])
def test_it_is_never_far_from_the_best_at_any_load(machine: str, chance: float) -> None:
    for count in (1, 2, 8, 64):
        speed = simulated(requests_of(Auto(MOST), count), machine, chance, max(48, 800 // count))
        assert speed >= 0.97 * max(fixed(machine, count, chance, depth) for depth in (0, 4)), count
        if count == 1:
            assert speed >= 0.95 * max(fixed(machine, 1, chance, depth) for depth in range(MOST + 1))


def test_drafts_stop_under_load_and_come_back_with_its_end() -> None:
    controller = Auto(MOST)
    busy = requests_of(controller, 64)
    draft, verify = MACHINES["then arithmetic"]
    simulated([controller], "then arithmetic", 0.7, 100)
    assert asked(controller, Load(draft, verify)) >= 3
    simulated(busy, "then arithmetic", 0.7, 20)
    drafted = [asked(one, Load(draft, verify, 64)) for one in busy]
    assert sum(drafted) <= 1
    assert asked(controller, Load(draft, verify)) >= 3


def test_where_drafts_never_pay_they_are_tried_with_a_two_hundredth_of_the_time() -> None:
    controller, load = Auto(MOST), Load(*MACHINES["dear drafts"])
    drafted = []
    for _ in range(2000):
        drafted.append(asked(controller, load))
        controller.observe(a_round(0, drafted[-1]))
    late = drafted[500:]
    assert set(late) == {0, 1}
    assert 0 < sum(late) * (load.one / load.verify(1)) < 0.006 * len(late)


def test_of_many_requests_one_tries_at_a_time() -> None:
    many = requests_of(Auto(MOST), 64)
    load = Load(*MACHINES["weights are read"], 64)
    simulated(many, "weights are read", 0.02, 50)
    many[0].shared_evidence.undrafted = 10_000
    assert sum(asked(one, load) for one in many) == 1


def test_a_trial_is_a_single_layer() -> None:
    """A second one would cost little if all drafted alike, but a request alone makes the passes for it alone."""
    many = requests_of(Auto(MOST), 8)
    load = Load(lambda rows: 0.1, lambda rows: 1.0 if rows <= 8 else 4.0, 8)  # the first layer does not pay
    assert not any(asked(one, load) for one in many)
    many[0].shared_evidence.undrafted = 10_000
    assert [asked(one, load) for one in many] == [1] + [0] * 7


def test_it_notices_that_drafts_have_become_good() -> None:
    controller, load = Auto(MOST), Load(*MACHINES["weights are read"])
    for _ in range(300):
        controller.observe(a_round(0, asked(controller, load)))
    assert controller.own_evidence.siblings.chances(1)[1] < 0.1
    depth = 0
    for _ in range(2000):
        depth = asked(controller, load)
        controller.observe(a_round(depth, depth))
    assert depth == MOST


def test_requests_without_drafts_beside_it_count() -> None:
    """The pass is full of others' rows: drafts must be worth more than what they keep others from."""
    controllers = requests_of(Auto(MOST), 4)
    assert simulated(controllers, "arithmetic", 0.3, 200, others=40) > 0.97 * 44 / MACHINES["arithmetic"][1](44)
    load = Load(*MACHINES["then arithmetic"])
    crowded = Load(*MACHINES["then arithmetic"], 1, 40, 40)
    assert asked(Auto(MOST), load) > 0 == asked(Auto(MOST), crowded)


def test_the_width_of_a_tree_follows_the_load() -> None:
    """The third sibling is mostly what is accepted: wide where rows are free, one path or none where they are not."""
    tree = (4, 2, 1)

    def width(machine: str, requests: int) -> int:
        controller, load = Auto(3, tree), Load(*MACHINES[machine], requests)
        controller.own_evidence = controller.shared_evidence
        for _ in range(300):
            controller.shared_evidence.siblings.add(a_round(1, 4, [(0, 4)]), 0.99)
            controller.shared_evidence.siblings.add(a_round(1, 4, [(2, 4), (1, 2)]), 0.99)
            controller.shared_evidence.siblings.add(a_round(0, 4, [(3, 4)]), 0.99)
        controller.start(STREAMS, load)
        return controller.width(4) if controller.deeper(DraftState(0)) else 0

    assert width("weights are read", 1) == 4
    assert width("arithmetic", 1) < 4
    assert width("then arithmetic", 32) <= 1


def test_places_are_chances_of_siblings_whose_elders_were_rejected() -> None:
    places = SiblingAcceptance()
    for _ in range(1000):
        places.add(a_round(1, 2, [(0, 2)]), 1.0)
        places.add(a_round(1, 2, [(1, 2)]), 1.0)
        places.add(a_round(0, 2, [(2, 2)]), 1.0)
    none, one, two, three = places.chances(3)
    assert none == 0
    assert one == pytest.approx(1 / 3, abs=0.01)
    assert two == pytest.approx(2 / 3, abs=0.01)
    assert 1 > three > two


def test_a_trial_waits_the_longer_the_more_the_draft_has_not_seen() -> None:
    controller, machine = Auto(MOST), MACHINES["weights are read"]
    for _ in range(300):
        controller.observe(a_round(0, asked(controller, Load(*machine))))

    def waited(behind: float) -> int:
        controller.own_evidence.undrafted, rounds = 0, 0
        while not asked(controller, Load(*machine, catch_up_seconds=lambda: behind)):
            rounds, controller.own_evidence.undrafted = rounds + 1, controller.own_evidence.undrafted + 1
        return rounds

    assert waited(2.0) > 10 * waited(0.0)


@pytest.mark.parametrize(("behind", "left", "drafts"), [(0.0, 3, True), (5.0, 400, True), (5.0, 5, False)])
def test_what_the_draft_must_read_first_must_pay_in_the_tokens_that_may_come(
    behind: float, left: int, drafts: bool
) -> None:
    controller, machine = Auto(MOST), MACHINES["weights are read"]
    simulated([controller], "weights are read", 0.8, 100)
    controller = controller.for_request()
    load = Load(*machine, catch_up_seconds=lambda: behind, tokens_left=lambda: left)
    assert (asked(controller, load) > 0) is drafts
    assert controller.rests is not drafts


@pytest.mark.parametrize(("behind", "left", "drafts"), [(0.0, 3, True), (5.0, 400, True), (50.0, 5, False)])
def test_where_texts_must_repeat_the_prompt_alone_must_pay(behind: float, left: int, drafts: bool) -> None:
    """The others' share is not known, and later on nothing is held to be missing."""
    controller = Auto(MOST).repeatable()
    load = Load(*MACHINES["weights are read"], catch_up_seconds=lambda: behind, tokens_left=lambda: left)
    assert (asked(controller, load) > 0) is drafts
    if drafts:
        controller.observe(a_round(2, 2))
        assert asked(controller, Load(*MACHINES["weights are read"], catch_up_seconds=lambda: 1e9)) > 0


def test_a_draft_that_was_measured_in_training_is_held_to_be_as_good_where_texts_must_repeat() -> None:
    """So it takes fewer rounds to see that it does not pay; where it does, it is drafted on."""
    load = Load(lambda rows: 0.1, lambda rows: 1 + 0.05 * rows)

    def drafted(prior: float, accepted: bool) -> int:
        controller = replace(Auto(MOST), prior=prior).repeatable()
        depths = []
        for _ in range(60):
            depths.append(asked(controller, load))
            controller.observe(a_round(depths[-1] if accepted else 0, depths[-1]))
        return sum(map(bool, depths))

    unknown, measured = drafted(PRIOR_RATE, False), drafted(0.4, False)
    assert 1 <= measured < unknown
    assert drafted(0.4, True) == drafted(PRIOR_RATE, True) == 60


def test_requests_that_begin_anew_hardly_try_what_does_not_pay() -> None:
    """A hundred tokens of a request alone have two trials; what requests learn together is worth some more at first."""
    tried = []
    for requests in (1, 2):
        controller, load = Auto(MOST), Load(lambda rows: 0.9, lambda rows: 1.0, requests)
        depths = []
        for _ in range(100):
            depths.append(asked(controller, load))
            controller.observe(a_round(0, depths[-1]))
        tried.append(sum(map(bool, depths)))
    assert tried[0] <= 2 < tried[1]


def test_plans_are_made_again_when_they_are_old_not_when_requests_come_and_go() -> None:
    controller, asked_for = Auto(MOST), 0

    def verify(rows: int) -> float:
        nonlocal asked_for
        asked_for += 1
        return 1.0

    two, three = (Load(lambda rows: 0.9, verify, drafting) for drafting in (2, 3))
    made = []
    for load in (two, three, *[two, three] * (PLAN_ROUNDS - 1), *[three] * 2 * PLAN_ROUNDS):
        before = asked_for
        asked(controller, load)
        controller.observe(a_round(0, 0))
        made.append(asked_for > before)
    assert made[:2] == [True, True] and not any(made[2 : 2 * PLAN_ROUNDS])
    assert sum(made[2 * PLAN_ROUNDS :]) == 1


def test_plans_outlive_requests_and_keep_nothing_of_them() -> None:
    class Request:
        def left(self) -> int:
            return 50

    engine, request = Auto(MOST, lookup=True), Request()
    controllers, kept = requests_of(engine.for_request(), 2), weakref.ref(request)
    for controller in controllers:
        asked(controller, Load(lambda rows: 0.1, lambda rows: 1.0, 2, tokens_left=request.left))
    assert engine.shared_evidence.plans
    del controller, controllers, request
    gc.collect()
    assert kept() is None


def test_where_drafts_do_not_pay_rounds_are_plain_and_ask_for_nothing() -> None:
    """Neither what the draft has not seen, nor whether to go on; where lookup drafts too, that is known later."""

    def never() -> float:
        raise AssertionError("asked for what no plain round needs")

    controller, load = Auto(MOST), Load(*MACHINES["dear drafts"])
    for _ in range(300):
        controller.observe(a_round(0, asked(controller, load)))
    controller.own_evidence.undrafted = 0
    controller.start(STREAMS, Load(*MACHINES["dear drafts"], catch_up_seconds=never))
    assert controller.rests
    both = Auto(MOST, lookup=True)
    both.own_evidence = controller.own_evidence
    both.start(STREAMS, load)
    assert not both.rests


@pytest.mark.parametrize(("machine", "requests", "prepares"), [
    ("dear drafts", 1, True), ("dear drafts", 8, False), ("weights are read", 8, True),
])  # fmt: skip
def test_where_passes_are_shared_nothing_is_kept_for_drafts_that_do_not_pay(
    machine: str, requests: int, prepares: bool
) -> None:
    controller = requests_of(Auto(MOST, lookup=True), 1)[0]
    load = Load(*MACHINES[machine], requests)
    for _ in range(300):
        controller.observe(a_round(min(1, drafted := asked(controller, load)), drafted))
    controller.own_evidence.undrafted = controller.shared_evidence.undrafted = 0
    controller.start(STREAMS, load)
    assert controller.prepares is prepares


def test_what_lookup_drafts_alone_teaches_nothing_of_the_models() -> None:
    controller, load = Auto(MOST, lookup=True), Load(*MACHINES["weights are read"])
    known = controller.own_evidence
    for _ in range(50):
        controller.start(STREAMS, load)
        assert controller.deeper(DraftState(0, ahead=[0.9]))
        controller.observe(a_round(0, 1, [(1, 1)]))
    assert not known.drafted and not known.siblings.met and not any(known.rates.own.tried + known.rates.next.tried)


@pytest.mark.parametrize(("price", "alone", "shared"), [(0.3, True, True), (0.42, True, False), (0.5, False, False)])
def test_drafts_of_requests_that_share_steps_must_promise_more(price: float, alone: bool, shared: bool) -> None:
    """One and a half tokens of a step that takes `price` longer; of eight requests some lag behind, and share less."""

    def drafts(requests: int) -> bool:
        controller = Auto(1)
        controller.own_evidence = controller.shared_evidence
        for accepted in [1, 0] * 300:
            controller.shared_evidence.siblings.add(a_round(accepted, 1), 0.99)
            controller.shared_evidence.rates.next.add(UNKNOWN_BIN, accepted > 0)
        controller.shared_evidence.drafted = 300
        return asked(controller, Load(lambda rows: price, lambda rows: 1.0, requests)) > 0

    assert (drafts(1), drafts(8)) == (alone, shared)


@pytest.mark.parametrize("seconds", [1e-3, 1.0])
def test_the_text_is_searched_now_and_then_where_that_has_gained_less_than_its_time(seconds: float) -> None:
    """A search takes as long as a twentieth of a token of a small model, as nothing beside one of a large model."""
    load = Load(lambda rows: seconds, lambda rows: seconds)
    controller = Auto(MOST, lookup=True, model=False)

    def searched(rounds: int, accepted: int) -> int:
        count = 0
        for _ in range(rounds):
            controller.start(STREAMS, load)
            if controller.rests:
                controller.observe(a_round(0, 0))
                continue
            count += 1
            for depth in range(accepted):
                assert controller.deeper(DraftState(depth, chances=[0.9], ahead=[0.9] * (accepted - depth)))
            controller.observe(a_round(accepted, accepted))
        return count

    assert searched(LOOKUP_ROUNDS, 4) == LOOKUP_ROUNDS
    assert searched(50, 0) == 50  # what was gained is remembered for a while
    assert (searched(150, 0) < 150) is (seconds < 1)
    if seconds < 1:
        assert searched(20 * LOOKUP_ROUNDS, 0) == 20
        assert searched(LOOKUP_ROUNDS, 4) >= 1


def test_lookup_is_worth_what_models_would_not_draft() -> None:
    """One row costs 0.02 of a pass: 0.3 of a token is worth it, but not where a model has it most of the time."""
    load = Load(*MACHINES["dear drafts"])
    for chance, worth in ((0.0, 1), (1.0, 0)):
        controller = Auto(MOST, lookup=True)
        for _ in range(300):
            depth = asked(controller, load)
            controller.observe(a_round(round(chance * depth), depth, [(round(1 - chance), 1)] * min(depth, 1)))
        controller.own_evidence.undrafted = 0
        controller.start(STREAMS, load)
        assert controller.copies([0.3]) == worth


def test_requests_learn_together_unless_their_texts_must_repeat() -> None:
    first = Auto(MOST)
    assert first.shared and first.needs >= LOAD
    assert first.for_request().shared_evidence is first.shared_evidence
    own = Auto(MOST).repeatable()
    assert not own.shared and not LOAD & own.needs


def test_nothing_is_drafted_with_gamma_zero() -> None:
    controller = Auto(0)
    for _ in range(30):
        assert asked(controller, ALONE) == 0
        controller.observe(a_round(0, 0))
