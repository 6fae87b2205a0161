"""Conversations on the page at /, in Chromium: sent, stopped, asked again, changed; on a tiny model with a template."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from browser import accessibility, ended, opened_tab, ready_page, text
from servers import Running

from draftwood.runtime import scheduler
from draftwood.runtime.executor import run_layers

NEXT_TRY = 1_000_003  # between the seeds of answers to one message


@pytest.fixture(scope="module")
def tab() -> Iterator[Any]:
    with opened_tab() as tab:
        tab.sent = []  # bodies of requests for rounds
        tab.on("request", lambda one: one.method == "POST" and tab.sent.append(json.loads(one.post_data)))
        yield tab


@pytest.fixture
def page(served: Running, tab: Any) -> Iterator[Any]:
    with ready_page(tab, served.url) as page:
        page.sent.clear()
        page.click("#settings > summary")
        page.fill("[name=max_tokens]", "12")
        page.click("#settings > summary")
        yield page
        page.goto("about:blank")


def send(page: Any, message: str, answers: int) -> str:
    """The answer to a message, which is the last of so many."""
    page.locator("#prompt").fill(message)
    page.press("#prompt", "Enter")
    ended(page, answers)
    return text(page, answers - 1)


def answered(served: Running, body: dict[str, Any]) -> str:
    return str(served.post("/v1/chat/completions", **body)["choices"][0]["message"]["content"])


def test_a_conversation(page: Any, served: Running) -> None:
    """Each answer is the API's for the messages so far, with a seed of its own, as `draftwood chat` has them."""
    page.click("#settings > summary")
    page.fill("#system", "be brief")
    first = send(page, "hi", 1)
    page.focus("#prompt")
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    assert page.locator(".thread li").count() == 1
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    ended(page, 2)
    system, hi = {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}
    assert page.sent[0]["messages"] == [system, hi] and page.sent[0]["seed"] == 2
    assert [one["content"] for one in page.sent[1]["messages"]] == ["be brief", "hi", first, "one\ntwo"]
    assert page.sent[1]["seed"] == 4 and [text(page, i) for i in (0, 1)] == [answered(served, one) for one in page.sent]
    assert page.input_value("#prompt") == "" and page.is_hidden(".forest >> nth=0")
    page.locator(".folded summary").last.click()
    count = int(page.inner_text(".where >> nth=1").split()[-1])
    assert page.locator(".strip >> nth=1").locator("button").count() == count > 1
    page.keyboard.press("Escape")

    before = text(page, 1)
    page.locator("text=Regenerate >> visible=true").click()
    ended(page, 2)
    assert page.sent[2] == {**page.sent[1], "seed": 4 + NEXT_TRY}
    assert text(page, 1) == answered(served, page.sent[2]) != before

    page.click("text=Edit >> nth=0")
    page.locator(".edit textarea").fill("hello")
    page.keyboard.press("Enter")
    ended(page, 1)
    assert page.locator(".thread li").count() == 1 and page.inner_text(".message") == "hello"
    assert [one["content"] for one in page.sent[3]["messages"]] == ["be brief", "hello"] and page.sent[3]["seed"] == 2
    assert text(page) == answered(served, page.sent[3])
    page.click("text=Copy as")
    page.click("#tabs >> text=Python")
    printed: list[str] = []
    exec(page.inner_text("#snippet"), {"print": printed.append})
    assert printed == [text(page)]
    page.click("#close")
    page.click("#new")
    assert page.locator(".thread li").count() == 0


def test_stopped_answers_and_refused_messages(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply stays up to the stop and is part of the conversation; a refused message can be changed."""
    page.expected = ["400"]
    send(page, "hi", 1)
    page.fill("#prompt", "x" * 3000)
    page.press("#prompt", "Enter")
    page.wait_for_selector("#error:not([hidden])")
    assert "context" in page.inner_text("#error") and page.input_value("#prompt") == "x" * 3000
    assert page.locator(".thread li").count() == 1
    page.click("text=Edit")
    page.locator(".edit textarea").fill("y" * 3000)
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.edit button')?.disabled === false")
    page.keyboard.press("Escape")
    assert page.inner_text(".message") == "hi" and text(page)

    def slow(*all: Any) -> Any:
        time.sleep(0.05)
        return run_layers(*all)

    monkeypatch.setattr(scheduler, "run_layers", slow)
    page.click("#settings > summary")
    page.fill("[name=max_tokens]", "40")
    page.fill("#prompt", "go on")
    page.press("#prompt", "Enter")
    page.wait_for_function("() => document.querySelectorAll('.thread li:last-child .token').length > 1")
    assert page.is_hidden("text=Regenerate >> nth=1") and page.is_hidden("text=Edit >> nth=0")
    page.focus("#prompt")
    page.keyboard.press("Escape")
    ended(page, 2)
    monkeypatch.undo()
    part = text(page, 1)
    assert page.inner_text("#verdict") == "Stopped." and part
    send(page, "more", 3)
    assert page.sent[-1]["messages"][-2] == {"role": "assistant", "content": part}


def test_prompts_and_conversations_beside_each_other(page: Any) -> None:
    send(page, "hi", 1)
    page.fill("#prompt", "a draft")
    page.click("#text")
    assert page.input_value("#prompt") == "" and page.input_value("[name=max_tokens]") == "12"
    page.fill("#prompt", "abc")
    page.press("#prompt", "Control+Enter")
    ended(page, 1)
    assert page.sent[-1]["prompt"] == "abc" and page.is_hidden(".thread")
    page.click("#talk")
    assert page.input_value("#prompt") == "a draft" and page.is_visible(".thread li")


@pytest.mark.slow
def test_everyone_can_read_it(page: Any) -> None:
    """axe finds nothing on a wide light and a narrow dark screen, and nothing is wider than these."""
    page.click("#settings > summary")
    page.fill("[name=max_tokens]", "4")  # of random bytes: all of the conversation has to fit the context
    page.click("#settings > summary")
    send(page, "hi", 1)
    send(page, "a" * 60, 2)
    page.locator(".folded summary").last.click()
    page.click("text=Edit >> nth=0")
    for scheme, width in (("light", 1280), ("dark", 400)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        assert accessibility(page) == [], (scheme, width)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    page.emulate_media(color_scheme="light")
