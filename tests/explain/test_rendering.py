"""Output on a terminal: kinds in colour, nothing beyond a cut, nothing that steers it; and JSON without NaN."""

from __future__ import annotations

import io
import json
import math
import re
from typing import Any

import pytest

from draftwood.engine.engine import StreamEvent
from draftwood.engine.loading import load
from draftwood.engine.stopping import Ending
from draftwood.explain import terminal as rendering
from draftwood.explain.terminal import Painter
from draftwood.methods import METHODS, Method


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Spelling:
    """A decoder whose token n is the n-th piece; '' where a character is incomplete."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    def step(self, token: int) -> str:
        return self.pieces[token]


def spans(written: str) -> list[tuple[str, str]]:
    """(colour code, text) of each coloured span."""
    return re.findall(r"\x1b\[([\d;]*)m(.*?)\x1b\[0m", written, re.DOTALL)


def test_each_token_has_the_colour_of_its_kind() -> None:
    out = Terminal()
    painter = Painter(out, Spelling("Once", " upon", " a", " time"), True)
    painter.show("Once upon", [0, 1], ["accepted", "corrected"])
    painter.show(" a time", [2, 3], ["bonus", "plain"])
    assert spans(out.getvalue()) == [("32", "Once"), ("4;35", " upon"), ("1;36", " a")]
    assert out.getvalue().endswith(" time")
    painter.close()
    assert out.getvalue().endswith(" time\n")
    assert rendering.legend(painter.kinds, False) == "1 accepted · 1 corrected · 1 bonus · 1 plain"


def test_a_character_of_several_tokens_is_shown_when_complete() -> None:
    out = Terminal()
    painter = Painter(out, Spelling("", "", "€"), True)
    painter.show("", [0, 1], ["accepted", "accepted"])
    assert out.getvalue() == ""
    painter.show("€", [2], ["bonus"])
    assert spans(out.getvalue()) == [("1;36", "€")]


@pytest.mark.parametrize("pieces", [("ab", "c--", "-", "de"), ("ab", "c-", "-", "-de"), ("abc---de",)])
def test_nothing_beyond_a_stop_string_is_written(pieces: tuple[str, ...]) -> None:
    ending = Ending(10, frozenset(), ["---"], Spelling(*pieces))
    out = io.StringIO()
    painter = Painter(out, Spelling(*pieces), False)
    for token in range(len(pieces)):
        ending.feed([token])
        painter.show(ending.new_text(), [token], ["accepted"])
        assert "-" not in out.getvalue()
        if ending.reason:
            break
    painter.close()
    assert ending.reason == "stop"
    assert out.getvalue() == ending.text == "abc"


def test_a_held_back_tail_keeps_its_colours() -> None:
    pieces = ("a-", "-", "b")
    ending = Ending(10, frozenset(), ["---"], Spelling(*pieces))
    out = Terminal()
    painter = Painter(out, Spelling(*pieces), True)
    for token, kind in enumerate(["accepted", "corrected", "bonus"]):
        ending.feed([token])
        painter.show(ending.new_text(), [token], [kind])
    assert spans(out.getvalue()) == [("32", "a"), ("32", "-"), ("4;35", "-"), ("1;36", "b")]


def test_text_cannot_steer_a_terminal_but_a_pipe_gets_it_exactly() -> None:
    text = "\x1b[2Jgone\r\x07\x9b1m\tstill\n"
    for out, shown in ((Terminal(), "␛[2Jgone␍␇\ufffd1m\tstill\n"), (io.StringIO(), text)):
        painter = Painter(out, Spelling(text), False)
        painter.show(text, [0], ["plain"])
        painter.close()
        assert out.getvalue() == shown


def test_colour_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert rendering.colourful(Terminal(), None)
    assert not rendering.colourful(io.StringIO(), None)
    assert rendering.colourful(io.StringIO(), True)
    assert not rendering.colourful(Terminal(), False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not rendering.colourful(Terminal(), None)
    assert rendering.colourful(Terminal(), True)
    monkeypatch.setenv("NO_COLOR", "")  # empty means unset
    assert rendering.colourful(Terminal(), None)
    monkeypatch.setenv("TERM", "dumb")
    assert not rendering.colourful(Terminal(), None)


def test_the_summary_breaks_between_parts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    parts = ["12 tokens in 0.10 s", "tau 3.00", "seed 0", "lossless"]
    assert rendering.flow(parts, Terminal()) == "12 tokens in 0.10 s\ntau 3.00 · seed 0\nlossless"
    assert rendering.flow(parts, io.StringIO()) == "12 tokens in 0.10 s · tau 3.00 · seed 0 · lossless"


def test_long_texts_of_beams_are_shown_from_where_they_differ() -> None:
    first = "one two three four five six seven eight nine ten"
    assert rendering._differing("one two", first, 20) == "'one two'"
    assert rendering._differing(first.replace("seven", "SEVEN"), first, 20) == "'… SEVEN eight nin…'"
    assert rendering._differing(first.upper(), first, 20) == "'ONE TWO THREE FOU…'"
    assert rendering._differing(first + " more", first, 20) == "'… ten more'"


@pytest.mark.parametrize("width", [7, 8, 9, 40])
def test_shortened_texts_keep_their_quotes(width: int) -> None:
    for text in ("'日本語のテキスト'", "'abcdefghi'", "'\\n\\n\\n\\n'"):
        for from_left in (False, True):
            cut = rendering.shortened(text, width, from_left)
            assert rendering.cell_len(cut) <= width
            assert cut[0] == cut[-1] == "'" and ("…" in cut) is (cut != text)
            kept = cut.replace("…", "").strip("'")
            assert text.strip("'").endswith(kept) if from_left else text.strip("'").startswith(kept)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_with_default_options_is_its_name(name: str) -> None:
    assert rendering.method_label(Method.parse(name).as_dict()) == name


def test_options_that_differ_are_named_as_set_takes_them() -> None:
    method = Method.parse({"name": "mcsd", "tree": "3,1", "verify": "coupled", "replacement": True})
    assert rendering.method_label(method.as_dict()) == "mcsd verify=coupled tree=3,1 replacement=true"
    free = Method.parse({"name": "speculative", "depth": "beta-ts"})
    assert rendering.method_label(free.as_dict()) == "speculative depth=beta-ts"


def test_json_has_null_for_what_is_not_finite() -> None:
    value: dict[str, Any] = {"a": [1.5, math.nan, (math.inf, -math.inf)], 3: {"ü": True, "n": None, "i": 10**20}}
    assert json.loads(rendering.as_json(value)) == {
        "a": [1.5, None, [None, None]],
        "3": {"ü": True, "n": None, "i": 10**20},
    }


def test_painted_spans_of_a_real_stream_are_its_text(pair: list[str]) -> None:
    engine = load(pair[1], pair[3])
    assert engine.tokenizer is not None
    for seed in range(5):
        out = io.StringIO()
        painter = Painter(out, engine.tokenizer.stream(), False)
        last: StreamEvent | None = None
        for last in engine.stream("Once", seed=seed, stop=["e", "QQ"], max_new_tokens=60):
            painter.show(last.text, last.tokens, last.kinds)
        assert last is not None and last.result is not None
        assert out.getvalue() == last.result.text
        assert painter.kinds.total() == len(last.result.tokens)
