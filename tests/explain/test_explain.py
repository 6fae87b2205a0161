"""`draftwood explain`: every draft of every round with its fate, in 80 columns and without colour."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import tiny_models
from conftest import Command
from rich.cells import cell_len

import draftwood
from draftwood import Engine, Round, TabularModel
from draftwood.core.forest import FINISHED
from draftwood.core.records import BeamLayer, Judged
from draftwood.explain.text import lines, spelling
from draftwood.explain.tree import FATES, completions, hypotheses_after, tree_of, trees_of
from draftwood.models.text.tokenizer import Tokenizer

PROMPT = "Once upon a time"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def letters(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def make_round(
    tokens: list[int], forest: list[tuple[int, int]], path: list[int], roots: list[tuple[int, int]], **given: Any
) -> Round:
    """A round whose forest is (token, parent) pairs, the last `drafted` of them drafts; roots are (parent, token)."""
    values: dict[str, Any] = {
        "position": 0,
        "logprobs": [-1.0] * len(tokens),
        "warped_logprobs": [-0.5] * len(tokens),
        "top_logprobs": [],
        "warped_top_logprobs": [],
        "kinds": ["plain"] * len(tokens),
        "drafted": len(forest) - 1,
        "draws": len(forest) - 1,
        "accepted": 0,
        "depth_accepted": 0,
        "attempted": 0,
        "draft_seconds": 0.0,
        "verify_seconds": 0.0,
        "sampling_seconds": 0.0,
        "other_seconds": 0.0,
        "target_rows": 0.0,
        "draft_rows": 0.0,
        "draft_forwards": 0,
        "forest_token": [token for token, _ in forest],
        "forest_parent": [parent for _, parent in forest],
        "forest_path": path,
        "roots": [token for _, token in roots],
        "root_parents": [parent for parent, _ in roots],
    }
    return Round(tokens=tokens, **{**values, **given})


def explain(rounds: Sequence[Round], prompt: Sequence[int], *options: Any, **more: Any) -> list[str]:
    return lines(trees_of(rounds, prompt), prompt, *options, **more)


def shown(*rounds: Round, ends: frozenset[int] = frozenset(), width: int = 100) -> list[str]:
    """The rounds after the prompt 'xa', without the legend and runs of spaces."""
    found = explain(rounds, [23, 0], letters, ends, width)
    return [re.sub(r"(?<=[^\s>])  +", "  ", line) for line in found[found.index("") + 1 :]]


A, B, C, D, E, F, Z = 0, 1, 2, 3, 4, 5, 25


def test_a_chain_until_its_first_rejection() -> None:
    round_ = make_round([B, E], [(A, -1), (B, 0), (C, 1), (D, 2)], [0, 1], [(1, E)])
    assert shown(round_) == [
        "Round 1 · 3 drafts · out: 'be'",
        "  after 'xa'  p",
        "  + 'b'  accepted  0.607",
        "    - 'c'  rejected",
        "      . 'd'  unreached",
        ">   * 'e'  corrected  0.607",
    ]


def test_a_chain_that_is_accepted_ends_in_a_bonus_and_the_next_round_begins_there() -> None:
    first = make_round([B, C], [(A, -1), (B, 0)], [0, 1], [(1, C)])
    second = make_round([D], [(C, -1)], [0], [(0, D)])
    assert shown(first, second) == [
        "Round 1 · 1 draft · out: 'bc'",
        "  after 'xa'  p",
        "  + 'b'  accepted  0.607",
        ">   ! 'c'  bonus  0.607",
        "",
        "Round 2 · no drafts · out: 'd'",
        "  after 'xabc'  p",
        "> = 'd'  plain  0.607",
    ]


def test_siblings_behind_the_accepted_one_were_not_looked_at() -> None:
    round_ = make_round([C, F], [(A, -1), (B, 0), (C, 0), (D, 0), (E, 1), (F, 3)], [0, 2], [(2, F)])
    assert shown(round_)[2:] == [
        "  - 'b'  rejected",
        "    . 'e'  unreached",
        "  + 'c'  accepted  0.607",
        ">   ! 'f'  bonus  0.607",
        "  ~ 'd'  discarded",
        "    . 'f'  unreached",
    ]


def test_drafts_behind_the_end_are_cut_off() -> None:
    round_ = make_round([B, Z], [(A, -1), (B, 0), (Z, 1), (C, 2)], [0, 1, 2, 3], [(3, D)])
    assert shown(round_, ends=frozenset({Z}))[2:] == [
        "  + 'b'  accepted  0.607",
        "    + 'z'  accepted, ends  0.607",
        "      . 'c'  cut off",
        "        . 'd'  cut off",
    ]


def test_in_large_forests_what_was_not_looked_at_is_counted() -> None:
    forest = [(A, -1), (B, 0), (C, 0)] + [(i, 1) for i in range(12)] + [(i, 3) for i in range(12)]
    round_ = make_round([C, D], forest, [0, 2], [(2, D)])
    assert shown(round_)[2:] == ["  - 'b'  rejected (+24)", "  + 'c'  accepted  0.607", ">   ! 'd'  bonus  0.607"]
    assert "(+2)" in "\n".join(explain([round_], [A], letters))


def layers() -> Round:
    """b was accepted twice of three draws for a width of 2; below it c was accepted, d was not; e was chosen."""
    first = BeamLayer(
        2,
        [(0, B), (0, B)],
        2,
        [
            Judged((0, B), "accepted", 0.5, 0.25, 1.0),
            Judged((0, C), "rejected", 0.125, 0.25, 0.5),
            Judged((0, B), "accepted", 0.5, 0.25, 1.0),
            Judged((0, B), "discarded"),
        ],
        True,
        0.875,
        1.0,
    )
    second = BeamLayer(
        2,
        [(1, C), (1, E)],
        1,
        [
            Judged((1, C), "accepted", 0.25, 0.5, 0.5),
            Judged((2, D), "unreached"),
            Judged((1, D), "rejected", 0.0, 0.5, 0.0),
            Judged((1, C), "rejected", 0.0, 0.5, 0.0),
        ],
        False,
        0.5,
        0.75,
    )
    forest = [(A, -1), (B, 0), (C, 0), (C, 1), (D, 2), (D, 1), (F, 3)]
    return make_round([B], forest, [0, 1], [(1, C), (1, E)], layers=[first, second], draws=12)


def test_layers_of_beams() -> None:
    assert shown(layers()) == [
        "Round 1 · 6 drafts · out: 'b'",
        "  after 'xa'  p  q accept",
        "  + 'b' x2  accepted  0.500  0.250  100%",
        "  ~ again  discarded",
        ">   + 'c'  accepted  0.250  0.500  50%",
        "    - again  rejected  0.000  0.500  0%",
        "      . 'f'  not reached",
        "    - 'd'  rejected  0.000  0.500  0%",
        ">   * 'e'  corrected",
        "  - 'c'  rejected  0.125  0.250  50%",
        "    . 'd'  unreached",
        "  layer 1: width 2 of 4 draws (88%): 2 accepted, 1 rejected, 1 discarded = 1 beam",
        "  layer 2: width 2 of 4 draws (50%): 1 accepted, 2 rejected, 1 unreached, 1 corrected",
    ]


def test_the_next_round_begins_with_the_beams() -> None:
    """One of them ended: it stays, and its absence from the trunk keeps the others' text apart."""
    plain = BeamLayer(3, [(0, D), (0, Z), (1, FINISHED)], 0, [], False)
    round_ = make_round([], [(C, -1), (E, -1)], [], [(0, D), (0, Z), (1, FINISHED)], layers=[plain], drafted=0, draws=0)
    drawn = shown(layers(), round_, ends=frozenset({Z}))
    assert drawn[drawn.index("") + 1 :] == [
        "Round 2 · no drafts · nothing yet: the beams differ",
        "  after 'xab'  p  q accept",
        "  beam 1  'c'",
        ">   = 'd'  plain",
        ">   = 'z'  plain, ends",
        "  beam 2  'e' (has ended)",
        ">   = (has ended)  plain",
        "  layer 1: width 3: 3 plain",
    ]


