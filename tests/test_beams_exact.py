"""DSBD through the whole loop has the law of beam sampling to 1e-12: every draw and coin of all rounds is enumerated.

The reference is written down a second time in beam_reference.py.
"""

import math
from collections.abc import Hashable
from typing import Any

import pytest
from beam_enumeration import Scripted
from beam_reference import BeamLaw, Beams, Sequence_
from enumeration import Law, ScriptedChoices, replays
from tabular import exact_law, total_variation

from draftwood import Engine, GenerationResult, SamplingParams, TabularModel
from draftwood.core.forest import FINISHED, Forest, Verdict, advance
from draftwood.verify import layers
from draftwood.verify.joint import Joint

PROMPT = [1, 1]
END = frozenset({0})
EXACT = 1e-12


class Enumerated:
    """An engine whose beams are drawn and judged by `ScriptedChoices`."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        vocab: int = 3,
        seed: int = 31,
        end: frozenset[int] = END,
        target: TabularModel | None = None,
        draft: TabularModel | None = None,
    ) -> None:
        self.target = target or TabularModel.random(vocab, seed=seed)
        self.end = end
        self.engine = Engine(self.target, [draft or TabularModel.random(vocab, seed=seed + 1)], end_tokens=end)
        self.choices = ScriptedChoices([])
        for module in ("draftwood.verify.layers", "draftwood.draft.beam"):
            patch.setattr(f"{module}.Seeded", lambda streams, purpose: Scripted(self.choices))

    def law(self, method: dict[str, Any], sampling: dict[str, Any], tokens: int, outcome: Any) -> Law[Any]:
        """The law of `outcome(result)`; also checks the likelihoods of every single run."""
        wanted = BeamLaw(self.target, PROMPT, SamplingParams(**sampling), self.end, method.get("warp", "joint"))

        def experiment(choices: ScriptedChoices) -> Hashable:
            self.choices = choices
            result = self.engine.generate(PROMPT, method, sampling, max_new_tokens=tokens)
            for beam in result.beams:
                assert abs(beam.log_likelihood - wanted.score(tuple(beam.tokens))) < 1e-9
            assert result.tokens == result.beams[0].tokens
            return outcome(result)

        law: Law[Any] = {}
        for weight, what in replays(experiment):
            law[what] = law.get(what, 0.0) + weight
        assert abs(math.fsum(law.values()) - 1) < EXACT
        return law


def all_beams(result: GenerationResult) -> Beams:
    return tuple(sorted(tuple(beam.tokens) for beam in result.beams))


Options = dict[str, Any]
ENDLESS: frozenset[int] = frozenset()
Cell = tuple[Options, Options, int, int, frozenset[int]]  # dsbd's options, sampling, vocabulary, tokens, end tokens
CELLS: list[Cell] = [
    ({"width": 1, "draft_width": 2, "gamma": 1}, {}, 3, 3, ENDLESS),
    ({"width": 1, "draft_width": 2, "gamma": 2}, {"top_p": 0.8}, 3, 3, END),
    ({"width": 1, "draft_width": 2, "gamma": 1, "replacement": False}, {}, 3, 3, END),
    ({"width": 1, "draft_width": 1, "gamma": 3}, {"temperature": 1.4, "min_p": 0.3}, 3, 4, END),
    ({"width": 2, "draft_width": 2, "gamma": 1, "root_weights": "target"}, {}, 2, 3, END),
    ({"width": 2, "draft_width": 2, "gamma": 1, "warp": "token"}, {"temperature": 0.7}, 2, 2, END),
    ({"width": 2, "draft_width": 2, "gamma": 2, "replacement": False}, {"presence_penalty": 0.5}, 2, 2, END),
    ({"width": 2, "draft_width": 3, "gamma": 1, "replacement": False, "root_weights": "target"}, {}, 2, 2, ENDLESS),
    ({"width": 2, "draft_width": 3, "gamma": 1, "replacement": False, "warp": "token"}, {}, 2, 2, ENDLESS),
]
MORE: list[Cell] = (
    [
        ({"width": 1, "draft_width": 2, "gamma": gamma, "replacement": replacement, **rest}, sampling, 3, 3, end)
        for gamma in (1, 2)
        for replacement in (True, False)
        for rest in ({}, {"root_weights": "target"}, {"warp": "token"})
        for sampling in ({}, {"temperature": 0.75, "repetition_penalty": 1.5, "frequency_penalty": 0.25})
        for end in (ENDLESS, END)
    ]
    + [
        ({"width": 2, "draft_width": 2, "gamma": gamma, "replacement": replacement, **rest}, {}, 2, 3, end)
        for gamma, end in ((1, ENDLESS), (2, END))
        for replacement in (True, False)
        for rest in ({}, {"root_weights": "target"}, {"warp": "token"})
    ]
    + [
        ({"width": 2, "draft_width": 2, "gamma": 1, "warp": "token"}, {"temperature": 0.7}, 2, 3, END),
        ({"width": 2, "draft_width": 2, "gamma": 2, "replacement": False}, {"presence_penalty": 0.5}, 2, 3, END),
        ({"width": 2, "draft_width": 3, "gamma": 1, "replacement": False, "root_weights": "target"}, {}, 2, 3, ENDLESS),
        ({"width": 2, "draft_width": 3, "gamma": 1, "replacement": False, "warp": "token"}, {}, 2, 3, ENDLESS),
    ]
)


def distance(enumerated: Enumerated, options: Options, sampling: Options, tokens: int) -> float:
    """Total variation between the final set of beams of dsbd and of beam sampling of the same width."""
    width, replacement = options["width"], options.get("replacement", True)
    law = enumerated.law({"name": "dsbd", "n_best": width, **options}, sampling, tokens, all_beams)
    wanted = BeamLaw(
        enumerated.target, PROMPT, SamplingParams(**sampling), enumerated.end, options.get("warp", "joint")
    )
    return total_variation(law, wanted.law(width, replacement, tokens))


@pytest.mark.some(3)
@pytest.mark.parametrize(("options", "sampling", "vocab", "tokens", "end"), CELLS, ids=str)
def test_final_beams_follow_beam_sampling(
    options: Options, sampling: Options, vocab: int, tokens: int, end: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert distance(Enumerated(monkeypatch, vocab, end=end), options, sampling, tokens) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize(("options", "sampling", "vocab", "tokens", "end"), MORE, ids=str)
def test_final_beams_follow_beam_sampling_in_every_combination(
    options: Options, sampling: Options, vocab: int, tokens: int, end: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert distance(Enumerated(monkeypatch, vocab, end=end, seed=77), options, sampling, tokens) < EXACT


@pytest.mark.parametrize("width", [1, 2])
def test_beam_sampling_itself_follows_its_definition(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference in the package against the one written down a second time."""
    for replacement in (True, False):
        enumerated = Enumerated(monkeypatch, 3)
        method = {"name": "beam-sampling", "width": width, "n_best": width, "replacement": replacement}
        law = enumerated.law(method, {"temperature": 0.75}, 2, all_beams)
        wanted = BeamLaw(enumerated.target, PROMPT, SamplingParams(temperature=0.75), END)
        assert total_variation(law, wanted.law(width, replacement, 2)) < EXACT


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_k": 2}], ids=str)
def test_one_beam_is_plain_sampling(sampling: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """Width 1 with each beam's tokens warped: the law of multinomial decoding."""
    for options in ({"draft_width": 2, "gamma": 1}, {"draft_width": 3, "gamma": 1, "replacement": False}):
        enumerated = Enumerated(monkeypatch, 3)
        method = {"name": "dsbd", "width": 1, "warp": "token", **options}
        law = enumerated.law(method, sampling, 3, lambda result: tuple(result.tokens))
        assert total_variation(law, exact_law(enumerated.target, PROMPT, SamplingParams(**sampling), 3, END)) < EXACT


@pytest.mark.parametrize("support", ["draft lacks tokens", "target lacks tokens", "draft has a smaller vocabulary"])
def test_supports_that_differ(support: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft cannot propose what the target wants, so a root may be impossible under it, and the reverse."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        return [0.3, 0.0, 0.7] if sum(prefix) % 2 else [0.2, 0.8, 0.0]

    full = TabularModel.random(3, seed=5)
    lacking = TabularModel.random(2, seed=6) if "smaller" in support else TabularModel(law, 3)
    models = {"target": lacking, "draft": full} if support.startswith("target") else {"target": full, "draft": lacking}
    for options, tokens in (
        ({"width": 1, "draft_width": 1, "gamma": 1}, 3),
        ({"width": 1, "draft_width": 2, "gamma": 1, "replacement": False}, 2),
        ({"width": 2, "draft_width": 2, "gamma": 1}, 2),
    ):
        assert distance(Enumerated(monkeypatch, **models, end=ENDLESS), options, {}, tokens) < EXACT


# -- dynamic width: each layer given those before and its own width --------------------------------------------------


DYNAMIC: list[Cell] = [
    ({"draft_width": 2, "gamma": 1, "threshold": 0.3}, {}, 2, 3, END),
    ({"draft_width": 3, "gamma": 1, "threshold": 0.3, "root_weights": "target"}, {"temperature": 1.5}, 2, 2, ENDLESS),
    ({"draft_width": 2, "gamma": 2, "threshold": 0.3, "replacement": False, "warp": "token"}, {}, 2, 2, END),
    ({"draft_width": 2, "gamma": 2, "threshold": 0.3, "width_draws": "drafted"}, {}, 2, 2, END),
]
MORE_DYNAMIC: list[Cell] = [
    ({"draft_width": 2, "gamma": 1, "threshold": 0.3}, {}, 2, 3, ENDLESS),
    ({"draft_width": 2, "gamma": 2, "threshold": 0.3}, {}, 2, 3, END),
    ({"draft_width": 2, "gamma": 2, "threshold": 0.3, "replacement": False}, {}, 2, 3, END),
    ({"draft_width": 2, "gamma": 1, "threshold": 0.3, "replacement": False, "warp": "token"}, {}, 2, 3, ENDLESS),
]


@pytest.mark.parametrize(
    ("options", "sampling", "vocab", "tokens", "end"),
    [*DYNAMIC, *(pytest.param(*cell, marks=pytest.mark.slow) for cell in MORE_DYNAMIC)],
    ids=str,
)
def test_layers_of_dynamic_width(
    options: Options, sampling: Options, vocab: int, tokens: int, end: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given all layers before and its width, a layer is so many draws from the joint of the layer before."""
    enumerated = Enumerated(monkeypatch, vocab, end=end)
    seen: list[tuple[int, tuple[Sequence_, ...]]] = []

    def spy(forest: Forest, verdict: Verdict) -> Any:
        for layer in verdict.layers:
            beams = [
                (*forest.sequence(node)[forest.prompt :], *([] if token == FINISHED else [token]))
                for node, token in layer.beams
            ]
            seen.append((layer.width, tuple(beams)))
        return advance(forest, verdict)

    def layers(result: GenerationResult) -> Any:
        history = tuple(seen)
        seen.clear()
        return history

    monkeypatch.setattr("draftwood.engine.decode.advance", spy)
    law = enumerated.law({"name": "dsbd", "n_best": 2, **options}, sampling, tokens, layers)
    wanted = BeamLaw(
        enumerated.target, PROMPT, SamplingParams(**sampling), enumerated.end, options.get("warp", "joint")
    )
    given: dict[Any, Law[Any]] = {}
    for history, chance in law.items():
        for i, (width, beams) in enumerate(history):
            of = given.setdefault((history[:i], width), {})
            of[beams] = of.get(beams, 0.0) + chance
    assert len({width for _, width in given}) > 1
    for (history, width), of in given.items():
        before = history[-1][1] if history else ((),)
        total = math.fsum(of.values())
        found = {beams: chance / total for beams, chance in of.items()}
        off = total_variation(found, wanted.draws(before, width, options.get("replacement", True)))
        assert off * total < EXACT


# -- the check has power: wrong engines fail it -----------------------------------------------------------------------

SHARP: Options = {"width": 1, "draft_width": 2, "gamma": 2}
WIDE: Options = {"width": 2, "draft_width": 2, "gamma": 1}


def test_check_finds_the_ratio_the_wrong_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec §9.1."""
    monkeypatch.setattr("draftwood.verify.beam.acceptance", lambda p, q: min(1.0, q / p) if p > 0 else 1.0)
    assert distance(Enumerated(monkeypatch, 2), SHARP, {}, 3) > 0.2


def test_check_finds_a_draft_joint_that_was_not_restricted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec §9.2."""
    monkeypatch.setattr(Joint, "restrict", lambda joint, beams: joint)
    assert distance(Enumerated(monkeypatch, 2), SHARP, {}, 3) > 0.02


def test_check_finds_forgotten_likelihoods_of_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that weighs its beams alike."""
    over = layers.joint_over

    def forgetful(nodes: Any, score: Any, *rest: Any) -> Joint:
        return over(nodes, dict.fromkeys(nodes, 0.0), *rest)

    monkeypatch.setattr(layers, "joint_over", forgetful)
    assert distance(Enumerated(monkeypatch, 2), WIDE, {}, 2) > 0.05


def test_check_finds_the_wrong_kind_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distinct draws judged as if they had been independent."""
    judge = layers.verify_layer
    monkeypatch.setattr(layers, "verify_layer", lambda *args: judge(*args[:6], True))
    enumerated = Enumerated(monkeypatch, 3)
    law = enumerated.law({"name": "dsbd", **SHARP, "replacement": False}, {}, 2, all_beams)
    wanted = BeamLaw(enumerated.target, PROMPT, SamplingParams(), END)
    assert total_variation(law, wanted.law(1, True, 2)) > 0.02
