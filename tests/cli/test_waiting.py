"""Progress while a model is loaded: a bar on a terminal, a line in a pipe, nothing where it is quick."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import pytest
from conftest import Command

import draftwood
from draftwood.cli import running


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


each = pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "pipe"])


@contextmanager
def watched(stream: io.StringIO) -> Iterator[Callable[[str, float], None]]:
    """`waiting` with standard error in a stream that is empty first."""
    stream.truncate(stream.seek(0))
    with redirect_stderr(stream), running.waiting() as told:
        yield told


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "BAR_DELAY", 0.05)
    monkeypatch.setattr(running, "LINE_DELAY", 0.05)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def slow(told: Callable[[str, float], None]) -> None:
    told("loading target", 0.25)
    time.sleep(0.3)
    told("loading target", 0.5)
    time.sleep(0.2)


@each
def test_long_work_is_told(stream: io.StringIO) -> None:
    with watched(stream) as told:
        slow(told)
    shown = stream.getvalue()
    if stream.isatty():
        assert "loading target" in shown and "25%" in shown and "75%" in shown
        assert shown.endswith("\x1b[2K")  # nothing of it stays
    else:
        assert shown == "loading target ...\n"


@each
def test_short_work_is_not(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "BAR_DELAY", 5)
    monkeypatch.setattr(running, "LINE_DELAY", 5)
    with watched(stream) as told:
        told("loading target", 1)
    assert stream.getvalue() == ""


@each
def test_a_failure_comes_through_the_bar(stream: io.StringIO) -> None:
    with pytest.raises(draftwood.ModelError), watched(stream) as told:
        slow(told)
        raise draftwood.ModelError("it is damaged")
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())


def test_commands_tell_what_they_load(command: Command, pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LINE_DELAY", 0)
    shown = command("generate", "Once", *pair, "--max-new-tokens", 2)
    assert shown.code == 0 and re.match("(loading [a-z ]+ ...\n)+\n", shown.err)


def test_the_library_tells_who_asks(target: Path, draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: dict[str, float] = {}
    draftwood.load(target, draft, progress=lambda what, share: told.update({what: told.get(what, 0) + share}))
    assert told == pytest.approx({"loading target": 1, "loading draft": 1})
    draftwood.load(target, draft)
    assert capsys.readouterr() == ("", "")