def test_beam_search_has_no_chances() -> None:
    layer = BeamLayer(2, [(0, D), (0, B)], 1, [Judged((0, B), "accepted"), Judged((0, C), "rejected")], False)
    round_ = make_round([], [(A, -1), (B, 0), (C, 0)], [0], [(0, D), (0, B)], layers=[layer])
    assert shown(round_) == [
        "Round 1 · 2 drafts · nothing yet: the beams differ",
        "  after 'xa'",
        "> + 'b'  accepted",
        "  - 'c'  rejected",
        "> * 'd'  corrected",
        "  layer 1: width 2 of 2 draws: 1 accepted, 1 rejected, 1 corrected",
    ]
    assert completions(layer) == [(0, D)]  # its beams are ordered by likelihood, drafts or not


def test_the_legend_explains_what_is_there() -> None:
    lines = explain([make_round([B], [(A, -1)], [0], [(0, B)])], [A], letters)
    assert [line.split()[:2] for line in lines[: lines.index("")]] == [
        ["=", "plain"],
        [">", "where"],
        ["p", "target's"],
    ]
    whole = "\n".join(explain([layers()], [A], letters))
    for words in (
        "+ accepted",
        "- rejected",
        "* corrected",
        "~ discarded",
        ". unreached",
        ". not reached",
        "'again'",
        "min(1, a p/q)",
    ):
        assert words in whole
    assert "bonus" not in whole


