"""Whatever one client asks for, the others are answered: nothing large is computed on the event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import httpx
import pytest
from servers import Running

from draftwood import load
from draftwood.engine.request_parser import RequestParser
from draftwood.models.text.tokenizer import LONG_INPUT, Tokenizer
from draftwood.serve.answers import ChatForm, CompletionForm
from draftwood.serve.protocol import ChatRequest, CompletionRequest, DetokenizeRequest
from draftwood.serve.response_request import ResponseRequest

HI = [{"role": "user", "content": "hi"}]
TEXTS = {
    "/tokenize": {"prompt": "ab"},
    "/v1/completions": {"prompt": "ab", "max_tokens": 1},
    "/v1/forest": {"prompt": "ab", "max_tokens": 1},
    "/v1/responses": {"input": "ab", "max_output_tokens": 1},
}
TALKS: dict[str, dict[str, Any]] = {
    "/tokenize": {"messages": HI},
    "/v1/chat/completions": {"messages": HI, "max_tokens": 1},
}


class Held:
    """Calls of a function that wait until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.calls, self.free = 0, threading.Event()
        original: Callable[..., Any] = getattr(owner, name)

        def wait(*given: Any, **more: Any) -> Any:
            self.calls += 1
            assert self.free.wait(20)
            return original(*given, **more)

        monkeypatch.setattr(owner, name, wait)


@contextmanager
def asking(served: Running, path: str, body: dict[str, Any], times: int = 1) -> Iterator[list[Any]]:
    """Clients that ask for the same at once, on connections of their own; at the end all have got an answer."""
    answers: list[Any] = []
    with ThreadPoolExecutor(times) as pool:
        found = [pool.submit(httpx.post, served.url + path, json=body, timeout=30) for _ in range(times)]
        yield answers
        answers += [one.result() for one in found]


def quick(served: Running) -> None:
    """Health is told, which takes as long as nobody holds the event loop."""
    assert served.client.get("/health", timeout=5).status_code == 200


@pytest.mark.parametrize("path", TEXTS)
def test_texts_are_read_beside_the_loop(served: Running, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, Tokenizer, "encode")
    with asking(served, path, TEXTS[path]) as answers:
        served.wait(lambda: held.calls > 0)
        quick(served)
        held.free.set()
    assert answers[0].status_code == 200


@pytest.mark.parametrize("path", TALKS)
def test_conversations_are_read_beside_the_loop(served: Running, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, Tokenizer, "chat")
    with asking(served, path, TALKS[path]) as answers:
        served.wait(lambda: held.calls > 0)
        quick(served)
        held.free.set()
    assert answers[0].status_code == 200


