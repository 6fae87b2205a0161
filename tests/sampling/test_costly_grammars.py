"""Grammars that cost much: none ends the process, or keeps others waiting."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from draftwood import RequestError, load
from draftwood.sampling.grammar import Grammars
from draftwood.sampling.params import Structured


def chained(rules: int) -> dict[str, Any]:
    """A schema of definitions that name each other."""
    step = {f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(rules)}
    return {"$ref": "#/$defs/a0", "$defs": {**step, f"a{rules}": {"type": "string"}}}


@pytest.mark.parametrize(
    "structured",
    [
        {"json_schema": chained(2000)},
        {"grammar": "start: a0\n" + "".join(f'a{i}: "x" a{i + 1}\n' for i in range(9000)) + 'a9000: "y"'},
    ],
    ids=["schema", "grammar"],
)
def test_deep_grammars_do_not_end_the_process(structured: dict[str, Any]) -> None:
    """They overflowed the stack of the thread that compiled them, which no `except` can catch."""
    grammar = load().requests.grammar(Structured(**structured))()
    assert grammar.ask_matcher([]).mask


def test_a_grammar_of_empty_lines_is_read_at_once() -> None:
    """The test for GBNF looked at the rest of them at each one: minutes, without giving back the interpreter."""
    began = time.process_time()
    engine = load()
    with pytest.raises(RequestError):
        engine.requests.grammar(Structured(grammar="\t\n" * 100_000))
    engine.requests.grammar(Structured(grammar="\n" * 100_000 + 'start: "a"\n\n\n' + " \n" * 50_000 + 'b: "b"'))
    assert time.process_time() - began < 10
    with pytest.raises(RequestError, match="in GBNF"):
        engine.requests.grammar(Structured(grammar='root ::= "a"\n' + "".join(f'a{i} ::= "b"\n' for i in range(3000))))


def test_known_grammars_wait_for_no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, held, begun = load(), threading.Event(), threading.Event()
    known = Structured(regex="[ab]+")
    engine.requests.grammar(known)
    original = Grammars.compile

    def slow(self: Grammars, kind: str, text: str) -> Any:
        begun.set()
        assert held.wait(20)
        return original(self, kind, text)

    monkeypatch.setattr(Grammars, "compile", slow)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(engine.requests.grammar, Structured(regex="[cd]+"))
        assert begun.wait(20)
        assert pool.submit(engine.requests.grammar, known).result(20)
        held.set()
        assert other.result()
