"""`draftwood chat` in a pipe: with models in the process, and with a server."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, Outcome
from servers import Running, running

from draftwood import Method, load
from draftwood.cli.chat import NEXT_TRY, Chat, ChatSettings, LocalPartner, ServerPartner
from draftwood.cli.groups import LimitOptions
from draftwood.serve.settings import ServeSettings

METHOD = {"name": "speculative", "gamma": 2}
FLAGS = [
    "--method",
    "speculative",
    "--set",
    "gamma=2",
    "--seed",
    "3",
    "--max-new-tokens",
    "8",
    "--temperature",
    "1",
    "--top-p",
    "1",
]
Say = Callable[..., Outcome]


@pytest.fixture
def say(command: Command, monkeypatch: pytest.MonkeyPatch) -> Say:
    """`draftwood chat` with these lines on standard input."""

    def call(lines: list[str], *arguments: object) -> Outcome:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return command("chat", *arguments)

    return call


def test_a_conversation_here_and_with_a_server(say: Say, served: Running, talker: Path, draft: Path) -> None:
    engine, history, expected = load(talker, draft), list[dict[str, str]](), ""
    for text, sampling in (("hi", {}), ("and then?", {"temperature": 0.0})):
        history.append({"role": "user", "content": text})
        result = engine.generate(history, METHOD, sampling, 8, seed=3 + len(history))
        history.append({"role": "assistant", "content": result.text})
        expected += result.text + "\n"
    lines = ["hi", "/stats", "/set temperature=0", "/set", "/method", "and then?", "/quit", "nobody hears this"]
    here = say(lines, "--target", talker, "--draft", draft, *FLAGS)
    assert here.code == 0 and here.out == expected
    assert "tau" in here.err and "temperature=0" in here.err and "speculative gamma=2" in here.err
    there = say(lines, "--url", served.url, *FLAGS)
    assert there.code == 0 and there.out == expected and "completion_tokens" in there.err


def test_replies_are_given_again_and_messages_edited(say: Say, talker: Path, draft: Path) -> None:
    """Each reply to a message has a seed of its own; what went before stays, and so does all where nothing was said."""
    engine = load(talker, draft)

    def reply(history: list[dict[str, str]], seed: int) -> str:
        return engine.generate(history, METHOD, {}, 8, seed=seed).text

    def asked(*texts: str) -> list[dict[str, str]]:
        roles = ("user", "assistant")
        return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]

    first = reply(asked("hi"), 4)
    second, third = (reply(asked("hi"), 4 + NEXT_TRY * tries) for tries in (1, 2))
    behind = reply(asked("hi", third, "more"), 6)
    edited = reply(asked("hi", third, "less, and less"), 6)
    assert len({first, second, third}) == 3
    lines = ["/again", "hi", "/again", "/again", "more", "/edit", "/edit less, and less"]
    shown = say(lines, "--target", talker, "--draft", draft, *FLAGS)
    assert shown.out == "".join(f"{text}\n" for text in (first, second, third, behind, edited))
    assert "there was no message yet; type one" in shown.err and "more\n" in shown.err


def test_a_model_without_a_template_continues_the_text(say: Say, pair: list[str], target: Path, draft: Path) -> None:
    shown = say(["once", "/reset", "once"], *pair, *FLAGS)
    expected = load(target, draft).generate("once", METHOD, {}, 8, seed=4).text
    assert shown.code == 0 and shown.out == f"{expected}\n{expected}\n"


def test_a_server_without_a_template_continues_the_text_and_its_errors_are_told(
    say: Say, target: Path, draft: Path
) -> None:
    expected = load(target, draft).generate("once", METHOD, {}, 8, seed=4).text
    with running(load(target, draft), ServeSettings(api_key="k", max_tokens=9)) as served:
        shown = say(["once", "/reset", "once"], "--url", served.url, "--api-key", "k", *FLAGS)
        assert shown.code == 0 and shown.out == f"{expected}\n{expected}\n"
        for more, sentence in ((["--api-key", "l"], "the API key is missing or wrong"), ([], "gives 9 at most")):
            shown = say(["once"], "--url", served.url, "--api-key", "k", *FLAGS, "--max-new-tokens", 10, *more)
            assert shown.code == 2 and sentence in shown.err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/sit", "there is no /sit (did you mean 'set'?)"),
        ("/set temprature=1", "/set has no option 'temprature' (did you mean 'temperature'?)"),
        ("/set temperature=-1", "temperature"),
        ("/method speculativ", "did you mean 'speculative'?"),
        ("x" * 3000, "shorten"),
    ],
    ids=lambda value: value[:12],
)
def test_what_goes_wrong_is_told_and_the_conversation_goes_on(
    say: Say, pair: list[str], line: str, sentence: str
) -> None:
    shown: Any = say([line, "hi"], *pair, *FLAGS)
    assert shown.code == 2 and sentence in shown.err and shown.err.count("error: ") == 1
    assert len(shown.out.strip()) > 0


@pytest.mark.slow
def test_the_key_is_not_on_the_command_line(target: Path) -> None:
    with running(load(target), ServeSettings(api_key="s3cret")) as served:
        flags = ["--url", served.url, "--api-key", "s3cret", "--max-new-tokens", "4"]
        command = [sys.executable, "-m", "draftwood", "chat", *flags]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as talking:
            assert talking.stdin is not None and talking.stdout is not None
            talking.stdin.write("hi\n")
            talking.stdin.flush()
            served.wait(lambda: b"s3cret" not in Path(f"/proc/{talking.pid}/cmdline").read_bytes(), 60)
            assert talking.communicate()[0].strip() and talking.returncode == 0


def test_no_server_is_one_sentence(say: Say) -> None:
    shown = say(["hi"], "--url", "http://127.0.0.1:9")
    assert shown.code == 2 and "cannot be reached" in shown.err and shown.err.count("error: ") == 1


@pytest.mark.parametrize("broken", [ConnectionResetError(104, "reset by peer"), IncompleteRead(b"", 9)], ids=type)
def test_a_connection_that_breaks_is_one_sentence_and_the_conversation_goes_on(
    say: Say, monkeypatch: pytest.MonkeyPatch, broken: Exception
) -> None:
    class Reply(io.BytesIO):
        def __next__(self) -> bytes:
            if line := self.readline():
                return line
            raise broken

    replies = [
        Reply(b'data: {"choices": [{"text": "on"}]}\n\n'),
        io.BytesIO(b'data: {"choices": [{"text": "hm"}]}\n\n'),
    ]
    monkeypatch.setattr(ServerPartner, "_posted", lambda *arguments: replies.pop(0))
    shown = say(["hi", "so"], "--url", "http://localhost")
    assert shown.code == 2 and shown.err.count("error: the connection broke") == 1
    assert shown.out.split() == ["on", "hm"] and not replies


def test_a_line_that_is_not_text_is_refused_and_the_next_answered(
    command: Command, monkeypatch: pytest.MonkeyPatch, target: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\nhi\n"), "utf-8"))
    shown = command("chat", "--target", target, "--max-new-tokens", 4)
    assert shown.code == 2 and shown.err.count("error: the prompt is not valid Unicode") == 1 and shown.out.strip()


def test_the_banner_says_who_replies(talker: Path, draft: Path) -> None:
    engine = load(talker, draft)
    partner = LocalPartner(engine, None)
    label = f"{talker.name}, drafts by {draft.name}"
    assert partner.banner(None).startswith(f"{label} · computed in float32 · speculative")
    assert partner.banner(Method.parse({"name": "mcsd"})).split(" · ")[2].startswith("mcsd")
    assert ServerPartner("http://localhost", None).banner(Method.parse("lookup")) == "http://localhost · lookup"


def test_a_server_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control characters of a reply are shown as symbols on a terminal; a pipe gets them as they are."""
    for terminal, shown in ((True, "\u241b[2Jhi\n"), (False, "\x1b[2Jhi\n")):
        reply = io.BytesIO(rb'data: {"choices": [{"text": "\u001b[2Jhi\n"}]}' + b"\n\ndata: [DONE]\n\n")
        monkeypatch.setattr(ServerPartner, "_posted", lambda *arguments, reply=reply: reply)
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal)
        talk = Chat(ChatSettings(), LimitOptions(), None)
        assert ServerPartner("http://localhost", None).reply(talk, lambda: False) == "\x1b[2Jhi\n"
        assert capsys.readouterr().out == shown
