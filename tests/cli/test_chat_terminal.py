"""`draftwood chat` on a terminal: streaming, what was typed before, commands, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwood import load
from draftwood.explain.terminal import visible

START = (
    "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "from draftwood.cli.main import run; run(sys.argv[1:])"
)


CONTROL = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|[\r\x07]")
PROMPT = r"(^|\n)> $"


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.screen, inside = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "INPUTRC": os.devnull}
        command = [sys.executable, "-c", START, *arguments]
        self.process = subprocess.Popen(
            command, start_new_session=True, env=environment, stdin=inside, stdout=inside, stderr=inside
        )
        os.close(inside)
        self._raw = b""

    def type(self, text: str, pattern: str = PROMPT) -> str:
        """Press keys; what is shown from then up to a pattern."""
        os.write(self.screen, text.encode())
        return self.until(pattern)

    def until(self, pattern: str = PROMPT) -> str:
        """The output up to a pattern, without control sequences."""
        end = time.monotonic() + 60
        while not (found := re.search(pattern, text := CONTROL.sub(b"", self._raw).decode("utf-8", "replace"))):
            assert select.select([self.screen], [], [], end - time.monotonic())[0], text
            self._raw += os.read(self.screen, 1 << 16)
        self._raw = b""
        return text[: found.end()]


@pytest.fixture
def terminal(long_target: Path) -> Iterator[Terminal]:
    flags = ["--seed", "3", "--max-new-tokens", "20", "--threads", "1", "--ignore-eos"]
    found = Terminal("chat", "--target", str(long_target), *flags)
    found.until()
    yield found
    found.process.kill()
    found.process.wait()
    os.close(found.screen)


def test_a_conversation_on_a_terminal(terminal: Terminal, long_target: Path) -> None:
    engine = load(long_target)
    first = engine.generate("hi", max_new_tokens=20, seed=4, ignore_eos=True)
    assert terminal.type("hi\n") == f"hi\n{visible(first.text)}\n> "
    second = engine.generate(f"hi\n{first.text}\nhi", max_new_tokens=20, seed=6, ignore_eos=True)
    assert terminal.type("\x1b[A\n") == f"hi\n{visible(second.text)}\n> "  # the key that brings back the last line
    assert "20 tokens in" in terminal.type("/stats\n")
    assert "did you mean 'speculative'" in terminal.type("/method speculativ\n")
    assert terminal.type("/method lookup\n") == "/method lookup\n> "
    assert "\nlookup\n" in terminal.type("/method\n")
    assert "max_new_tokens=20" in terminal.type("/set\n")
    assert "/quit" in terminal.type("/help\n")
    os.write(terminal.screen, b"\x04")
    assert terminal.process.wait(20) == 0


def test_ctrl_c_ends_a_reply_and_not_the_conversation(terminal: Terminal, long_target: Path) -> None:
    terminal.type("/set max_new_tokens=7000\n")
    whole = visible(load(long_target).generate("hi", max_new_tokens=60, seed=4, ignore_eos=True).text)
    shown = terminal.type("hi\n", f"hi\n{re.escape(whole[:40])}")  # it comes as it is made
    terminal.type("\x03")
    assert len(shown) < 7000 and "finish cancelled" in terminal.type("/stats\n")
    terminal.type("half a line", "half a line$")  # and the line that is being typed
    time.sleep(0.2)  # Python's input does not hear a signal between an echo and its next wait
    terminal.type("\x03")
    terminal.type("/set max_new_tokens=5\n")
    assert "max_new_tokens=5\n" in terminal.type("/set\n")
    terminal.type("more\n")
    assert "5 tokens in" in terminal.type("/stats\n")
    os.write(terminal.screen, b"/quit\n")
    assert terminal.process.wait(20) == 0
