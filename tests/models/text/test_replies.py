"""Replies of chat models are split into thoughts, text and calls, however they are cut into pieces."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers import models as backends

from draftwood.models.text.chat import ChatTemplate
from draftwood.models.text.replies import ReplyForm, ReplyParts
from draftwood.models.text.tokenizer import Tokenizer

NUMBER = {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}, "required": ["n"], "$defs": {"N": {"const": 3}}}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get", "parameters": NUMBER}},
    {"type": "function", "function": {"name": "put"}},
]
SPECIAL = (
    *("[THINK]", "[/THINK]"),
    *("</s>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|/tool_call|>"),
    *("<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|start|>"),
)
HERMES = "{{ tools }}<tool_call>"
GET = '{"name": "get", "arguments": {"n": 3}}'
CALL = ("get", '{"n": 3}')
MISTRAL = "{{ tools }}[TOOL_CALLS][ARGS]"
HARMONY = "{{ tools }}<|channel|><|start|>"


def tokenizer(template: str) -> Tokenizer:
    """Bytes, and special tokens of several models."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(backends.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in SPECIAL])
    return Tokenizer(backend, "test", {}, {"default": ChatTemplate(template, "test")})


def read(form: ReplyForm, text: str, size: int, prompt: str = "", piecewise: bool = False) -> ReplyParts:
    reader, whole = form.reader(form.tokenizer.encode(prompt), piecewise=piecewise), ReplyParts()
    for start in range(0, len(text), size):
        parts = reader.feed(text[start : start + size], start + size >= len(text))
        whole.content += parts.content
        whole.reasoning += parts.reasoning
        for name, arguments in parts.calls:
            before = whole.calls.pop() if not name else (name, "")
            whole.calls.append((before[0], before[1] + arguments))
    assert reader.count == len(whole.calls)
    return whole


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("template", "text", "content", "reasoning", "calls"),
    [
        (HERMES, f"So:<tool_call>\n{GET}\n</tool_call>", "So:", "", [CALL]),
        (HERMES, f"<tool_call>{GET}</tool_call>\n<tool_call>{GET}</tool_call>", "", "", [CALL, CALL]),
        (HERMES, "a <tool_cal", "a <tool_cal", "", []),
        (HERMES, "<tool_call>no</tool_call>", "<tool_call>no</tool_call>", "", []),
        (HERMES, '<tool_call>{"name": "other"}</tool_call>', '<tool_call>{"name": "other"}</tool_call>', "", []),
        (HERMES, '<tool_call>{"name": "get"', '<tool_call>{"name": "get"', "", []),
        (HERMES, "<tool_call><function=get>\n<parameter=n>\n3\n</parameter>\n</function></tool_call>", "", "", [CALL]),
        (HERMES + "</think>", f"<think>\nwell\n</think>\n\nSo<tool_call>{GET}</tool_call>", "So", "\nwell\n", [CALL]),
        ("</think>", "<think>a</think>b<tool_call>", "b<tool_call>", "a", []),
        ("{{ tools }}[TOOL_CALLS]", f"[TOOL_CALLS] [{GET}, {GET}]", "", "", [CALL, CALL]),
        (MISTRAL, '[TOOL_CALLS]get[ARGS]{"n": 3}[TOOL_CALLS]put[ARGS]{}', "", "", [CALL, ("put", "{}")]),
        ("{{ tools }}<|tool_call|>", f"<|tool_call|>[{GET}]", "", "", [CALL]),
        ('{{ tools }}{"name": f, "parameters": x}', '{"name": "get", "parameters": {"n": 3}}', "", "", [CALL]),
        ('{{ tools }}{"name": f, "parameters": x}', '{"n": 3}', '{"n": 3}', "", []),
        ("{{ messages }}", GET, "", "", [CALL]),
        ("{{ messages }}", f"see {GET}", f"see {GET}", "", []),
        (
            HARMONY,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes",
            *("yes", "hm", []),
        ),
        (
            HARMONY,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.get "
            '<|constrain|>json<|message|>{"n": 3}',
            *("", "hm", [CALL]),
        ),
    ],
)
def test_parts(template: str, text: str, content: str, reasoning: str, calls: list[Any], size: int) -> None:
    for piecewise in (False, True):
        found = read(ReplyForm(tokenizer(template), TOOLS), text, size, piecewise=piecewise)
        assert (found.content.rstrip(), found.reasoning, found.calls) == (content, reasoning, calls)


def test_arguments_grow() -> None:
    """As soon as the call's name is certain, also where the text ends inside; a brace in a string closes nothing."""
    reader = ReplyForm(tokenizer(HERMES), TOOLS).reader([], several=False, piecewise=True)
    text = '{"name": "get", "arguments": {"n": "}\\"{"}}'
    found = [reader.feed(part, False).calls for part in ("<tool_call>", *text, "</tool_", f"call><tool_call>{text}")]
    (name, first), *rest = [call for calls in found for call in calls]
    assert (name, first, {one for one, _ in rest}) == ("get", "{", {""})
    assert "{" + "".join(arguments for _, arguments in rest) == text.partition('arguments": ')[2][:-1]
    assert not reader.feed("</tool_call>", True).calls and reader.count == 1
    cut = read(ReplyForm(tokenizer(HERMES), TOOLS), f"<tool_call>{text[:-3]}", 1, piecewise=True)
    assert cut.calls == [("get", '{"n": "}\\"{')] and not cut.content


