"""Beams under the controller `auto`: layers have a price and a chance, rounds rest, and the law stays the same."""

from types import SimpleNamespace
from typing import Any

import pytest
from tabular import total_variation
from test_auto import STREAMS, a_round, requests_of
from test_beams_exact import ENDLESS, EXACT, PROMPT, BeamLaw, Enumerated, all_beams
from test_load_lossless import ADVERSARIES, by_chance, loads

from draftwood import Engine, GenerationResult, SamplingParams, TabularModel
from draftwood.core.records import Round
from draftwood.depth import AutoBeams, DraftState, Load
from draftwood.depth.auto_beams import LAYER_SECONDS, OTHER_ROUNDS, BeamEvidence, Way


def test_a_layer_of_beams_is_drafted_below_all_of_them() -> None:
    load = Load(lambda rows: rows / 100, lambda rows: 1 + rows / 10, drafting=2, others=1, rows=3, hypotheses=4)
    drafts, passes = load.steps([6, 6])
    assert drafts == pytest.approx([0, 0.08 / 2, 0.08 / 2 + 0.12 / 2])
    assert passes == pytest.approx([(1 + 1.1) / 2, (1 + 2.3) / 2, (1 + 3.5) / 2])
    assert load.one == pytest.approx(0.04 + 0.4)


def beams(hypotheses: int = 4, **options: Any) -> AutoBeams:
    return AutoBeams(3, hypotheses, hypotheses, **options)


LOAD = Load(lambda rows: 0.02 * rows, lambda rows: 1 + 0.1 * rows, hypotheses=4)
QUICK = Load(lambda rows: 0.0001 * rows, lambda rows: 0.005 + 0.0005 * rows, hypotheses=4)


def layers(controller: AutoBeams, load: Load, sureness: float) -> int:
    """Layers of a round whose draft is so sure of each."""
    controller.start(STREAMS, load)
    depth = 0
    while controller.deeper(DraftState(depth)) and controller.keeps(lambda least: sureness):
        depth += 1
    return depth


def test_only_layers_that_the_draft_is_sure_of_are_drafted() -> None:
    controller = beams()
    assert layers(controller, LOAD, 0.95) > 0
    assert layers(controller, LOAD, 0.05) == 0
    dear = Load(lambda rows: 0.02 * rows, lambda rows: 1 + 10 * rows, hypotheses=4)
    assert layers(beams(), dear, 0.6) == 0
    free = Load(lambda rows: 0.0, lambda rows: 1.0, hypotheses=4)
    assert layers(beams(), free, 0.2) == 3


def test_layers_are_priced_by_the_beams_that_they_have_had() -> None:
    """Equal draws are one beam: where layers had fewer beams than expected, less sure ones pay."""
    narrow, wide = beams(), beams()
    dear = Load(lambda rows: 0.02 * rows, lambda rows: 1 + 0.2 * rows, hypotheses=4)
    for controller, each in ((narrow, 2), (wide, 4)):
        assert not layers(controller, dear, 0.3)
        for _ in range(60):
            drafted = layers(controller, dear, 0.95)
            controller.observe(a_round(drafted, each * drafted))
        for evidence in (controller.own_evidence, controller.shared_evidence):
            evidence.worth, evidence.standing = BeamEvidence().worth, BeamEvidence().standing
    assert layers(narrow, dear, 0.3)
    assert not layers(wide, dear, 0.3)


def test_what_goes_beside_a_layer_counts_where_it_is_not_measured() -> None:
    """A layer of 2 ms for its rows, in rounds of 7 ms, and LAYER_SECONDS beside where texts must repeat."""
    measured, nominal = beams(), beams().repeatable()
    for controller in (measured, nominal):
        controller.start(STREAMS, QUICK)
    assert measured._price_of(0) == pytest.approx(2 / 7)
    assert nominal._price_of(0) == pytest.approx((2 + 1000 * LAYER_SECONDS) / 7)


def test_how_often_layers_stand_is_learned_by_how_sure_the_draft_was() -> None:
    failing, standing = beams(), beams()
    for _ in range(100):
        failing.observe(a_round(0, layers(failing, LOAD, 0.7)))
        standing.observe(a_round(1, min(1, layers(standing, LOAD, 0.45))))
    for controller in (failing, standing):  # what rounds have gained is another matter
        for evidence in (controller.own_evidence, controller.shared_evidence):
            evidence.worth = BeamEvidence().worth
    assert not layers(failing, LOAD, 0.7)
    assert layers(failing, LOAD, 0.95)  # of which nothing has been said
    assert layers(standing, LOAD, 0.45)


