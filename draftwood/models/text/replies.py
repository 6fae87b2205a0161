"""Parts of a chat model's reply: thoughts, text and calls of tools, as its chat template writes them.

The table of forms is read off published templates, by a mark that only they have. A model whose template knows no tools
is told of them in a system message, and calls them with an object of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwood.models.text.tokenizer import Tokenizer
from draftwood.sampling.grammar import SEPARATORS

MAX_FORCED_CALLS = 16  # that one reply can be made to have
GENERIC = '{"name": "%s", "arguments": %s}'
TOLD = 'You can call these functions:\n{}\nTo call one, answer with only {{"name": "...", "arguments": {{...}}}}.'
SPECIAL = re.compile(r"(<\|[^<>|]*\|>|\[[A-Z_]+\])")  # how special tokens are written
NAMED = re.compile(r"\s*([\w.-]+)[^{]*(\{.*)", re.DOTALL)  # a name, what stands between, and arguments
CALL_HEAD = re.compile(  # up to the arguments, of a call that may go on
    r'\s*\[?\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([\w.-]+)"\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\{)|\s*([\w.-]+)[^{]*(?=\{)'
)
JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}]', re.DOTALL)  # a string, maybe unfinished, or a brace
XML_NAME = re.compile(r"\s*<function=([^>\s]+)>(.*)", re.DOTALL)
XML_ARGUMENT = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)

ToolDefinition = Mapping[str, Any]  # {"type": "function", "function": {"name", "description", "parameters"}}


@dataclass(frozen=True)
class CallForm:
    """How calls are written: `open`, a call with its name and arguments in `call`, `close` (else the end of the text).

    Without `open` the text itself is the call. `again` stands between calls where there may be several; `lead` before
    the first one is what `skipped` tokens, which are no text, begin.
    """

    open: str = ""
    call: str = GENERIC
    close: str = ""
    again: str | None = None
    lead: str = ""
    skipped: tuple[str, ...] = ()


HARMONY = CallForm(
    "to=functions.",
    "%s <|constrain|>json<|message|>%s",
    lead="<|channel|>commentary ",
    skipped=("<|start|>assistant", "<|channel|>commentary", "<|channel|>final", "<|message|>", "<|end|>"),
)
CALL_FORMS: dict[str, CallForm] = {  # by what a template has that writes them; the first one counts
    "<|channel|>": HARMONY,  # gpt-oss
    "[ARGS]": CallForm("[TOOL_CALLS]", "%s[ARGS]%s", again=""),  # Mistral since 2025
    "[TOOL_CALLS]": CallForm("[TOOL_CALLS]", f"[{GENERIC}]"),  # Mistral before
    "<|/tool_call|>": CallForm("<|tool_call|>", f"[{GENERIC}]", "<|/tool_call|>"),  # Phi-4-mini
    "<|tool_call|>": CallForm("<|tool_call|>", f"[{GENERIC}]"),  # Granite
    "<tool_call>": CallForm("<tool_call>", f"\n{GENERIC}\n", "</tool_call>", "\n"),  # Hermes, Qwen, SmolLM3
    '"parameters": ': CallForm(call='{"name": "%s", "parameters": %s}'),  # Llama 3
}
THOUGHTS = {  # the same for what the model thinks before it answers: what opens and closes it
    "<|channel|>": ("<|channel|>analysis<|message|>", "<|end|>"),
    "</think>": ("<think>", "</think>"),  # DeepSeek, Qwen, SmolLM3
    "[/THINK]": ("[THINK]", "[/THINK]"),  # Magistral
}


@dataclass
class ReplyParts:
    """A part of a reply; `calls` are names with arguments as JSON. Without a name these go on with the last call's."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


