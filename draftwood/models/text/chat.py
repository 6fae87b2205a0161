"""Chat templates: a conversation to the text that a chat model was trained on, as Hugging Face renders it.

A template is untrusted code: it renders in jinja's sandbox, in a process of its own with bounds (template_worker.py).
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock, Timer
from typing import Any

from draftwood.errors import ModelError, RequestError
from draftwood.models.checkpoints.files import read_json
from draftwood.util.safe_parsing import read_text, short_repr

Message = Mapping[str, Any]  # {"role": ..., "content": ...}, and what else the template reads

DEFAULT_TEMPLATE, TOOL_TEMPLATE = "default", "tool_use"  # names of templates
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")  # names of one field
MEDIA = ("image", "audio", "video")  # in types of parts of a message
UNFINISHED_MARK = "END_OF_THE_UNFINISHED_MESSAGE "  # stands for the end of a message that the model is to continue
MAX_TEMPLATE_BYTES = 1 << 20
RENDER_MEMORY, RENDER_SECONDS = 512 << 20, 10  # limits of the process that renders: bytes; seconds a conversation


class _Worker:
    """The process that renders, started when the first template is used and again when it was ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to a request; None where the process was ended by a limit."""
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                command = [sys.executable, "-P", str(Path(__file__).with_name("template_worker.py"))]
                process = self._process = subprocess.Popen(
                    [*command, str(RENDER_MEMORY), str(RENDER_SECONDS)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            assert process.stdin is not None and process.stdout is not None
            limit = Timer(RENDER_SECONDS + 5, process.kill)  # where there are no alarms
            limit.daemon = True
            limit.start()
            try:
                process.stdin.write(line)
                process.stdin.flush()
                reply = process.stdout.readline()
            except OSError:
                reply = b""
            finally:
                limit.cancel()
            if not reply.endswith(b"\n"):
                self._end()
                return None
            answer: dict[str, Any] = json.loads(reply)
            return answer

    def close(self) -> None:
        with self._lock:
            self._end()

    def forget(self) -> None:
        """In a forked process: the worker is the parent's, and is left alone."""
        self._parents, self._process, self._lock = self._process, None, Lock()

    def _end(self) -> None:
        if self._process is not None:
            with self._process as process:  # closes the pipes and waits
                process.kill()
        self._process = None


_WORKER = _Worker()
atexit.register(_WORKER.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WORKER.forget)


class ChatTemplate:
    """One template; `origin` is the file that it came from. It is compiled when it is first used."""

    def __init__(self, source: str, origin: str) -> None:
        self.source = source
        self.origin = origin

    def render(self, **variables: Any) -> str:
        """The text; refuses with the template's own words, or names the line that fails."""
        answer = _WORKER.ask({"source": self.source, "origin": self.origin, "variables": variables})
        if answer is None:
            raise RequestError(
                f"{self._place(0)} takes more than {RENDER_SECONDS} s or {RENDER_MEMORY >> 20} MiB on these messages; "
                "use another template, or shorter messages"
            )
        if "text" in answer:
            return str(answer["text"])
        place, reason = self._place(answer["line"]), answer["reason"]
        if answer["kind"] == "broken":
            raise ModelError(f"{place} is broken: {reason}")
        if answer["kind"] == "forbidden":
            raise ModelError(f"{place} does what a template may not: {reason}")
        if answer["kind"] == "refused":
            raise RequestError(f"the chat template refuses these messages: {reason}")
        raise RequestError(f"{place} fails on these messages: {reason}")

    def _place(self, line: int) -> str:
        return f"the chat template of {self.origin or 'this tokenizer'}" + (f", line {line}," if line else "")