METHODS: list[dict[str, Any]] = [
    {"name": "autoregressive"},
    {"name": "speculative", "gamma": 20},
    {"name": "specinfer"},
    {"name": "mcsd"},
    {"name": "mcsd", "replacement": True, "verify": "coupled"},
    {"name": "lookup"},
    {"name": "beam-sampling"},
    {"name": "beam-sampling", "replacement": False},
    {"name": "dsbd", "threshold": 0.3},
    {"name": "dsbd", "width": 3, "warp": "token", "gamma": 5},
    {"name": "dsbd", "replacement": False, "min_width": 2, "root_weights": "target"},
    {"name": "dsbd", "one_cache": True, "min_width": 3},
    {"name": "beam-search"},
    {"name": "speculative-beam-search", "width": 3, "n_best": 2, "depth": "fixed"},
]


@pytest.mark.some(7)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: " ".join(map(str, method.values())))
def test_nothing_is_left_out(method: dict[str, Any]) -> None:
    """On random models: every draft has a fate, every draw is counted, no line is wider than the terminal."""
    choose = random.Random(5)
    for seed in range(8):
        drafts = [
            TabularModel.random(6, seed=choose.choice([seed, seed + 50]))
        ]  # one that agrees, or one that does not
        engine = Engine(TabularModel.random(6, seed=seed), drafts, end_tokens=frozenset({0} if seed % 2 else ()))
        result = engine.generate([1, 2, 1], method, max_new_tokens=choose.randint(1, 20), seed=seed)
        width = choose.choice([76, 80, 100])
        lines = explain(result.rounds, result.prompt_tokens, letters, engine.end_tokens, width)
        assert max(map(len, lines)) <= width
        assert sum(line.startswith("Round ") for line in lines) == len(result.rounds)
        hypotheses = [(1,)]
        for round_ in result.rounds:
            tree, hypotheses = tree_of(round_, hypotheses), hypotheses_after(round_)
            size = len(round_.forest_token)
            assert all(tree.nodes[node].draws for node in range(size - round_.drafted, size))
            assert (
                sum(node.goes_on for node in tree.outcomes.values()) == len(round_.roots) or round_ is result.rounds[-1]
            )
            found = Counter[str]()
            for node in tree.outcomes.values():
                for draw in node.draws:
                    found[draw.fate] += draw.times
            if round_.layers:
                for fate in ("accepted", "rejected", "discarded", "unreached"):
                    assert found[fate] == sum(one.fate == fate for layer in round_.layers for one in layer.judged)
            elif round_ is not result.rounds[-1]:
                assert found["accepted"] == round_.accepted
                assert found.total() == round_.drafted + 1 and found[round_.kinds[-1]] == 1
            assert set(found) <= set(FATES)