def test_a_prompt_may_open_the_thought() -> None:
    form = ReplyForm(tokenizer("</think>"))
    assert read(form, "a\n</think>b", 2, "x<think>\n") == ReplyParts("b", "a\n")
    assert read(form, "a", 2, "x<think>\n") == ReplyParts("", "a")
    assert read(ReplyForm(tokenizer("x")), " <think>", 2) == ReplyParts(" <think>")


FORCED = {
    "hermes": (HERMES, f"<tool_call>\n{GET}\n</tool_call>"),
    "thinking": (HERMES + "</think>", f"<tool_call>\n{GET}\n</tool_call>"),
    "mistral": (MISTRAL, '[TOOL_CALLS]get[ARGS]{"n": 3}'),
    "older mistral": ("{{ tools }}[TOOL_CALLS]", f"[TOOL_CALLS][{GET}]"),
    "phi": ("{{ tools }}<|tool_call|><|/tool_call|>", f"<|tool_call|>[{GET}]<|/tool_call|>"),
    "llama": ('{{ tools }}"parameters": ', '{"name": "get", "parameters": {"n": 3}}'),
    "none": ("{{ messages }}", GET),
    "harmony": (HARMONY, '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"n": 3}'),
}


def accepted(form: ReplyForm, grammar: str, text: str) -> bool:
    words, end = form.tokenizer, form.tokenizer.id_of("</s>")
    assert end is not None
    matcher = llguidance.LLMatcher(words.for_llguidance(end)[0], grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = words.encode(text)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


@pytest.mark.parametrize("name", FORCED)
def test_forced_calls_have_the_form_that_is_read(name: str) -> None:
    template, text = FORCED[name]
    form = ReplyForm(tokenizer(template), TOOLS)
    grammar = form.grammar(["get"], True)
    assert accepted(form, grammar, text) and read(form, text, 3).calls == [CALL]
    for wrong in (text.replace("3", "4"), text.replace("get", "put"), text + "x", "x" + text, "hello"):
        assert not accepted(form, grammar, wrong), wrong
    assert accepted(form, form.grammar(["get", "put"], True), text.replace("get", "put").replace('{"n": 3}', "{}"))


@pytest.mark.parametrize("template", [HERMES + "</think>", "{{ tools }}[TOOL_CALLS][/THINK]"])
def test_forced_calls_behind_a_thought(template: str) -> None:
    form = ReplyForm(tokenizer(template), TOOLS)
    assert form.thought is not None
    opening, closing = form.thought
    call = form.form.open + form.form.call % ("get", '{"n": 3}') + form.form.close
    prompt = form.tokenizer.encode(f"x{opening}")
    assert form.opened(prompt) and not form.opened(prompt[:-1])
    grammar, text = form.grammar(["get"], True, True), f"well <\n{closing}\n\n{call}"
    assert accepted(form, grammar, text)
    assert not accepted(form, grammar, call) and not accepted(form, grammar, text.replace("3", "4"))
    assert read(form, text, 4, f"x{opening}").calls == [CALL]


@pytest.mark.parametrize("template", [HERMES + "</think>", "{{ tools }}[TOOL_CALLS][/THINK]"])
def test_constraints_behind_a_thought(template: str) -> None:
    """The thought is free, the answer is not; a grammar is one on the whole text, and what is wrong stays as it is."""
    form = ReplyForm(tokenizer(template))
    assert form.thought is not None
    for structured, answer in (
        ({"json_schema": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}}, '{"a": 1}'),
        ({"json_object": True}, "{}"),
        ({"regex": "a/b[/]c\nd+"}, "a/b/c\ndd"),
        ({"choice": ['"x"', "é"]}, '"x"'),
    ):
        grammar = form.behind_thought(structured)["grammar"]
        assert accepted(form, grammar, f"so {{\n{form.thought[1]}\n\n{answer}")
        for wrong in (answer, f"so{form.thought[1]}", f"so{form.thought[1]}x{answer}"):
            assert not accepted(form, grammar, wrong), wrong
    for same in (
        {"grammar": "start: /a/"},
        {"json_schema": None},
        {"json_object": False},
        {"regex": "a", "choice": ["b"]},
    ):
        assert form.behind_thought(same) == same


def test_several_calls() -> None:
    form = ReplyForm(tokenizer(HERMES), TOOLS)
    text = f"<tool_call>\n{GET}\n</tool_call>"
    assert accepted(form, form.grammar(["get"], True), f"{text}\n{text}")
    assert not accepted(form, form.grammar(["get"], False), f"{text}\n{text}")
    reader = form.reader([], several=False)
    assert reader.feed(text + text, True).calls == [CALL]


def test_text_or_strict_calls() -> None:
    form = ReplyForm(tokenizer(HERMES), TOOLS)
    grammar, text = form.grammar(["get"], True, free=True), f"So: <tool_call>\n{GET}\n</tool_call>"
    assert form.free
    assert accepted(form, grammar, "hello") and accepted(form, grammar, text) and accepted(form, grammar, text[4:])
    assert not accepted(form, grammar, text.replace("3", "4")) and not accepted(form, grammar, "<tool_call>hello")


def test_templates_without_tools_are_told_of_them() -> None:
    form = ReplyForm(tokenizer("{{ messages }}"), TOOLS)
    assert not form.native and not form.special
    call = {"id": "1", "type": "function", "function": {"name": "get", "arguments": {"n": 3}}}
    told = form.told(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "7"},
        ]
    )
    assert told[0]["content"].startswith("Be brief.\n\nYou can call") and json.dumps(NUMBER) in told[0]["content"]
    assert told[1:] == [{"role": "assistant", "content": GET}, {"role": "user", "content": "7"}]
    assert form.told([{"role": "user", "content": "hi"}])[0]["role"] == "system"
