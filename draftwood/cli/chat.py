"""`draftwood chat`: a conversation in the terminal, with models in this process or with a server."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol
from urllib import error, request
from urllib.parse import urlsplit

from pydantic import Field

from draftwood.cli.groups import ColorOptions, LimitOptions, MethodOptions, ModelOptions, SamplingOptions, seed
from draftwood.cli.options import flag
from draftwood.cli.running import hidden, interruptible
from draftwood.errors import ConfigurationError, DraftwoodError, RequestError, did_you_mean
from draftwood.explain.terminal import (
    SEPARATOR,
    Painter,
    colourful,
    flow,
    method_label,
    option_text,
    origins,
    summary,
    visible,
)
from draftwood.sampling.params import SamplingParams
from draftwood.util.safe_parsing import parse_json
from draftwood.util.server_events import server_events

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine
    from draftwood.engine.results import GenerationResult
    from draftwood.methods import Method

NO_REPLY = "there was no reply yet"
HELP = """\
/method NAME [KEY=VALUE ...]  use another method; without NAME: show the current one
/set KEY=VALUE ...            set temperature, top_p, ..., seed, max_new_tokens; alone: show them
/again                        reply to the last message once more, with another seed
/edit TEXT                    reply to TEXT in place of the last message; alone: show it
/system TEXT                  set the system message and start over
/stats                        statistics of the last reply
/reset                        start over
/quit                         quit, like Ctrl-D; Ctrl-C stops a reply or clears the line"""
COMMANDS = ("help", "method", "set", "again", "edit", "system", "stats", "reset", "quit")
NEXT_TRY = 1_000_003  # between the seeds of replies to one message
NO_TEMPLATE = "no chat template"  # of the error for models that know no conversations


class ChatSettings(SamplingParams):
    """The values that /set may change."""

    seed: Annotated[int, Field(strict=True)] = 0
    max_new_tokens: Annotated[int, Field(ge=1)] = 512

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams.model_validate(self.model_dump(include=set(SamplingParams.model_fields)))


@dataclass(slots=True)
class Chat:
    """A conversation, and how replies to it are decoded."""

    settings: ChatSettings
    limits: LimitOptions
    method: Method | None
    history: list[dict[str, str]] = field(default_factory=list)
    tries: int = 0  # replies to the last message that were given up

    @property
    def turn(self) -> int:
        """The seed of the next reply: each has its own."""
        return self.settings.seed + len(self.history) + NEXT_TRY * self.tries

    @property
    def text(self) -> str:
        """The conversation for a model that continues text."""
        return "\n".join(message["content"] for message in self.history)


class ChatPartner(Protocol):
    """The engine or server that replies."""

    def reply(self, talk: Chat, cancelled: Callable[[], bool]) -> str:
        """Write the reply to the last message as it comes; returns its text."""

    def check(self, method: Method) -> Method:
        """The method, or a ConfigurationError where it cannot be used."""

    def stats(self) -> str:
        """Statistics of the last reply."""

    def banner(self, method: Method | None) -> str:
        """Who replies, and how."""


@dataclass(slots=True)
class LocalPartner(ChatPartner):
    """An engine in this process."""

    engine: Engine
    color: bool | None
    last: GenerationResult | None = None

    def reply(self, talk: Chat, cancelled: Callable[[], bool]) -> str:
        words = self.engine.tokenizer
        assert words is not None  # every checkpoint directory has one
        prompt = self.engine.tokens(talk.history if words.templates else talk.text)
        painter = Painter(sys.stdout, words.stream(prompt), colourful(sys.stdout, self.color))
        events = self.engine.stream(
            prompt,
            method=talk.method,
            sampling=talk.settings.sampling,
            seed=talk.turn,
            cancelled=cancelled,
            **{**talk.limits.model_dump(), "max_new_tokens": talk.settings.max_new_tokens},
        )
        for event in events:
            painter.show(event.text, event.tokens, event.kinds)
            self.last = event.result
        assert self.last is not None  # the last event carries it
        return self.last.text

    def check(self, method: Method) -> Method:
        return self.engine.method(method)

    def stats(self) -> str:
        return flow([*summary(self.last), *origins(self.engine.names)], sys.stdout) if self.last else NO_REPLY

    def banner(self, method: Method | None) -> str:
        names = self.engine.names
        drafts = "".join(f", drafts by {Path(name).name}" for name in names.get("draft", ()))
        label = method_label((method or self.engine.default_method).as_dict())
        return SEPARATOR.join([Path(str(names["target"])).name + drafts, *origins(names)[:1], label])


@dataclass(slots=True)
class ServerPartner(ChatPartner):
    """A server with OpenAI's protocol."""

    url: str
    key: str | None
    chats: bool = True  # whether its model knows conversations
    last: dict[str, Any] = field(default_factory=dict)

    def reply(self, talk: Chat, cancelled: Callable[[], bool]) -> str:
        body: dict[str, Any] = {
            **talk.settings.sampling.model_dump(exclude_defaults=True),
            "temperature": talk.settings.temperature,
            "seed": talk.turn,
            "max_tokens": talk.settings.max_new_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= {"stop": talk.limits.stop} if talk.limits.stop else {}
        body |= {"ignore_eos": True} if talk.limits.ignore_eos else {}
        body |= {"speculation": talk.method.as_dict()} if talk.method is not None else {}
        try:
            return self._streamed(talk, body, cancelled)
        except RequestError as failed:
            if not self.chats or NO_TEMPLATE not in str(failed):
                raise
            self.chats = False
            return self._streamed(talk, body, cancelled)

    def _streamed(self, talk: Chat, body: dict[str, Any], cancelled: Callable[[], bool]) -> str:
        about: dict[str, Any] = {"messages": talk.history} if self.chats else {"prompt": talk.text}
        text, self.last = "", {}
        with self._posted("/v1/chat/completions" if self.chats else "/v1/completions", {**about, **body}) as answer:
            for chunk in _events(answer):
                for choice in chunk.get("choices", ()):
                    piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
                    text += piece
                    print(visible(piece) if sys.stdout.isatty() else piece, end="", flush=True)
                self.last |= {key: chunk[key] for key in ("usage", "metrics") if chunk.get(key)}
                if cancelled():
                    break
        return text

    def _posted(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {self.key}"} if self.key else {})
        place = self.url.rstrip("/").removesuffix("/v1") + path
        local = urlsplit(place).hostname in ("localhost", "127.0.0.1", "::1")
        opener = request.build_opener(*([request.ProxyHandler({})] if local else []))
        try:
            return opener.open(request.Request(place, json.dumps(body).encode(), headers), timeout=600)
        except error.HTTPError as refused:
            reason = f"{place} answers with {refused.code} {refused.reason}"
            with suppress(ValueError, LookupError, TypeError):
                reason = str(parse_json(refused.read(1 << 20))["error"]["message"])
            raise RequestError(reason) from None
        except (OSError, ValueError) as failed:
            raise RequestError(f"{place} cannot be reached ({getattr(failed, 'reason', failed)})") from None

    def check(self, method: Method) -> Method:
        return method

    def stats(self) -> str:
        return json.dumps(self.last, indent=1) if self.last else NO_REPLY

    def banner(self, method: Method | None) -> str:
        return self.url if method is None else f"{self.url}{SEPARATOR}{method_label(method.as_dict())}"


def _events(answer: Any) -> Iterator[dict[str, Any]]:
    """The JSON objects of server-sent events; raises RequestError where one is an error, or the connection breaks."""
    try:
        for event in server_events(answer):
            if not isinstance(event, dict):
                raise RequestError("the server sent what is no answer")
            if isinstance(event.get("error"), dict):
                raise RequestError(str(event["error"].get("message")))
            yield event
    except RequestError:
        raise
    except ValueError as failed:
        raise RequestError(f"the server sent what is no JSON ({failed})") from None
    except (OSError, HTTPException) as failed:
        raise RequestError(f"the connection broke in the middle of a reply ({failed}); ask again") from None


def chat(
    *,
    url: str | None = flag(None, "Use a server with OpenAI's API, such as http://localhost:8000.", "URL"),
    api_key: str | None = flag(None, "With --url: the server's key; better in DRAFTWOOD_API_KEY.", "KEY"),
    system: str | None = flag(None, "System message.", "TEXT"),
    limits: LimitOptions = LimitOptions(max_new_tokens=512),
    models: ModelOptions,
    decoding: MethodOptions,
    seed: int = seed("The same seed and messages give the same conversation."),
    sampling: SamplingOptions,
    output: ColorOptions,
) -> None:
    """Chat with a model.

    Each line is a message; a model without a chat template, such as the embedded
    one, continues the text instead. /help lists commands. In a pipe, standard
    output holds only the replies.
    """
    hidden("--api-key")
    method = decoding.chosen(models.drafts, sampling)
    partner: ChatPartner
    if url is None:
        partner = LocalPartner(models.load(method), output.color)
        params, note = sampling.completed(partner.engine.generation_config, method)
    else:
        partner = ServerPartner(url, api_key)
        params, note = sampling.completed({}, method)
    settings = ChatSettings(**params.model_dump(), seed=seed, max_new_tokens=limits.max_new_tokens)
    talk = Chat(settings, limits, method)
    if method is not None:
        partner.check(method)
    begin(talk, system)
    asks = sys.stdin.isatty()
    if asks:
        print(flow([partner.banner(method), *filter(None, [note]), "/help lists commands, /quit ends"], sys.stdout))
    failed = False
    for line in lines(asks):
        try:
            if line.startswith("/"):
                if command(talk, partner, line[1:]):
                    break
            elif line.strip():
                talk.tries = 0
                answer(talk, partner, line)
        except DraftwoodError as wrong:
            failed = True
            print(f"error: {visible(str(wrong))}", file=sys.stderr)
    if failed and not asks:
        sys.exit(2)


def lines(asks: bool) -> Iterator[str]:
    """The user's messages, line by line, until the end of the input."""
    if not asks:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # a line that is not valid UTF-8 is refused, not the rest
        for line in sys.stdin:
            yield line.removesuffix("\n")
        return
    with suppress(ImportError):
        import readline  # noqa: F401  # editing and history of what was typed
    with suppress(EOFError):
        while True:
            try:
                yield input("> ")
            except KeyboardInterrupt:  # gives up the line
                print()


def begin(talk: Chat, system: str | None) -> None:
    """Start the conversation over."""
    talk.history = [] if not system else [{"role": "system", "content": system}]


def answer(talk: Chat, partner: ChatPartner, text: str) -> None:
    """Send a message and print the reply; a message that failed is not kept."""
    before = list(talk.history)
    talk.history.append({"role": "user", "content": text})
    try:
        with interruptible() as wanted:
            reply = partner.reply(talk, wanted)
    except BaseException:
        talk.history = before
        raise
    finally:
        print(flush=True)
    talk.history.append({"role": "assistant", "content": reply})


def again(talk: Chat, partner: ChatPartner, text: str | None) -> None:
    """Reply to the last message once more, with the next seed, or to another text in its place.

    Raises ConfigurationError where there was no message. A reply that fails leaves the conversation as it was.
    """
    place = last_message(talk)
    before, tries = talk.history, talk.tries
    message = str(before[place]["content"])
    talk.history, talk.tries = before[:place], tries + 1 if text is None else 0
    try:
        answer(talk, partner, message if text is None else text)
    except BaseException:
        talk.history, talk.tries = before, tries
        raise


def last_message(talk: Chat) -> int:
    """The place of the user's last message; ConfigurationError where there is none."""
    places = [place for place, message in enumerate(talk.history) if message["role"] == "user"]
    if not places:
        raise ConfigurationError("there was no message yet; type one")
    return places[-1]


def command(talk: Chat, partner: ChatPartner, line: str) -> bool:
    """Carry out a line that begins with a slash; whether it ends the conversation."""
    from draftwood.methods import Method
    from draftwood.util import config

    name, *words = line.split() or [""]
    if name not in COMMANDS:
        raise ConfigurationError(f"there is no /{name}" + did_you_mean(name, COMMANDS))
    out = sys.stderr if not sys.stdin.isatty() else sys.stdout
    if name == "help":
        print(HELP, file=out)
    elif name == "method" and words:
        method = Method.parse(words[0], config.assignments(words[1:]))
        method.check(talk.settings)
        talk.method = partner.check(method)
    elif name == "method":
        print("the default" if talk.method is None else method_label(talk.method.as_dict()), file=out)
    elif name == "set" and words:
        changed = {**talk.settings.model_dump(), **config.assignments(words)}
        talk.settings = config.parse(ChatSettings, changed, "/set")
    elif name == "set":
        print(" ".join(f"{key}={option_text(value)}" for key, value in talk.settings.model_dump().items()), file=out)
    elif name == "again" or (name == "edit" and words):
        again(talk, partner, None if name == "again" else line.partition(" ")[2].strip())
    elif name == "edit":
        print(visible(talk.history[last_message(talk)]["content"]), file=out)
    elif name == "stats":
        print(partner.stats(), file=out)
    elif name in ("reset", "system"):
        system = next((message["content"] for message in talk.history[:1] if message["role"] == "system"), None)
        begin(talk, line.partition(" ")[2].strip() if name == "system" else system)
    return name == "quit"