def templates(directory: Path, config: Mapping[str, Any]) -> dict[str, ChatTemplate]:
    """A directory's templates by name: from .jinja files, else tokenizer_config.json, else chat_template.json."""
    templates_read = {}
    for path in (directory / "chat_template.jinja", *sorted((directory / "additional_chat_templates").glob("*.jinja"))):
        if path.is_file():
            name = DEFAULT_TEMPLATE if path.parent == directory else path.stem
            try:
                templates_read[name] = ChatTemplate(read_text(path, MAX_TEMPLATE_BYTES), str(path))
            except (OSError, ValueError) as error:
                raise ModelError(f"{path} cannot be read as text ({error}); fetch it again") from error
    if templates_read:
        return templates_read
    path = directory / "chat_template.json"
    if config.get("chat_template") is None and path.is_file():
        return declared(read_json(path), str(path))
    return declared(config, str(directory / "tokenizer_config.json"))


def declared(config: Mapping[str, Any], origin: str) -> dict[str, ChatTemplate]:
    """The templates under the key chat_template: one text, or named ones as a mapping or a list of both."""
    value = config.get("chat_template")
    if value is None:
        return {}
    try:
        named = {DEFAULT_TEMPLATE: value} if isinstance(value, str) else value
        if not isinstance(named, Mapping):
            named = {entry["name"]: entry["template"] for entry in named}
        if not all(isinstance(text, str) for text in named.values()):
            raise TypeError
    except (TypeError, KeyError):
        raise ModelError(f"{origin}: chat_template is neither a text nor a list of names and templates") from None
    return {str(name): ChatTemplate(text, origin) for name, text in named.items()}


def render(
    choices: Mapping[str, ChatTemplate],
    messages: Sequence[Message],
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """The conversation as text, by the template for tools if there are both, else by the default one."""
    name = TOOL_TEMPLATE if tools is not None and TOOL_TEMPLATE in choices else DEFAULT_TEMPLATE
    if name not in choices:
        raise ModelError(f"there are several chat templates ({', '.join(sorted(choices))}), but none is named {name}")
    plain = _conversation(messages)
    opened = not continue_final_message if add_generation_prompt is None else add_generation_prompt
    if continue_final_message:
        if opened:
            raise RequestError("a message is either continued or followed by a new one; set one of the two options")
        if not isinstance(plain[-1].get("content"), str):
            raise RequestError("continue_final_message needs a text as the content of the last message")
        plain[-1]["content"] += UNFINISHED_MARK
    data = _plain({"tools": tools, "documents": None, **variables}, "the template's variables")
    text = choices[name].render(messages=plain, add_generation_prompt=opened, **data)
    if not continue_final_message:
        return text
    head, mark, tail = text.rpartition(UNFINISHED_MARK.rstrip())
    if not mark:
        raise RequestError("the chat template drops the last message, so that it cannot be continued")
    return head if tail.startswith(" ") else head.rstrip()  # a template that strips messages would strip this one


def _conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A copy of plain data; keys without a value are left out, since templates ask whether there is a key.

    What a message's author thought has one of several names; as in transformers, templates find it under those that
    they ask for.
    """
    if not isinstance(messages, Sequence):
        raise RequestError(f"a conversation is a list of messages, not {short_repr(messages)}")
    if not messages:
        raise RequestError("the conversation is empty; give at least one message")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(
                f'a message is a mapping such as {{"role": "user", "content": "..."}}, not {short_repr(message)}'
            )
    kept = [{key: value for key, value in message.items() if value is not None} for message in messages]
    plain: list[dict[str, Any]] = _plain(kept, "messages")
    for message in plain:
        parts = message.get("content")
        kinds = [str(part.get("type")) for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        seen = next((kind for kind in kinds if any(medium in kind for medium in MEDIA)), None)
        if seen is not None:
            raise RequestError(f"a message has a part of type {short_repr(seen)}, but only text is read; leave it out")
        thought = next((message[name] for name in REASONING_FIELDS if name in message), None)
        if thought is not None:
            message["reasoning_content"] = thought
            message.setdefault("thinking", thought)
    return plain


def _plain(value: Any, what: str) -> Any:
    """A copy made of JSON's types alone: objects could carry methods that the sandbox does not know."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{what} must be plain data, as JSON has it: {short_repr(error, 200)}") from error
