"""Tokens in answers: where each begins in its text, its bytes, and how many were not computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from checkpoint_files import llama_like
from growing import certain, following
from servers import Running, running

from draftwood import Engine
from draftwood.models.text.chat import ChatTemplate
from draftwood.models.text.tokenizer import Tokenizer

TEXT = "日the 伣偆傧 in\u0301 🙂é!"  # "!" is no token of its own either
WORDS = Tokenizer(llama_like(), "llama", templates={"default": ChatTemplate("<s>{{ messages[0].content }}", "test")})
IDS = WORDS.encode(TEXT)
KNOWN = certain(WORDS, IDS)
METHODS: list[Any] = ["off", {"name": "speculative", "gamma": 3}, {"name": "beam-search", "width": 2}]
OPTIONS: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60}


@pytest.fixture(scope="module")
def writer() -> Iterator[Running]:
    """A server on a model that writes TEXT."""
    end = WORDS.id_of("</s>")
    assert end is not None
    model = following(IDS, end, WORDS.size)
    with running(Engine(model, [model], WORDS, frozenset({end}))) as found:
        yield found


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The first choice of a stream as that of a whole answer."""
    choices = [one for chunk in chunks for one in chunk["choices"] if one["index"] == 0]
    keys = choices[0]["logprobs"]
    return {
        "text": "".join(one["text"] for one in choices),
        "logprobs": {key: [value for one in choices for value in one["logprobs"][key]] for key in keys},
    }


@pytest.mark.some(3)
@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("echo", [False, True], ids=["answer", "echo"])
def test_each_token_has_its_place_in_the_text(writer: Running, method: Any, echo: bool) -> None:
    """A beginning token has none of its own, a part of a character that of the character."""
    for cut in (2, 4, 9, 14, 17):
        asked = {"prompt": IDS[:cut], "echo": echo, "logprobs": 1, "speculation": method, **OPTIONS}
        first = 0 if echo else cut
        places = [len(text) - len(KNOWN[first]) for text in KNOWN[first:]]
        whole = writer.post("/v1/completions", **asked)["choices"][0]
        for found in (whole, joined(writer.chunks("/v1/completions", **asked))):
            assert found["text"] == TEXT[len(KNOWN[first]) :]
            assert found["logprobs"]["text_offset"] == places
        stop = "傧 i"
        if method != METHODS[-1]:
            for found in (
                writer.post("/v1/completions", **asked, stop=stop)["choices"][0],
                joined(writer.chunks("/v1/completions", **asked, stop=stop)),
            ):
                length = len(found["text"])
                told = found["logprobs"]["text_offset"]
                assert told == [min(length, one) for one in places[: len(told)]]
                assert found["text"] == TEXT[len(KNOWN[first]) :].removesuffix("傧 in\u0301 🙂é!" if cut < 15 else "")


def test_places_in_a_prompt_alone(writer: Running) -> None:
    for cut in range(1, len(IDS) + 1, 2):
        asked = {"prompt": IDS[:cut], "echo": True, "logprobs": 1, "max_tokens": 0}
        (choice,) = writer.post("/v1/completions", **asked)["choices"]
        assert choice["text"] == KNOWN[cut]
        assert choice["logprobs"]["text_offset"] == [len(text) for text in KNOWN[:cut]]


def test_tokens_of_conversations_have_their_bytes(writer: Running) -> None:
    """Those of parts of characters are the bytes themselves: together they are the text."""
    for said in ("日", "日the "):
        messages = [{"role": "user", "content": said}]
        asked = {"messages": messages, "logprobs": True, "top_logprobs": 3, **OPTIONS}
        choice = writer.post("/v1/chat/completions", **asked)["choices"][0]
        content = choice["logprobs"]["content"]
        assert content[-1]["token"] == "</s>" and len(content) > 20
        spelled = bytes(byte for one in content[:-1] for byte in one["bytes"])
        assert spelled.decode() == choice["message"]["content"] == TEXT.removeprefix(said)
        chunks = writer.chunks("/v1/chat/completions", **asked)
        assert content == [one for chunk in chunks for one in chunk["choices"][0]["logprobs"]["content"]]
        assert all(other["bytes"] is not None for one in content for other in one["top_logprobs"])
        response = writer.post(
            "/v1/responses",
            input=messages,
            temperature=0.0,
            max_output_tokens=60,
            top_logprobs=3,
            include=["message.output_text.logprobs"],
        )
        assert response["output"][0]["content"][0]["logprobs"] == content


def cached(usage: dict[str, Any]) -> int:
    found: int = usage["prompt_tokens_details"]["cached_tokens"]
    return found


def test_siblings_are_not_cached_tokens(served: Running) -> None:
    """Several texts of one prompt share its keys and values: cached is what was there before."""
    prompt, asked = "Story: the siblings of a fox " * 2, {"max_tokens": 6, "ignore_eos": True}
    for n in (1, 4):
        served.post("/reset_prefix_cache")
        for expected in (False, True):
            usage = served.post("/v1/completions", prompt=prompt, n=n, **asked)["usage"]
            assert usage["prompt_tokens"] == len(prompt)
            assert cached(usage) in ([len(prompt) - 1, len(prompt)] if expected else [0])
    served.post("/reset_prefix_cache")
    told = {"include_usage": True, "continuous_usage_stats": True}
    chunks = served.chunks("/v1/completions", prompt=prompt, n=4, **asked, stream_options=told)
    assert {cached(chunk["usage"]) for chunk in chunks} == {0}
    other = prompt[::-1]  # of several prompts each counts for itself
    usage = served.post("/v1/completions", prompt=[prompt, other], n=2, **asked)["usage"]
    assert cached(usage) in (len(prompt) - 1, len(prompt))
