"""Special tokens that stand beside tokenizer.json are found in a text as transformers finds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import byte_level, write
from transformers import AutoTokenizer

import draftwood
from draftwood.errors import ModelError
from draftwood.models.text.tokenizer import Tokenizer

TEXTS = ["the<|im_end|> in<|end|>", "<tool> the <tool><s>", "the<|im_start|>user\nthe<|im_end|>", "thé <pad>"]
SIZE = byte_level().get_vocab_size()  # the next free id


def token(content: str, **rules: Any) -> dict[str, Any]:
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, **rules}


CASES: dict[str, dict[str, dict[str, Any]]] = {
    "decoder": {
        "tokenizer_config": {
            "added_tokens_decoder": {
                str(SIZE + 1): token("<|im_end|>", special=True, rstrip=True),
                str(SIZE): token("<|im_start|>", special=True),
                str(SIZE + 2): token("<tool>", special=False),
            },
            "eos_token": "<|im_end|>",
        }
    },
    "map": {
        "special_tokens_map": {
            "eos_token": token("<|im_end|>"),
            "additional_special_tokens": ["<|im_start|>", "<tool>"],
            "pad_token": "<pad>",
        }
    },
    "older": {
        "added_tokens": {"<|im_start|>": SIZE, "<|im_end|>": SIZE + 1, "<tool>": SIZE + 2},
        "special_tokens_map": {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"},
    },
    "named": {"tokenizer_config": {"eos_token": "<|im_end|>", "tool_token": "<tool>", "bos_token": "the"}},
}


def saved(directory: Path, files: dict[str, dict[str, Any]]) -> Path:
    byte_level().save(str(directory / "tokenizer.json"))
    usual: dict[str, dict[str, Any]] = {"tokenizer_config": {}}
    for name, content in {**usual, **files}.items():
        about = {"tokenizer_class": "PreTrainedTokenizerFast"} if name == "tokenizer_config" else {}
        (directory / f"{name}.json").write_text(json.dumps({**about, **content}))
    return directory


@pytest.mark.parametrize("case", CASES)
def test_tokens_of_the_configuration_are_tokens(case: str, tmp_path: Path) -> None:
    ours = Tokenizer.load(saved(tmp_path, CASES[case]))
    auto = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == auto(text).input_ids
        for skip in (True, False):
            expected = auto.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special=skip) == expected
    assert ours.size == len(auto) > SIZE
    assert ours.end_tokens == {auto.eos_token_id}


def test_an_id_that_a_token_cannot_have_is_refused(tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {str(SIZE + 5): token("<|im_end|>", special=True)}}
    saved(tmp_path, {"tokenizer_config": config})
    with pytest.raises(
        ModelError, match=rf"'<\|im_end\|>' would be {SIZE}, not {SIZE + 5}\); save the tokenizer again"
    ):
        Tokenizer.load(tmp_path)


def test_the_tokenizers_own_end_token_ends_a_text(tmp_path: Path) -> None:
    write(tmp_path, vocab_size=SIZE + 3)
    engine = draftwood.load(saved(tmp_path, CASES["decoder"]))
    assert engine.end_tokens == {2, SIZE + 1}  # config.json's and the tokenizer's
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert draftwood.load(tmp_path).end_tokens == {2}