class ReplyForm:
    """How a model's replies are to be read, with `tools` (none: what looks like a call is text)."""

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[ToolDefinition] = ()) -> None:
        self.tokenizer, self.tools = tokenizer, tools
        source = "\n".join(template.source for template in tokenizer.templates.values())
        self.native = "tool" in source  # whether the template itself tells of tools
        known = (form for mark, form in CALL_FORMS.items() if self.native and mark in source)
        self.form = next(known, CallForm())
        self.thought = next((pair for mark, pair in THOUGHTS.items() if mark in source), None)

    @property
    def special(self) -> bool:
        """Whether special tokens have to be read."""
        marks = [*(self.thought or ()), *((self.form.open, self.form.close) if self.tools else ())]
        written = [word for mark in (*marks, *self._skipped) for word in SPECIAL.findall(mark)]
        return any(self._special_id(word) is not None for word in written)

    @property
    def free(self) -> bool:
        """Whether text that has no calls can be told from text that has, by a grammar."""
        return (
            bool(self.form.open)
            and self.thought is None
            and self._special_id(self.form.open) is None
            and (self.form is not HARMONY)
        )

    @property
    def _skipped(self) -> tuple[str, ...]:
        return self.form.skipped if self.form is HARMONY else ()

    def _special_id(self, word: str) -> int | None:
        id = self.tokenizer.id_of(word)
        return None if id is None or self.tokenizer.known(id).ordinary else id

    def told(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The conversation for a template that knows no tools: what it cannot say is told as text."""
        plain = [dict(message) for message in messages]
        if self.native:
            return plain
        for message in plain:
            if calls := message.pop("tool_calls", None):
                written = "\n".join(GENERIC % (one["name"], json.dumps(one["arguments"])) for one in _functions(calls))
                message["content"] = "\n".join(filter(None, (message.get("content"), written)))
            if message["role"] in ("tool", "function"):
                message["role"] = "user"
        if self.tools:
            text = TOLD.format("\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in self.tools))
            if plain and plain[0]["role"] == "system":
                plain[0]["content"] = f"{plain[0].get('content') or ''}\n\n{text}"
            else:
                plain.insert(0, {"role": "system", "content": text})
        return plain

    def grammar(self, names: Sequence[str], several: bool, opened: bool = False, free: bool = False) -> str:
        """A grammar in Lark's notation of replies that call tools of these names, behind a thought that was `opened`.

        `free` ones may be text instead.
        """
        form, rules = self.form, []
        for i, tool in enumerate(one["function"] for one in self.tools if one["function"]["name"] in names):
            head, _, tail = (form.call.replace("%s", tool["name"], 1)).partition("%s")
            schema = {**_arguments(tool), "x-guidance": SEPARATORS}
            rules += [f"call{i}: {self._literal(head)} arguments{i} {self._literal(tail)}"]
            rules += [f"arguments{i}: %json {json.dumps(schema)}"]
        one = f"{self._literal(form.open)} call {self._literal(form.close)}"
        choices = " | ".join(rule.partition(":")[0] for rule in rules[::2])
        more = ""
        if several and form.again is not None:
            more = f" ({self._literal(form.again)} {one}){{0,{MAX_FORCED_CALLS - 1}}}"
        calls = f"{self._literal(form.lead)} {one}{more}"
        lines = [f"start: {calls}"]
        if free:  # the marks are ordinary text
            lines = [f"start: TEXT | before call {self._literal(form.close)}{more}"]
            lines += [f"before[suffix={json.dumps(form.open)}]: /(?s:.*)/"]
            lines += [f"TEXT: /(?s:.*)/ & ~/(?s:.*{_pattern(form.open)}.*)/"]
        elif opened and self.thought is not None:
            lines = [f"start: thought {calls}", *self._thought_rules()]
        return "\n".join([*lines, f"call: {choices}", *rules])

    def behind_thought(self, structured: Mapping[str, Any]) -> dict[str, Any]:
        """A constraint as one on what follows a thought that was opened; a grammar stays one on the whole text."""
        kind, given = next(iter(structured.items()), ("grammar", None))
        if kind == "grammar" or not given or len(structured) > 1:  # or what is refused
            return dict(structured)
        if kind == "regex":
            answer = "/" + re.sub(r"(?<!\\)/", r"\\/", given).replace("\n", "\\n") + "/"
        elif kind == "choice":
            answer = " | ".join(json.dumps(text, ensure_ascii=False) for text in given)
        else:
            schema = given if kind == "json_schema" else {"type": "object"}
            answer = f"%json {json.dumps({**schema, 'x-guidance': SEPARATORS}, ensure_ascii=False)}"
        return {"grammar": "\n".join(["start: thought answer", *self._thought_rules(), f"answer: {answer}"])}

    def _thought_rules(self) -> list[str]:
        """Rules of `thought`: what is left of a thought, and what closes it."""
        assert self.thought is not None
        rules = [f"thought: THOUGHT {self._literal(self.thought[1])} /\\s*/"]
        if self._special_id(self.thought[1]) is None:
            rules = [f"thought: ended /\\s*/\nended[suffix={json.dumps(self.thought[1])}]: THOUGHT"]
        return [*rules, "THOUGHT: /(?s:.*)/"]

    def _literal(self, text: str) -> str:
        """A text in a grammar, its special tokens as such."""
        ids = [(part, self._special_id(part)) for part in SPECIAL.split(text) if part]
        return " ".join(json.dumps(part, ensure_ascii=False) if id is None else f"<[{id}]>" for part, id in ids)

    def reader(self, prompt: Sequence[int], several: bool = True, piecewise: bool = False) -> ReplyReader:
        """Reads a reply to a prompt, which may have opened a thought; `piecewise`: arguments come as they grow."""
        return ReplyReader(self, several, "reasoning" if self.opened(prompt) else "content", piecewise)

    def opened(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends in a thought that has begun."""
        if self.thought is None:
            return False
        return self.tokenizer.decode(prompt[-16:], skip_special=False).rstrip().endswith(self.thought[0])

    def calls(self, text: str) -> list[tuple[str, str]]:
        """The calls that a text makes of these tools; none where it is something else."""
        calls = [(name, json.dumps(given, ensure_ascii=False)) for name, given in self._calls(text)]
        names = {tool["function"]["name"] for tool in self.tools}
        return calls if all(name in names for name, _ in calls) else []

    def begun(self, text: str) -> tuple[str, str] | None:
        """The name of the call that a text begins with, and its arguments so far; None where that is not certain."""
        head = CALL_HEAD.match(text)
        name = None if head is None else head[1] or head[2]
        if head is None or name is None or all(tool["function"]["name"] != name for tool in self.tools):
            return None
        depth = 0
        for part in JSON_PART.finditer(text, head.end()):
            depth += (part[0] == "{") - (part[0] == "}")
            if not depth:
                return name, text[head.end() : part.end()]
        return name, text[head.end() :]

    def _calls(self, text: str) -> Iterator[tuple[str, Any]]:
        if xml := XML_NAME.match(text):  # Qwen3-Coder
            yield xml[1], {key: self._value(xml[1], key, value) for key, value in XML_ARGUMENT.findall(xml[2])}
            return
        try:
            if named := NAMED.match(text):
                yield named[1], json.loads(named[2])
                return
            value = json.loads(text)
        except (ValueError, RecursionError):
            return
        for one in value if isinstance(value, list) else [value]:
            given = one.get("arguments", one.get("parameters", {})) if isinstance(one, dict) else None
            if not isinstance(given, dict) or not isinstance(one.get("name"), str):
                return
            yield one["name"], given

    def _value(self, name: str, key: str, text: str) -> Any:
        """An argument that was written as it is: text where the tool wants text, else JSON."""
        tool: Mapping[str, Any] = next((one["function"] for one in self.tools if one["function"]["name"] == name), {})
        wanted = ((tool.get("parameters") or {}).get("properties") or {}).get(key) or {}
        try:
            return text if wanted.get("type") == "string" else json.loads(text)
        except (ValueError, RecursionError):
            return text


class ReplyReader:
    """Splits a growing reply into its parts; what may still become a mark, and unfinished calls, wait.

    Where `piecewise`, a call's arguments are given as they grow, once its name is certain.
    """

    def __init__(self, form: ReplyForm, several: bool, state: str, piecewise: bool = False) -> None:
        self.form, self._several, self._state, self._piecewise = form, several, state, piecewise
        self._text, self._begun, self.count = "", False, 0
        self._given: int | None = None  # characters of a call's arguments that were given, if it is unfinished

    def feed(self, text: str, final: bool) -> ReplyParts:
        """The parts that are certain with the next piece of text."""
        self._text += text
        parts = ReplyParts()
        while self._step(parts, final):
            pass
        return parts

    def _marks(self) -> dict[str, str]:
        """Marks that end the present state, each with the state that follows."""
        form, thought = self.form.form, self.form.thought
        calls = {form.open: "call"} if self.form.tools and form.open else {}
        if self._state == "call":
            return {form.close: "content"} if form.close else {form.open: "call"} if form.open else {}
        if self._state == "reasoning":
            assert thought is not None
            return {thought[1]: "content", **calls}
        return {
            **({thought[0]: "reasoning"} if thought else {}),
            **calls,
            **dict.fromkeys(self.form._skipped, "content"),
        }

    def _step(self, parts: ReplyParts, final: bool) -> bool:
        """Move over the next mark; False where there is none."""
        if self._state == "content" and not self._begun:  # white space in front belongs to no part
            self._text = self._text.lstrip() if self.form.thought or self.form.tools else self._text
            bare = self.form.tools and not self.form.form.open
            if bare and self._text[:1] in ("{", "["):
                self._state = "call"
        marks = self._marks()
        places = {mark: place for mark in marks if (place := self._text.find(mark)) >= 0}
        if places:
            mark = min(places, key=lambda one: (places[one], -len(one)))
            before, self._text = self._text[: places[mark]], self._text[places[mark] + len(mark) :]
            self._give(parts, before, mark)
            self._state = marks[mark]
            if self._state == "content":
                self._begun = False
            return True
        held = 0 if final else self._held(marks)
        if self._state == "call" and not final:
            if self._piecewise:
                self._grow(parts, self._text[: len(self._text) - held])
            return False
        give, self._text = self._text[: len(self._text) - held], self._text[len(self._text) - held :]
        self._give(parts, give, "")
        return False

    def _held(self, marks: Mapping[str, str]) -> int:
        """The length of the longest end of the text that may begin a mark."""
        lengths = range(min(len(self._text), max(map(len, marks), default=1) - 1), 0, -1)
        return next((size for size in lengths if any(mark.startswith(self._text[-size:]) for mark in marks)), 0)

    def _give(self, parts: ReplyParts, text: str, mark: str) -> None:
        if self._state == "reasoning":
            parts.reasoning += text
        elif self._state == "content":
            parts.content += text
            self._begun = self._begun or bool(text)
        elif self._given is not None:
            self._grow(parts, text)
            self._given = None
            self._add(parts, self.form.calls(text)[1:])
        elif text.strip():
            calls = self.form.calls(text)
            if not calls:  # it is no call
                parts.content += self.form.form.open + text + (mark if mark == self.form.form.close else "")
            self._add(parts, calls)

    def _add(self, parts: ReplyParts, calls: list[tuple[str, str]]) -> None:
        kept = calls if self._several else calls[: max(0, 1 - self.count)]
        self.count += len(kept)
        parts.calls += kept

    def _grow(self, parts: ReplyParts, text: str) -> None:
        """Give the arguments of the call that a text begins with, as far as they were not given."""
        begun = self.form.begun(text)
        if begun is None or (self._given is None and self.count and not self._several):
            return
        name, arguments = begun
        if self._given is None:
            self.count += 1
            parts.calls.append((name, arguments))
        elif len(arguments) > self._given:
            parts.calls.append(("", arguments[self._given :]))
        self._given = len(arguments)


def _arguments(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments, which has those alone that it names unless it says otherwise."""
    schema = {"type": "object", **(tool.get("parameters") or {"properties": {}})}
    composed = schema.keys() & {"$ref", "allOf", "anyOf", "oneOf", "additionalProperties", "patternProperties"}
    return schema if composed or "properties" not in schema else {**schema, "additionalProperties": False}


def _pattern(text: str) -> str:
    """A text as a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/")


def _functions(calls: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [call["function"] for call in calls]
