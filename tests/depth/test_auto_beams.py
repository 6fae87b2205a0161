"""Beams under the controller `auto`: all of a layer has a price, rounds rest, and the law stays the same."""

from types import SimpleNamespace
from typing import Any

import pytest
from tabular import total_variation
from test_auto import a_round, asked
from test_beams_exact import ENDLESS, EXACT, PROMPT, BeamLaw, Enumerated, all_beams
from test_load_lossless import ADVERSARIES, by_chance, loads

from draftwood import Engine, GenerationResult, SamplingParams, TabularModel
from draftwood.core.records import Round
from draftwood.depth import Auto, Load


def test_a_layer_of_beams_is_drafted_below_all_of_them() -> None:
    load = Load(lambda rows: rows / 100, lambda rows: 1 + rows / 10, drafting=2, others=1, rows=3, hypotheses=4)
    drafts, passes = load.steps([6, 6])
    assert drafts == pytest.approx([0, 0.08 / 2, 0.08 / 2 + 0.12 / 2])
    assert passes == pytest.approx([(1 + 1.1) / 2, (1 + 2.3) / 2, (1 + 3.5) / 2])
    assert load.one == pytest.approx(0.04 + 0.4)


def beams(hypotheses: int = 4) -> Auto:
    return Auto(3, roots=hypotheses, hypotheses=hypotheses)


LOAD = Load(lambda rows: 0.02 * rows, lambda rows: 1 + 0.1 * rows, hypotheses=4)


def test_beams_rest_where_layers_fail_and_other_texts_are_their_first_guess() -> None:
    first = beams()
    drafted = []
    for _ in range(100):
        drafted.append(asked(first, LOAD))
        first.observe(a_round(0, drafted[-1]))
    assert drafted[0] and not any(drafted[20:60]) and first.rests
    another = first.for_request()
    another.own_evidence = type(another.own_evidence)()
    assert not asked(another, LOAD)
    chain = Auto(3)
    chain.shared_evidence = first.shared_evidence
    assert asked(chain, Load(lambda rows: 0.1, lambda rows: 1.0))  # which costs little


def test_beams_whose_layers_stand_are_drafted_on() -> None:
    controller = beams()
    for _ in range(60):
        depth = asked(controller, LOAD)
        controller.observe(a_round(depth, depth))
    assert depth == 3


def test_drawn_beams_are_tried_where_a_layer_is_cheap() -> None:
    """By nominal costs alone, so that the text repeats."""
    cheap, dear = (Load(lambda rows, price=price: price, lambda rows: 1.0, hypotheses=4) for price in (0.1, 0.5))
    assert asked(beams().repeatable(), cheap)
    assert not asked(beams().repeatable(), dear)


@pytest.mark.parametrize("replacement", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_law_is_exact_whenever_rounds_rest(replacement: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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
    method = {"name": "dsbd", "width": 2, "draft_width": 2, "gamma": 1, "n_best": 2, "depth": "auto"}
    method["replacement"] = replacement
    law = enumerated.law(method, {}, 3, all_beams)
    wanted = BeamLaw(enumerated.target, PROMPT, SamplingParams(), enumerated.end, "joint")
    assert total_variation(law, wanted.law(2, replacement, 3)) < EXACT
    assert {bool(round_.drafted) for round_ in rounds} == {True, False}


def test_beam_search_is_the_same_whenever_rounds_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(TabularModel.random(5, seed=1, order=4), [TabularModel.random(5, seed=1, order=2)], load_aware=True)
    drafted = list[int]()
    for number in range(12):
        request: dict[str, Any] = {"prompt": [1 + number % 4, 2, 3], "max_new_tokens": 12}
        plain = engine.generate(method={"name": "beam-search", "width": 3, "n_best": 3}, **request)
        with loads(monkeypatch, by_chance(number)):
            found = engine.generate(method={"name": "speculative-beam-search", "width": 3, "n_best": 3}, **request)
        ours, theirs = ([(beam.tokens, beam.score) for beam in result.beams] for result in (found, plain))
        assert ours == theirs
        drafted += [round_.drafted for round_ in found.rounds]
    assert 0.1 < drafted.count(0) / len(drafted) < 0.9
