"""tokenizer.model: ids and texts are sentencepiece's own; special and added tokens are treated as Hugging Face does."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import checkpoint_files
import pieces
import pytest
import sentencepiece
import tokenizers
from transformers import LlamaTokenizer

import draftwood
from draftwood.errors import ConfigurationError, ModelError
from draftwood.models.text.tokenizer import REPLACEMENT, Tokenizer

KINDS = ["llama", "unigram", "unknowns"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def loaded(directory: Path, kind: str = "llama", **files: object) -> Tokenizer:
    return Tokenizer.load(pieces.write(directory, kind, **files))


def original(kind: str = "llama") -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=pieces.model(kind))


def hugging_faces(legacy: bool, **tokens: Any) -> LlamaTokenizer:
    """Hugging Face's Llama tokenizer on the same pieces: any two that make a third one merge, earlier ones first."""
    model = original()
    vocab = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    text = {piece for piece, i in vocab.items() if not (model.is_byte(i) or model.is_control(i) or i <= 4)}
    splits = [(whole[:cut], whole[cut:]) for whole in vocab if whole in text for cut in range(1, len(whole))]
    merges = [(left, right) for left, right in splits if left in text and right in text]
    special = {"additional_special_tokens": ["[INST]"], **tokens}
    return LlamaTokenizer(vocab=vocab, merges=merges, legacy=legacy, add_bos_token=True, **special)


# ordinary text


def test_ids_and_texts_are_sentencepieces_own(kind: str, tmp_path: Path) -> None:
    ours, theirs = loaded(tmp_path, kind), original(kind)
    for text in pieces.texts(3000):
        ids = theirs.encode(text)
        assert ours.encode(text) == [1, *ids]
        assert ours.encode(text, add_special=False) == ids
        shown = [i for i in ids if i != theirs.unk_id()]  # an unknown piece is a special token
        assert ours.decode([1, *ids, 2]) == theirs.decode(shown)
    assert ours.size == theirs.get_piece_size()


def test_text_survives_where_sentencepiece_does_not_normalise(tmp_path: Path) -> None:
    ours = loaded(tmp_path)
    for text in [*pieces.texts(500, seed=1), "", " ", "   x", "\n\n", "<0x0A>", "<|user|> hi"]:
        assert ours.decode(ours.encode(text)) == text.replace("▁", " ")


def test_tokenizer_json_wins(tmp_path: Path) -> None:
    pieces.write(tmp_path)
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?")).save(
        str(tmp_path / "tokenizer.json")
    )
    assert Tokenizer.load(tmp_path).encode("a") == [0]


# special and added tokens


@pytest.mark.parametrize("legacy", [True, False])
def test_special_tokens_in_a_text_are_found_as_hugging_face_finds_them(legacy: bool, tmp_path: Path) -> None:
    ours, theirs = loaded(tmp_path, tokenizer_config={"legacy": legacy}), hugging_faces(legacy)
    checked = 0
    for text in pieces.texts(3000, ("<s>", "</s>", "<unk>", "[INST]", "</s", "<s"), seed=2):
        if any(f"{mark} " in "\n" + text for mark in ("\n", ">", "]")) or "▁" in text:
            continue  # theirs loses a space at the start of a text or after a special token; sentencepiece keeps it
        ids = theirs(text).input_ids
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True).replace("▁", " ")
        checked += 1
    assert checked > 1500


@pytest.mark.parametrize("legacy", [True, False])
def test_the_space_after_a_special_token(legacy: bool, tmp_path: Path) -> None:
    """Legacy: each part of the text is read as a text of its own."""
    ours, theirs = loaded(tmp_path, tokenizer_config={"legacy": legacy}), original()
    word = theirs.piece_to_id("dog")
    assert theirs.encode("dog") != [word] != [theirs.unk_id()]  # a text begins with a space that is not written
    assert ours.encode("dog</s>dog", add_special=False) == [
        *theirs.encode("dog"),
        2,
        *(theirs.encode("dog") if legacy else [word]),
    ]
    assert ours.encode("</s> dog", add_special=False) == [2, *theirs.encode(" dog" if legacy else "dog")]


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({}, [1, 7]),
        ({"add_bos_token": True, "add_eos_token": True}, [1, 7, 2]),
        ({"add_bos_token": False}, [7]),
        ({"add_bos_token": False, "add_eos_token": True}, [7, 2]),
        ({"bos_token": None}, [7]),
        ({"bos_token": "</s>"}, [2, 7]),
        ({"bos_token": {"content": "[INST]", "lstrip": False}}, [3, 7]),
    ],
)
def test_the_tokens_at_the_ends(config: dict[str, object], ids: list[int], tmp_path: Path) -> None:
    ours = loaded(tmp_path, tokenizer_config=config)
    middle = original().encode("the fox")
    assert ours.encode("the fox") == [j for i in ids for j in (middle if i == 7 else [i])]
    assert ours.encode("the fox", add_special=False) == middle
    assert ours.encode("") == [i for i in ids if i != 7]


def test_without_a_prefix_space(tmp_path: Path) -> None:
    ours = loaded(tmp_path, tokenizer_config={"add_prefix_space": False})
    assert ours.encode("dog", add_special=False) == [original().piece_to_id("dog")]
    for text in pieces.texts(300, seed=3):
        assert ours.decode(ours.encode(text)) == text.replace("▁", " ")


ADDED = {
    "420": {"content": "<|end|>", "special": True, "rstrip": True, "normalized": False},
    "421": {"content": "<think>", "special": False, "normalized": False},
    "430": {"content": "[PAD]", "special": True},
    "3": {"content": "<|system|>", "special": True},
}