def test_wide_and_steering_characters_fit() -> None:
    texts = ["\x1b[2J", "日本語のテキスト" * 9, "\u202eabc", "\t\n", "🙂" * 60, "'", "é" * 99]

    def words(tokens: Sequence[int]) -> str:
        return "".join(texts[token] for token in tokens)

    round_ = make_round([1, 4, 2], [(0, -1), (1, 0), (3, 0), (4, 1), (6, 1), (5, 4)], [0, 1, 3], [(3, 2)])
    lines = explain([round_], [1, 0], words)
    assert max(map(cell_len, lines)) <= 80
    assert all(line.isprintable() for line in lines)
    assert r"'\t\n'" in "\n".join(lines)


def test_colour_changes_no_letter() -> None:
    plain = explain([layers()], [A], letters)
    coloured = explain([layers()], [A], letters, colour=True)
    assert not any("\x1b" in line for line in plain)
    assert "\x1b[32m" in "".join(coloured)
    assert [re.sub(r"\x1b\[[\d;]*m", "", line) for line in coloured] == plain


def test_tokens_are_spelled_as_within_a_text(pair: list[str]) -> None:
    tokenizer = Tokenizer(tiny_models.byte_tokenizer(), "bytes")
    words = spelling(tokenizer)
    space, half = tokenizer.encode(" ")[0], tokenizer.encode("é")[0]
    assert (words([space]), words([half]), words([tiny_models.EOS])) == (" ", f"<{half}>", "<eos>")
    assert words(tokenizer.encode(" é")) == " é"


def test_the_explanation_follows_the_text(command: Command, pair: list[str]) -> None:
    flags = [PROMPT, *pair, "--method", "dsbd", "--top-k", 10, "--max-new-tokens", 12, "--seed", 3]
    explained = command("explain", *flags)
    assert explained.code == 0 and "\x1b" not in explained.out
    assert "  - rejected " in explained.out
    lines = explained.out.splitlines()
    assert max(map(cell_len, lines)) <= 80
    engine = draftwood.load(pair[1], pair[3])
    result = engine.generate(PROMPT, "dsbd", {"top_k": 10}, 12, 3)
    assert sum(line.startswith("Round ") for line in lines) == len(result.rounds)
    assert sum(line.startswith("  layer ") for line in lines) == result.metrics.layers + 1  # and the legend's
    assert "\x1b[" in command("explain", *flags, "--color").out


def test_the_document_holds_the_layers(command: Command, pair: list[str]) -> None:
    flags = [PROMPT, *pair, "--method", "dsbd", "--top-k", 10, "--max-new-tokens", 12, "--seed", 3, "--json"]
    document = command("generate", *flags).document
    result = draftwood.load(pair[1], pair[3]).generate(PROMPT, "dsbd", {"top_k": 10}, 12, 3)
    for entry, round_ in zip(document["rounds"], result.rounds, strict=True):
        assert (entry["forest_token"], entry["forest_parent"]) == (round_.forest_token, round_.forest_parent)
        assert (entry["roots"], entry["root_parents"]) == (round_.roots, round_.root_parents)
        for said, layer in zip(entry["layers"], round_.layers, strict=True):
            assert (said["width"], said["accepted"], said["stands"]) == (layer.width, layer.accepted, layer.stands)
            assert (said["chance"], said["least"]) == (layer.chance, layer.least)
            assert said["draws"] == len(said["judged"]) == len(layer.judged)
            assert [tuple(beam) for beam in said["beams"]] == layer.beams
            for one, found in zip(said["judged"], layer.judged, strict=True):
                assert (one["node"], one["token"], one["fate"]) == (*found.outcome, found.fate)
                assert one.get("chance", 0) == found.chance and one.get("p", 0) == found.p
    plain = command("generate", PROMPT, *pair, "--json", "--max-new-tokens", 5).document
    assert all(entry["layers"] == [] for entry in plain["rounds"])
