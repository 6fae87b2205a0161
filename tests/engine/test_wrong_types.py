"""Every public call says in one sentence what is wrong with an argument of another type, or with what is no text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import tiny_models

from draftwood import AsyncEngine, Engine, TabularModel, load
from draftwood.errors import DraftwoodError
from draftwood.methods import Method
from draftwood.models.text.chat import ChatTemplate
from draftwood.models.text.tokenizer import Tokenizer

TEMPLATE = ChatTemplate("{{ messages[0].content }}", "test")
WORDS = Tokenizer(tiny_models.byte_tokenizer(), "bytes", templates={"default": TEMPLATE})
MODEL = TabularModel.random(257, 1, order=1)
ENGINE = Engine(MODEL, [MODEL], WORDS, frozenset({tiny_models.EOS}))
HALF = "a\ud83d"  # of a surrogate pair

WRONG: dict[str, Any] = {
    "whole": 5,
    "number": 0.5,
    "bytes": b"x",
    "object": object(),
    "list": [object()],
    "pairs": [["a", 1, 2]],
    "type": int,
    "none in list": [None],
}


async def awaited(prompt: Any, **options: Any) -> Any:
    async with AsyncEngine(ENGINE) as engine:
        return await engine.generate(prompt, **options)


def option(name: str) -> Callable[[Any], Any]:
    return lambda wrong: ENGINE.generate("a", **{"max_new_tokens": 1, name: wrong})


CALLS: dict[str, Callable[[Any], Any]] = {
    **{name: option(name) for name in ("method", "sampling", "stop", "structured", "cancelled", "stop_token_ids")},
    "generate": lambda wrong: ENGINE.generate([wrong]),
    "generate second": lambda wrong: ENGINE.generate("a", wrong),
    "generate third": lambda wrong: ENGINE.generate("a", None, wrong),
    "stream": lambda wrong: ENGINE.stream([wrong]),
    "explain": lambda wrong: ENGINE.explain([wrong]),
    "score": lambda wrong: ENGINE.score([wrong]),
    "batch": lambda wrong: ENGINE.batch([[wrong]]),
    "batch's progress": lambda wrong: ENGINE.batch(["a"], progress=wrong, max_new_tokens=1),
    "draft_with": lambda wrong: ENGINE.set_draft_models("speculative", wrong),
    "draft_with's method": lambda wrong: ENGINE.set_draft_models(wrong, [MODEL]),
    "method's options": lambda wrong: Method.parse("speculative", wrong),
    "Method.parse": Method.parse,
    "asynchronously": lambda wrong: asyncio.run(awaited("a", method=wrong)),
    "chat": WORDS.chat,
    "encode": WORDS.encode,
    "decode": lambda wrong: WORDS.decode([wrong]),
    "stream of text": lambda wrong: WORDS.stream([wrong]),
    "a device": lambda wrong: load(MODEL, device=wrong),
    "a model": load,
    "a draft": lambda wrong: load(MODEL, [wrong]),
    "names": lambda wrong: Engine(MODEL, names=wrong),
}
FINE = {  # a function, numbers of tokens and devices
    ("cancelled", "type"),
    ("stop_token_ids", "bytes"),
    ("batch's progress", "type"),
    ("a device", "whole"),
    *((name, "whole") for name in ("generate", "stream", "explain", "score", "batch", "decode", "stream of text")),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_another_type_is_one_sentence(name: str) -> None:
    for kind, wrong in WRONG.items():
        if (name, kind) not in FINE:
            with pytest.raises(DraftwoodError) as caught:
                CALLS[name](wrong)
            text = str(caught.value)
            assert (
                "\n" not in text and 20 < len(text) < 300 and " at 0x" not in text.replace("<object object at 0x", "")
            )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ENGINE.generate("a", 5), "a method is a name"),  # type: ignore[arg-type]
        (lambda: ENGINE.generate("a", sampling="hot"), "sampling is 'hot', but must be a mapping"),  # type: ignore[arg-type]
        (lambda: ENGINE.generate("a", ignore_eos="no"), "ignore_eos is 'no', but must be True or False"),  # type: ignore[arg-type]
        (lambda: ENGINE.batch(5), "batch takes a list of prompts, not 5"),  # type: ignore[arg-type]
        (lambda: list(ENGINE.as_completed(None)), "batch takes a list of prompts, not None"),  # type: ignore[arg-type]
        (lambda: WORDS.chat(5), "a conversation is a list of messages, not 5"),  # type: ignore[arg-type]
    ],
)
def test_what_is_said(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(DraftwoodError, match=said):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: ENGINE.generate(HALF),
        lambda: list(ENGINE.stream(HALF)),
        lambda: ENGINE.score(HALF),
        lambda: ENGINE.batch([HALF]),
        lambda: asyncio.run(awaited(HALF)),
        lambda: ENGINE.generate([{"role": "user", "content": HALF}]),
        lambda: ENGINE.generate("a", stop=HALF),
        lambda: ENGINE.generate("a", stop=["b", HALF]),
        lambda: ENGINE.generate("a", structured={"choice": [HALF]}),
        lambda: ENGINE.generate("a", structured={"json_schema": {"const": HALF}}),
        lambda: ENGINE.generate("a", structured={"json_schema": {HALF: 1}}),
    ],
)
def test_half_of_a_surrogate_pair_is_no_text(call: Callable[[], Any]) -> None:
    """As in arguments of a command that are not UTF-8, or a string that was cut in UTF-16."""
    with pytest.raises(DraftwoodError, match=r"[Uu]nicode") as caught:
        call()
    assert "\n" not in str(caught.value) and str(caught.value).isascii()


def test_a_whole_pair_is_text() -> None:
    assert WORDS.decode(WORDS.encode("\U0001f642")) == "\U0001f642"


def test_an_argument_of_a_command_that_is_not_utf_8(command: Any, pair: list[str]) -> None:
    for arguments in (["caf\udce9", *pair], ["a", "--stop", "\udce9", *pair]):
        found = command("generate", *arguments)
        assert found.code == 2 and "not valid U" in found.err and "Traceback" not in found.err