def test_added_tokens_of_the_configuration(tmp_path: Path) -> None:
    ours = loaded(tmp_path, tokenizer_config={"added_tokens_decoder": ADDED, "pad_token": "[PAD]"})
    plain = original().encode
    assert ours.encode("the<|end|> \n dog<think>x") == [1, *plain("the"), 420, *plain("dog"), 421, *plain("x")]
    assert ours.decode(ours.encode("the<|end|>dog<think>x")) == "the dog<think> x"
    assert ours.decode(ours.encode("the<|end|>"), skip_special=False) == "<s> the<|end|>"
    assert ours.id_of("[PAD]") == 430 and ours.encode("[PAD]") == [1, 430]
    assert ours.size == original().get_piece_size() + 3
    assert ours.id_of("<|system|>") == 3 and ours.id_of("[INST]") is None  # a piece that was given a new meaning
    assert ours.encode("<|system|>[", add_special=False) == [3, *plain("[")]
    assert ours.decode([425, 431, 10**6, *plain("dog")]) == "dog"  # ids that only pad the model's vocabulary


def test_added_tokens_of_the_older_files(tmp_path: Path) -> None:
    ours = loaded(
        tmp_path,
        added_tokens={"<think>": 421, "[PAD]": 420},
        special_tokens_map={"pad_token": "[PAD]", "eos_token": {"content": "</s>"}, "sep_token": "[SEP]"},
    )
    assert ours.encode("the<think>[PAD][SEP]")[-3:] == [421, 420, 422]  # one without an id gets the next free one
    assert ours.decode([420, 421, 422]) == "<think>"
    newer = loaded(tmp_path, tokenizer_config={"added_tokens_decoder": {"450": {"content": "<new>"}}})
    assert newer.id_of("<new>") == 450 and newer.id_of("<think>") is None  # the newer file says it all


# the rest of a tokenizer's life


def test_streamed_pieces_join_to_the_decoded_text(kind: str, tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, kind)
    for text in pieces.texts(300, ("</s>", "[INST]"), seed=4):
        ids = tokenizer.encode(text)
        stream = tokenizer.stream()
        streamed = [stream.step(token) for token in ids]
        assert "".join(streamed) == tokenizer.decode(ids)
        assert REPLACEMENT in text or not any(REPLACEMENT in piece for piece in streamed)
    stream = tokenizer.stream(tokenizer.encode("the"))
    if kind == "llama":
        assert stream.step(tokenizer.encode("dog")[1]) == " dog"  # it continues the prompt


def test_any_ids_can_be_streamed(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path)
    rng = random.Random(5)
    for _ in range(300):
        ids = [rng.randrange(tokenizer.size + 5) for _ in range(rng.randint(1, 12))]
        stream = tokenizer.stream()
        streamed, whole = "".join(stream.step(token) for token in ids), tokenizer.decode(ids)
        assert streamed == whole or REPLACEMENT in whole


def test_agreement_with_itself_and_with_the_same_pieces_in_tokenizer_json(tmp_path: Path) -> None:
    ours = loaded(tmp_path / "a")
    assert ours.agrees_with(loaded(tmp_path / "b", tokenizer_config={"add_bos_token": False}))
    assert not ours.agrees_with(loaded(tmp_path / "c", "unigram"))
    assert not ours.agrees_with(loaded(tmp_path / "d", added_tokens={"<new>": 420}))
    hugging_faces(True).save_pretrained(tmp_path / "e")
    fast = Tokenizer.load(tmp_path / "e")
    assert not isinstance(fast.backend, type(ours.backend))
    assert ours.agrees_with(fast) and fast.agrees_with(ours)
    assert ours.encode("the fox</s>é🙂") == fast.encode("the fox</s>é🙂")


def test_a_checkpoint_with_nothing_else_decodes_and_chats(tmp_path: Path) -> None:
    for name, seed in (("target", 0), ("draft", 1)):
        checkpoint_files.write(tmp_path / name, seed, vocab_size=448)  # padded: not each id has a text
        pieces.write(tmp_path / name)
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    (tmp_path / "target" / "chat_template.jinja").write_text(template)
    engine = draftwood.load(tmp_path / "target", tmp_path / "draft")
    ids = original().encode("the quick fox")
    chat = [{"role": "user", "content": "the quick fox"}]
    for prompt, expected in (("the quick fox", [1, *ids]), (chat, [1, *ids, 2])):
        result = engine.generate(prompt, max_new_tokens=40, seed=1, ignore_eos=True)
        assert result.prompt_tokens == expected
        events = engine.stream(prompt, max_new_tokens=40, seed=1, ignore_eos=True)
        assert "".join(event.text for event in events) == result.text != ""


# what is refused


def test_the_missing_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(
        ConfigurationError, match=r"tokenizer\.model needs the sentencepiece package: install the extra"
    ):
        loaded(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"IQ== 0\nIg== 1\n", pieces.model("llama")[:500]], ids=["", "tiktoken", "cut"]
)
def test_a_file_that_is_no_sentencepiece_model_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer\.model is not a readable sentencepiece model") as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"x": {"content": "a"}}},
        {"added_tokens_decoder": {"7": 7}},
        {"added_tokens_decoder": [1]},
        {"bos_token": 1},
        {"bos_token": {"lstrip": True}},
    ],
    ids=json.dumps,
)
def test_a_malformed_configuration_is_one_sentence(config: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="token"):
        loaded(tmp_path, tokenizer_config=config)
