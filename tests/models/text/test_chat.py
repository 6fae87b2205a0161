"""Chat templates: texts and ids of Hugging Face's apply_chat_template; where templates lie; what they may not do."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import chat_templates
import pieces
import pytest
from chat_templates import TEMPLATES
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from draftwood.errors import DraftwoodError, ModelError, RequestError
from draftwood.models.text import chat
from draftwood.models.text.tokenizer import Tokenizer

USER = {"role": "user", "content": "Hi! How many <b> & 'bs'? é🙂"}
ASSISTANT = {"role": "assistant", "content": "  <think>\nbig\n</think>\nThree.\n"}
AGAIN = {"role": "user", "content": " And\n\ntoo? "}
SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ASSISTANT, AGAIN],
    "system and turns": [SYSTEM, USER, ASSISTANT, AGAIN],
    "answered": [USER, ASSISTANT],
    "two of the same": [USER, AGAIN],
    "empty text": [{"role": "user", "content": ""}],
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "<now> & 'then' é", "parameters": {}}}]


def fast(template: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=chat_templates.backend(), bos_token="<s>", eos_token="</s>", chat_template=template
    )


def loaded(template: object, directory: Path, **config: object) -> Tokenizer:
    chat_templates.backend().save(str(directory / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": template, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.load(directory)


def rendered(template: str, directory: Path, **variables: Any) -> str:
    return loaded(template, directory).chat_text([USER], **variables)


# the same as Hugging Face


@pytest.mark.parametrize("family", TEMPLATES)
def test_texts_and_ids_equal_hugging_faces(family: str, tmp_path: Path) -> None:
    fast(TEMPLATES[family]).save_pretrained(tmp_path)
    ours, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    refused = 0
    for messages in CONVERSATIONS.values():
        for options in ({}, {"add_generation_prompt": False}, {"tools": TOOLS}, {"enable_thinking": False}):
            asked: dict[str, Any] = {"add_generation_prompt": True, **options}
            try:
                text = theirs.apply_chat_template(messages, tokenize=False, **asked)
            except Exception as error:
                refused += 1
                with pytest.raises(RequestError, match="the chat template refuses these messages: ") as caught:
                    ours.chat_text(messages, **options)
                assert str(caught.value).endswith(str(error))
                continue
            assert ours.chat_text(messages, **options) == text
            ids = theirs.apply_chat_template(messages, return_dict=False, **asked)
            assert ours.chat(messages, **options) == ids
            assert ids.count(ours.id_of("<s>")) == text.count("<s>")  # the beginning is the template's to write
    assert refused < 16  # Gemma refuses system messages and all of the three the same role twice


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("reply", ["Sure, he", "Sure, he \n"])
def test_a_message_can_be_continued(family: str, reply: str, tmp_path: Path) -> None:
    fast(TEMPLATES[family]).save_pretrained(tmp_path)
    messages = [USER, {"role": "assistant", "content": reply}]
    text = Tokenizer.load(tmp_path).chat_text(messages, continue_final_message=True)
    assert text.rstrip().endswith("Sure, he")
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert text == theirs.apply_chat_template(messages, tokenize=False, continue_final_message=True)


PARTS_ALONE = [  # in the forms of LLaVA and SmolVLM, whose loops find nothing in a text
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    "{% for message in messages %}{{ message.role | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message.content %}{% if line['type'] == 'text' %}{{ line['text'] }}{% endif %}{% endfor %}"
    "{% endfor %}",
]


@pytest.mark.parametrize("template", PARTS_ALONE)
def test_texts_are_parts_where_templates_of_models_that_see_images_want_them(template: str, tmp_path: Path) -> None:
    messages = [SYSTEM, USER]
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]
    ours = loaded(template, tmp_path)
    text = ours.chat_text(messages)
    assert text == fast(template).apply_chat_template(parts, tokenize=False, add_generation_prompt=True)
    assert USER["content"] in text and ours.chat_text(parts) == text
    begun = [USER, {"role": "assistant", "content": "Sure"}]
    assert ours.chat_text(begun, continue_final_message=True).endswith("Sure")


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages[0].content is string %}{{ messages[0].content }}{% else %}"
        "{% for part in messages[0].content %}{{ part.text }}{% endfor %}{% endif %}",
        "{% for line in messages[0].content.split(' ') %}{{ line }}|{% endfor %}",
    ],
)
def test_texts_stay_texts_where_templates_take_them(template: str, tmp_path: Path) -> None:
    theirs = fast(template).apply_chat_template([USER], tokenize=False)
    assert rendered(template, tmp_path) == theirs != ""


@pytest.mark.parametrize("kind", ["image", "image_url", "input_audio", "video"])
def test_images_are_refused_rather_than_written_as_their_place(kind: str, tmp_path: Path) -> None:
    """Templates of models that see images write tokens that stand for one."""
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind}]
    with pytest.raises(RequestError, match=f"a part of type '{kind}', but only text is read; leave it out"):
        loaded(PARTS_ALONE[1], tmp_path).chat_text([SYSTEM, {"role": "user", "content": parts}])


def test_calls_of_tools_are_plain_data(tmp_path: Path) -> None:
    call = {"function": {"name": "weather", "arguments": {"place": "<Köln> & 'more'", "days": 2}}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "7°"}]
    text = loaded(TEMPLATES["Llama 3"], tmp_path).chat_text(messages, tools=TOOLS)
    theirs = fast(TEMPLATES["Llama 3"])
    assert text == theirs.apply_chat_template(messages, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert """"parameters": {"place": "<Köln> & 'more'", "days": 2}}<|eot_id|>""" in text


@pytest.mark.parametrize(
    "template",
    [
        "{{ {'b': '<é>', 'a': [1, none]} | tojson }}",
        "{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true, separators=(',', ':')) }}",
        "{{ 'é' | tojson(ensure_ascii=true) }}",
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "{% set n = namespace(a=1, b=2) %}{% for m in messages %}{% set n.a = n.a + 1 %}{% endfor %}{{ n.a }}{{ n.b }}",
        "{{ dict(a=1, b=2) | tojson }}{{ dict([('x', 1)]).x }}",
        "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
        "{{ messages[0].no }}|{{ pad_token }}|{{ bos_token }}|{{ tools is none }}|{{ tools is defined }}|{{ no }}",
        "   {% if true %}\n   {{ 'a' }}\n   {% endif %}\n  {# c #}\n b\n",
        "{% macro say(m) %}{{ m.role }}: {{ m.content | trim | upper }}{% endmacro %}{{ say(messages[0]) }}\n",
        "{{ messages | map(attribute='role') | join(',') }}",
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
        "{% if messages[0].content is string %}s{% elif messages[0].content is iterable %}i{% endif %}",
        "{{ messages[0].content.startswith('Hi') }}{{ messages[0].items() | list | length }}{{ '%d' % 3 }}",
    ],
)
def test_the_language_of_templates_is_hugging_faces(template: str, tmp_path: Path) -> None:
    expected = fast(template).apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    assert rendered(template, tmp_path) == expected


def test_the_date(tmp_path: Path) -> None:
    before = datetime.now().strftime("%d %b %Y")
    shown = rendered("{{ strftime_now('%d %b %Y') }}", tmp_path)
    assert shown in (before, datetime.now().strftime("%d %b %Y"))


def test_variables_may_replace_tokens(tmp_path: Path) -> None:
    assert rendered("{{ bos_token }}{{ mood }}", tmp_path, bos_token="B", mood="gay") == "Bgay"


# where templates lie


def test_files_come_before_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert loaded(None, tmp_path).chat_text([USER]) == "json"
    assert rendered("config", tmp_path) == "config"
    (tmp_path / "chat_template.jinja").write_text("{{ 'é' }} jinja", "utf-8")
    assert rendered("config", tmp_path) == "é jinja"


@pytest.mark.parametrize("jinja_files", [True, False])
def test_named_templates(jinja_files: bool, tmp_path: Path) -> None:
    named = {"default": "plain{{ tools is none }}", "tool_use": "tools {{ tools | length }}"}
    fast(named).save_pretrained(tmp_path, save_jinja_files=jinja_files)
    assert (tmp_path / "chat_template.jinja").is_file() == jinja_files
    ours = Tokenizer.load(tmp_path)
    assert ours.chat_text([USER]) == "plainTrue"
    assert ours.chat_text([USER], tools=TOOLS) == "tools 1"


def test_without_a_default_template_the_names_are_told(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "x"}, {"name": "tool_use", "template": "y"}]
    with pytest.raises(ModelError, match=r"several chat templates \(rag, tool_use\), but none is named default"):
        loaded(named, tmp_path).chat([USER])


def test_a_sentencepiece_model_names_its_own_tokens(tmp_path: Path) -> None:
    pieces.write(tmp_path, tokenizer_config={"chat_template": TEMPLATES["Llama 2"]})
    ours = Tokenizer.load(tmp_path)
    assert ours.chat_text([USER]).startswith("<s>[INST] Hi!")
    ids = ours.chat([USER, ASSISTANT, AGAIN])
    assert ids.count(1) == 2 and ids[0] == 1 != ids[1] and ids.count(2) == 1
    assert ours.encode("[INST] Hi", add_special=False) == ids[1 : 1 + len(ours.encode("[INST] Hi", add_special=False))]


# what is refused


def test_a_model_without_a_template(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"has no chat template: .* give the prompt as text, or use a chat model"):
        loaded(None, tmp_path).chat([USER])


@pytest.mark.parametrize("value", [7, ["x"], [{"name": "default"}], {"default": 3}])
def test_a_template_of_another_form(value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: chat_template is neither a text nor"):
        loaded(value, tmp_path)


def test_a_template_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match=r"chat_template\.jinja cannot be read as text"):
        loaded(None, tmp_path)


@pytest.mark.parametrize("file", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_broken_template_names_file_and_line(file: str, tmp_path: Path) -> None:
    broken = "a\n{% for m in messages %}\n{{ m. }}\n{% endfor %}"
    if file.endswith("jinja"):
        (tmp_path / file).write_text(broken)
    tokenizer = loaded(broken, tmp_path)  # plain text needs no template
    assert tokenizer.encode("x")
    with pytest.raises(ModelError) as caught:
        tokenizer.chat([USER])
    assert f"{tmp_path / file}, line 3, is broken: " in str(caught.value) and "\n" not in str(caught.value)


def test_a_template_nested_too_deep_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer_config\.json is broken: ") as caught:
        rendered("{{ " + "(" * 5000 + ")" * 5000 + " }}", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{{ messages[0].nothing.at_all }}", "has no attribute 'nothing'"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ range(10**9) | length }}", "Range too big"),
    ],
)
def test_a_template_that_fails_names_file_and_line(line: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        rendered("{# 1 #}\n{% if true %}\n" + line + "\n{% endif %}", tmp_path)
    said = str(caught.value)
    assert f"{tmp_path / 'tokenizer_config.json'}, line 3, fails on these messages: " in said
    assert reason in said and "\n" not in said


@pytest.mark.parametrize(
    "escape",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch FILE') }}",
        "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['json'] }}",
        "{{ dict.__init__.__globals__['x'] }}",
        "{{ dict.__subclasses__() }}",
        "{{ self.__init__.__globals__.__builtins__.open('FILE', 'w') }}",
        "{{ lipsum.__globals__['os'].popen('touch FILE').read() }}",
        "{{ ''|attr('__class__')|attr('mro') }}{{ (''|attr('__class__')).x.y }}",
        "{{ '{0.__class__.__init__.__globals__[x]}'.format(raise_exception) }}",
        "{{ ('{0.__class__.__mro__[1]}'|attr('format'))('') }}{{ x.y }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{% set ns = namespace(__call__=1) %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ open('FILE', 'w') }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(escape: str, tmp_path: Path) -> None:
    file = tmp_path / "touched"
    with pytest.raises(DraftwoodError) as caught:
        rendered(escape.replace("FILE", str(file)), tmp_path)
    assert "line 1" in str(caught.value)
    assert not file.exists()


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("bomb", "reason"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "takes more than 1 s"),
        ("{{ 9 ** (9 ** 9) }}", "takes more than 1 s"),
        (
            "{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "too much memory|more than 1 s or 512 MiB",
        ),
        ("{{ messages[0].role * 10 ** 10 }}", "too much memory|more than 1 s or 512 MiB"),
        ("{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "it writes more than 16,777,216 characters"),
    ],
)
def test_a_template_that_never_ends_or_grows_is_stopped(
    bomb: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = chat._Worker()
    monkeypatch.setattr(chat, "RENDER_SECONDS", 1)
    monkeypatch.setattr(chat, "_WORKER", worker)
    tokenizer = loaded(bomb, tmp_path)
    try:
        with pytest.raises(DraftwoodError, match=reason):
            tokenizer.chat_text([USER])
        (tmp_path / "chat_template.jinja").write_text("again")
        assert Tokenizer.load(tmp_path).chat_text([USER]) == "again"  # the next one is served
    finally:
        worker.close()


def test_objects_do_not_reach_a_template(tmp_path: Path) -> None:
    for unplain in ({"role": "user", "content": tmp_path}, {"role": "user", "content": "x", "f": open}):
        with pytest.raises(RequestError, match="messages must be plain data"):
            loaded("x", tmp_path).chat([unplain])
    with pytest.raises(RequestError, match="the template's variables must be plain data"):
        loaded("x", tmp_path).chat([USER], f=open)


@pytest.mark.parametrize("messages", [[], ["hello"], [{"content": "x"}], [{"role": 1, "content": "x"}], [USER, 3]])
def test_messages_of_another_form(messages: Any, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"the conversation is empty|a message is a mapping such as"):
        loaded("x", tmp_path).chat(messages)


def test_messages_are_not_changed(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x", "name": None}, {"role": "assistant", "content": "y"}]
    before = json.dumps(messages)
    tokenizer = loaded("{% for m in messages %}{{ m.content }}{{ 'name' in m }}{% endfor %}", tmp_path)
    assert tokenizer.chat_text(messages, continue_final_message=True) == "xFalsey"
    assert json.dumps(messages) == before


def test_a_message_that_cannot_be_continued(tmp_path: Path) -> None:
    tokenizer = loaded("{{ messages[0].content }}", tmp_path)
    with pytest.raises(RequestError, match="drops the last message"):
        tokenizer.chat([USER, ASSISTANT], continue_final_message=True)
    with pytest.raises(RequestError, match="needs a text"):
        tokenizer.chat([{"role": "user", "content": ["x"]}], continue_final_message=True)
    with pytest.raises(RequestError, match="set one of the two"):
        tokenizer.chat([USER], continue_final_message=True, add_generation_prompt=True)


@pytest.mark.parametrize("given", ["reasoning", "thinking", "reasoning_content"])
@pytest.mark.parametrize("read", ["reasoning", "thinking", "reasoning_content"])
def test_reasoning_is_one_field_whatever_its_name(given: str, read: str, tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m." + read + " | default('-') }}]{{ m.content }}{% endfor %}"
    messages = [USER, {"role": "assistant", "content": "3", given: "hmm"}, {**ASSISTANT, "thinking": None}]
    both = [{"role": "assistant", "content": "4", "thinking": "old", "reasoning_content": "new"}]
    for each in (messages, both):
        expected = fast(template).apply_chat_template(each, tokenize=False)
        assert loaded(template, tmp_path).chat_text(each, add_generation_prompt=False) == expected
        assert ("hmm" in expected) == (each is messages and (read != "reasoning" or given == read))