def test_ids_and_grammars_are_read_beside_the_loop(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, grammar = Held(monkeypatch, Tokenizer, "decode"), Held(monkeypatch, RequestParser, "grammar")
    grammatical = {"prompt": [1, 2], "max_tokens": 1, "structured_outputs": {"regex": "[ab]+"}}
    with asking(served, "/detokenize", {"tokens": [1]}), asking(served, "/v1/completions", grammatical):
        served.wait(lambda: decode.calls > 0 and grammar.calls > 0)
        quick(served)
        decode.free.set()
        grammar.free.set()


def test_tokenizing_makes_no_request_wait(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask for ids, others are answered, also those that ask for text."""
    held = threading.Event()
    original = Tokenizer.encode

    def encode(self: Tokenizer, text: str, *given: Any, **more: Any) -> list[int]:
        assert text != "held" or held.wait(20)
        return original(self, text, *given, **more)

    monkeypatch.setattr(Tokenizer, "encode", encode)
    with asking(served, "/tokenize", {"prompt": "held"}, times=12):
        served.wait(lambda: served.service.busy == 12)
        assert served.post("/v1/completions", prompt="ab", max_tokens=1)["choices"]
        held.set()


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
def test_what_nobody_waits_for_is_not_done(served: Running, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that leave while others are served cost nothing."""
    held = Held(monkeypatch, Tokenizer, "encode")
    try:
        with httpx.Client(base_url=served.url) as impatient:
            for _ in range(8):
                with pytest.raises(httpx.ReadTimeout):
                    impatient.post(path, json=TEXTS[path], timeout=0.1)
        served.wait(served.idle)
    finally:
        held.free.set()
    quick(served)
    assert held.calls <= 2  # the threads that were free


def test_a_prompt_is_read_once_however_many_texts_go_on_from_it(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    original = Tokenizer.encode
    monkeypatch.setattr(
        Tokenizer,
        "encode",
        lambda self, text, *given, **more: read.append(text) or original(self, text, *given, **more),
    )
    served.post("/v1/completions", prompt="ab", max_tokens=1, n=16)
    assert read == ["ab"]


@pytest.mark.slow
def test_reading_gives_back_the_interpreters_lock() -> None:
    """Of a long text and of many ids; other threads go on meanwhile."""
    tokenizer = load().tokenizer
    assert tokenizer is not None
    text = "".join(f"{i} words " for i in range(100_000))
    assert len(text) > LONG_INPUT
    expected: list[int] = list(tokenizer.backend.encode(text).ids)
    ticks, over = [time.perf_counter()], threading.Event()

    def tick() -> None:
        while not over.is_set():
            time.sleep(0.001)
            ticks.append(time.perf_counter())

    def longest(work: Callable[[], object]) -> tuple[float, float]:
        """Seconds that some work takes, and the longest time without a tick in them."""
        began = time.perf_counter()
        work()
        ended = time.perf_counter()
        inside = [began, *(at for at in list(ticks) if began < at < ended), ended]
        return ended - began, max(b - a for a, b in pairwise(inside))

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        assert tokenizer.encode(text) == expected
        for work in (lambda: tokenizer.encode(text), lambda: tokenizer.decode(expected * 4)):
            took, silent = min((longest(work) for _ in range(3)), key=lambda pair: pair[1] / pair[0])
            assert silent < took / 2
    finally:
        over.set()
        thread.join()
    assert tokenizer.decode(expected) == tokenizer.backend.decode(expected)


def test_long_texts_are_refused_before_they_are_read(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    context, tokenizer = served.engine.target.context, served.service.tokenizer

    def never(*given: Any, **more: Any) -> Any:
        raise AssertionError("it is read")

    long = "a" * (context * tokenizer.longest + 1)
    for path, body in (
        ("/tokenize", {"prompt": long}),
        ("/tokenize", {"messages": [{"role": "user", "content": long}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}),
        ("/v1/completions", {"prompt": long}),
        ("/v1/completions", {"prompt": long, "echo": True, "max_tokens": 0}),
        ("/v1/responses", {"input": long}),
    ):
        status, error = served.refused(path, **body)
        assert status == 400 and "shorten it" in error["message"], path
    monkeypatch.setattr(Tokenizer, "chat_text", never)
    for path in TALKS:
        status, error = served.refused(path, messages=HI * (context + 1))
        assert status == 400 and "messages, more than" in error["message"]
        assert served.refused(path, messages=[{"role": "user", "content": long}])[0] == 400
    status, error = served.refused("/detokenize", tokens=[1] * (context + 1))
    assert status == 400 and error["param"] == "tokens" and "send fewer" in error["message"]


def test_large_answers_are_written_beside_the_loop(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log-probabilities of long texts, whole and streamed; all of it is there."""
    writers: list[str] = []
    for form in (CompletionForm, ChatForm):
        for name in ("choice", "delta"):
            original = getattr(form, name)

            def noted(*given: Any, original: Any = original) -> Any:
                writers.append(threading.current_thread().name)
                return original(*given)

            monkeypatch.setattr(form, name, noted)
    monkeypatch.setattr("draftwood.serve.service.MAX_INLINE_VALUES", 20)
    asked = {"max_tokens": 30, "ignore_eos": True, "seed": 1, "logprobs": 3}
    answers = []
    for path, body in (
        ("/v1/completions", {"prompt": "ab", **asked}),
        ("/v1/completions", {"prompt": "ab" * 20, **asked, "echo": True, "max_tokens": 0}),
        ("/v1/chat/completions", {"messages": HI, **asked, "logprobs": True, "top_logprobs": 3}),
    ):
        writers.clear()
        answers.append(served.post(path, **body)["choices"][0])
        assert writers and all(name.startswith("draftwood-answers") for name in writers), path
    writers.clear()
    chunks = served.chunks("/v1/completions", prompt="ab" * 20, **asked, echo=True)
    assert writers[0].startswith("draftwood-answers")
    assert len([logprob for one in chunks for logprob in one["choices"][0]["logprobs"]["tokens"]]) == 70
    monkeypatch.setattr("draftwood.serve.service.MAX_INLINE_VALUES", 1 << 20)
    assert served.post("/v1/completions", prompt="ab", **asked)["choices"][0] == answers[0]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, {"prompt": [1] * 200_000 + ["a"]}),
        (CompletionRequest, {"prompt": [0.5] * 200_000}),
        (CompletionRequest, {"prompt": [[-1]] * 200_000}),
        (CompletionRequest, {"prompt": ["a"] * 200_000}),
        (CompletionRequest, {"prompt": "a", **{f"no{i}": 1 for i in range(100_000)}}),
        (CompletionRequest, {"prompt": "a", "logit_bias": {str(i): "x" for i in range(100_000)}}),
        (CompletionRequest, {"prompt": "a", "stop": [0] * 200_000}),
        (CompletionRequest, {"prompt": "a", "guided_choice": [0] * 200_000}),
        (ChatRequest, {"messages": [{"no": 0}] * 200_000}),
        (ChatRequest, {"messages": [{"role": "user", "content": [0] * 200_000}]}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "text", "no": ""}] * 200_000}]}),
        (ResponseRequest, {"input": "a", "metadata": {str(i): 5 for i in range(100_000)}}),
        (ResponseRequest, {"input": "a", "include": [0] * 200_000}),
        (DetokenizeRequest, {"tokens": [-1] * 200_000}),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, dict) else value.__name__,
)
def test_of_many_errors_in_a_body_few_are_collected(kind: Any, body: dict[str, Any]) -> None:
    """A list of a million wrong elements held the event loop for half a minute."""
    with pytest.raises(ValueError) as wrong:
        kind.model_validate(body)
    assert wrong.value.error_count() <= 16  # type: ignore[attr-defined]