def test_beams_rest_where_drafts_gain_nothing_and_other_requests_know() -> None:
    """Rounds of 7 ms, of which the memory's own time is a part."""
    first, rested = beams(), 0
    for one in requests_of(first, 8):
        for _ in range(60):
            drafted = layers(one, QUICK, 0.95)
            rested += one.rests
            one.observe(a_round(0, drafted))
    assert rested > 300
    another = first.for_request()
    another.start(STREAMS, QUICK)
    assert another.rests
    new = beams()
    new.start(STREAMS, QUICK)
    assert not new.rests


def test_the_better_of_memory_and_model_drafts_and_now_and_then_the_other() -> None:
    """A model's layers stand, the memory's fail; and the other way round."""
    for better in (True, False):
        controller, asked = beams(), []
        for _ in range(20 * OTHER_ROUNDS):
            drafted = layers(controller, LOAD, 0.8)
            asked.append(controller.asks)
            controller.observe(a_round(min(drafted, 1) if controller.asks == better else 0, min(drafted, 1)))
        last = asked[-4 * OTHER_ROUNDS :]
        assert (sum(last) > len(last) / 2) == better
        assert len(set(last)) == 2


def test_a_dear_model_is_not_asked_first() -> None:
    dear, cheap = (Load(lambda rows, price=price: price, lambda rows: 1.0, hypotheses=4) for price in (0.5, 0.01))
    for load, asks in ((dear, False), (cheap, True)):
        controller = beams()
        controller.start(STREAMS, load)
        assert controller.asks == asks
    late = Load(lambda rows: 0.01, lambda rows: 1.0, catch_up_seconds=lambda: 50.0, tokens_left=lambda: 9, hypotheses=4)
    controller = beams()
    controller.start(STREAMS, late)
    assert not controller.asks and not controller.rests
    without = beams(memory=False)
    without.start(STREAMS, late)
    assert without.rests


def test_requests_whose_text_must_repeat_go_by_nominal_costs_and_their_own_rounds() -> None:
    shared = beams()
    for _ in range(300):
        shared.observe(a_round(0, layers(shared, LOAD, 0.95)))
    alone = shared.repeatable().for_request()
    assert not alone.needs
    assert layers(alone, LOAD, 0.95)


def test_a_model_that_has_drafted_goes_on_whatever_others_left_in_a_cache() -> None:
    """Where texts must repeat; else what it must read counts in every round."""
    late = Load(lambda rows: 0.01, lambda rows: 1.0, catch_up_seconds=lambda: 50.0, tokens_left=lambda: 9, hypotheses=4)
    for repeats in (True, False):
        controller = beams(memory=False)
        one = controller.repeatable() if repeats else controller
        layers(one, LOAD, 0.9)
        assert one.asks
        one._way = Way.REST
        one.start(STREAMS, late)
        assert one.asks == repeats


@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.slow), {"memory": True}, {"drafter": "lookup"}], ids=str
)
@pytest.mark.parametrize("replacement", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_law_is_exact_whenever_rounds_rest(
    options: dict[str, Any], replacement: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load follows the tokens that are known, a worst case; an engine anew for each replay."""
    enumerated, rounds = Enumerated(monkeypatch, 2, end=ENDLESS), list[Round]()
    drafts = enumerated.engine.drafts

    def generate(*request: Any, **options: Any) -> GenerationResult:
        engine = Engine(enumerated.target, drafts, end_tokens=ENDLESS, load_aware=True)
        with loads(monkeypatch, ADVERSARIES["drafts after even tokens"]):
            result = engine.generate(*request, **options)
        rounds.extend(result.rounds)
        return result

    monkeypatch.setattr(enumerated, "engine", SimpleNamespace(generate=generate))
    method = {"name": "dsbd", "width": 2, "draft_width": 2, "gamma": 1, "n_best": 2, "depth": "auto", **options}
    method["replacement"] = replacement
    law = enumerated.law(method, {}, 3, all_beams)
    wanted = BeamLaw(enumerated.target, PROMPT, SamplingParams(), enumerated.end, "joint")
    assert total_variation(law, wanted.law(2, replacement, 3)) < EXACT
    assert {bool(round_.drafted) for round_ in rounds} == {True, False}


@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_beam_search_is_the_same_whenever_rounds_rest(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(TabularModel.random(5, seed=1, order=4), [TabularModel.random(5, seed=1, order=2)], load_aware=True)
    drafted, method = list[int](), {"name": "speculative-beam-search", "width": 3, "n_best": 3, "drafter": drafter}
    for number in range(12):
        request: dict[str, Any] = {"prompt": [1 + number % 4, 2, 3], "max_new_tokens": 12}
        plain = engine.generate(method={"name": "beam-search", "width": 3, "n_best": 3}, **request)
        with loads(monkeypatch, by_chance(number)):
            found = engine.generate(method=method, **request)
        ours, theirs = ([(beam.tokens, beam.score) for beam in result.beams] for result in (found, plain))
        assert ours == theirs
        drafted += [round_.drafted for round_ in found.rounds]
    assert 0.1 < drafted.count(0) / len(drafted) < 0.9
