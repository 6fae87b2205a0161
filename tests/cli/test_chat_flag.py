"""`draftwood generate --chat`: the prompt as a user's message in the checkpoint's own format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_models
from conftest import Command

import draftwood

TEMPLATE = """\
{% for m in messages %}
[{{ m.role }}] {{ m.content }}<eos>
{% endfor %}
{% if add_generation_prompt %}[assistant] {% endif %}
"""
PROMPT = "[user] hi<eos>\n[assistant] "


@pytest.fixture
def chatty(copy_of_target: Path) -> Path:
    (copy_of_target / "chat_template.jinja").write_text(TEMPLATE)
    return copy_of_target


def test_the_prompt_becomes_a_message(command: Command, chatty: Path) -> None:
    shown = command("generate", "hi", "--chat", "--target", chatty, "--seed", 4, "--max-new-tokens", 20)
    messages = [{"role": "user", "content": "hi"}]
    assert shown.code == 0
    assert shown.out == draftwood.load(chatty).generate(messages, seed=4, max_new_tokens=20).text
    document = command("generate", "hi", "--chat", "--target", chatty, "--seed", 4, "--json").document
    assert document["prompt_tokens"] == tiny_models.byte_tokenizer().encode(PROMPT).ids
    assert document["prompt_tokens"].count(tiny_models.EOS) == 1


def test_a_system_message_comes_first(command: Command, chatty: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("hi\n")
    flags = ["--chat", "--system", "Be brief.", "--target", chatty, "--json"]
    document = command("generate", "--prompt-file", file, *flags).document
    expected = "[system] Be brief.<eos>\n" + PROMPT
    assert document["prompt_tokens"] == tiny_models.byte_tokenizer().encode(expected).ids


def test_a_draft_model_sees_the_conversation_too(command: Command, chatty: Path, draft: Path) -> None:
    flags = ["hi", "--chat", "--target", chatty, "--temperature", 0, "--json"]
    plain = command("generate", *flags, "--method", "autoregressive").document
    assert command("generate", *flags, "--draft", draft).document["tokens"] == plain["tokens"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--system", "x"], "--system is a message of a conversation; give --chat too"),
        (["--chat"], "has no chat template: it continues text and knows no conversations; give the prompt as text"),
    ],
)
def test_refusals(command: Command, target: Path, flags: list[str], sentence: str) -> None:
    shown = command("generate", "hi", "--target", target, *flags)
    assert shown.code == 2 and shown.out == ""
    assert shown.err.startswith("error: ") and shown.err.count("\n") == 1 and sentence in shown.err


def test_a_broken_template_is_one_sentence(command: Command, copy_of_target: Path) -> None:
    config = {"chat_template": "{% if %}"}
    (copy_of_target / "tokenizer_config.json").write_text(json.dumps(config))
    shown = command("generate", "hi", "--chat", "--target", copy_of_target)
    assert shown.code == 2 and shown.err.count("\n") == 1
    assert "tokenizer_config.json, line 1, is broken" in shown.err
    assert command("generate", "hi", "--target", copy_of_target, "--max-new-tokens", 2).code == 0
