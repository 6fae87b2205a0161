"""A target with a chat template is asked through it, unless --no-chat says otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_models
from conftest import Command

from draftwood.eval.tasks.base import digest
from draftwood.models.text.tokenizer import Tokenizer

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def chatty(tmp_path: Path) -> Path:
    model = tiny_models.write(tmp_path / "chatty", 3, context=512)
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return model


@pytest.mark.parametrize("flags", [[], ["--no-chat"]], ids=["chat", "plain"])
def test_prompts(command: Command, chatty: Path, tmp_path: Path, flags: list[str]) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"question_id": 1, "turns": ["One?", "Two?"]}) + "\n")
    options = ["--tasks", f"mt_bench:path={file}", "--methods", "autoregressive", "--max-new-tokens", "4", *flags]
    done = command("eval", "--out", tmp_path / "out", "--target", chatty, *options)
    assert done.code == 0, done.err
    (line,) = map(json.loads, (tmp_path / "out" / "items.jsonl").read_text("utf-8").splitlines())
    words = Tokenizer.load(chatty)
    first, _ = line["output"]
    if flags:
        texts = ["User: One?\nAssistant:", f"User: One?\nAssistant:{first}\n\nUser: Two?\nAssistant:"]
    else:
        texts = ["<user>One?<assistant>", f"<user>One?<assistant>{first.strip()}<user>Two?<assistant>"]
    assert line["prompt_hash"] == digest([words.encode(text) for text in texts])
