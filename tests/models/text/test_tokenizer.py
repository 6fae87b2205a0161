"""Text to ids and back exactly as Hugging Face does it; streaming; which tokenizers belong together."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from checkpoint_files import byte_level, llama_like
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ModelError, RequestError
from draftwood.models.text.tokenizer import REPLACEMENT, Tokenizer

KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {"byte_level": byte_level, "llama_like": llama_like}
TEXTS = [
    "the thin tin",
    " the  tin ",
    "Zwei Bäume, café\n\n\ttea",
    "東京 🙂🙃 ok",
    "the</s> end<|end|>in",
    "<s>the",
    "\x00\u200d\ufffd",
    "",
]


def saved(kind: str, directory: Path) -> Tokenizer:
    KINDS[kind]().save(str(directory / "tokenizer.json"))
    return Tokenizer.load(directory)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_equal_hugging_faces(kind: str, tmp_path: Path) -> None:
    fast = PreTrainedTokenizerFast(tokenizer_object=KINDS[kind](), clean_up_tokenization_spaces=False)
    fast.save_pretrained(tmp_path)
    ours, auto = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = auto(text).input_ids
        assert ours.encode(text) == ids == fast(text).input_ids
        assert ours.decode(ids) == auto.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special=False) == auto.decode(ids, skip_special_tokens=False)
    assert ours.size == len(auto)


def test_the_beginning_token_comes_from_the_post_processor(tmp_path: Path) -> None:
    llama = saved("llama_like", tmp_path)
    assert llama.encode("the")[0] == llama.id_of("<s>") == 1
    assert llama.encode("") == [1]
    assert llama.decode(llama.encode("the tin")) == "the tin"
    assert llama.id_of("no such token") is None


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    """A tokenizer saved after training carries the limits of its batches; prompts must not be cut by them."""
    backend = llama_like()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).encode("the tin " * 9) == llama_like().encode("the tin " * 9).ids


# streaming


@pytest.mark.parametrize("kind", KINDS)
def test_streamed_pieces_join_to_the_decoded_text(kind: str, tmp_path: Path) -> None:
    tokenizer = saved(kind, tmp_path)
    rng = random.Random(0)
    special = tokenizer.id_of("<|end|>" if kind == "byte_level" else "</s>")
    assert special is not None
    for _ in range(400):
        text = "".join(
            rng.choice(["the", "in", "é", "日本", "🙂", " ", "  ", "\n", "q"]) for _ in range(rng.randint(1, 9))
        )
        ids = tokenizer.encode(text)
        if rng.random() < 0.3:
            ids.insert(rng.randrange(len(ids) + 1), special)
        stream = tokenizer.stream()
        pieces = [stream.step(token) for token in ids]
        assert "".join(pieces) == tokenizer.decode(ids)
        assert not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_a_character_appears_once_it_is_whole(kind: str, tmp_path: Path) -> None:
    tokenizer = saved(kind, tmp_path)
    stream = tokenizer.stream()
    ids = tokenizer.encode("日🙂q")
    pieces = [stream.step(token) for token in ids]
    assert [piece for piece in pieces if piece] == ["日", "🙂", "q"]
    assert pieces[-1] == "q" and pieces[-6] == "日"


@pytest.mark.parametrize("kind", KINDS)
def test_any_ids_can_be_streamed(kind: str, tmp_path: Path) -> None:
    """Sampled ids need not be text: broken characters, ids that pad the model's vocabulary, special tokens."""
    tokenizer = saved(kind, tmp_path)
    rng = random.Random(1)
    for _ in range(400):
        ids = [rng.randrange(tokenizer.size + 5) for _ in range(rng.randint(1, 12))]
        stream = tokenizer.stream()
        streamed, whole = "".join(stream.step(token) for token in ids), tokenizer.decode(ids)
        if kind == "byte_level":  # what is held back at the end is an unfinished character
            assert whole.startswith(streamed) and not whole[len(streamed) :].strip(REPLACEMENT)
        else:  # byte fallback decodes a run of bytes as one, so a later byte can spoil the characters before it
            assert (streamed == whole) or REPLACEMENT in whole
            runless = [token for token in ids if not 3 <= token < 3 + 256]
            stream = tokenizer.stream()
            assert "".join(stream.step(token) for token in runless) == tokenizer.decode(runless)


def test_bytes_that_never_become_text_are_let_go(tmp_path: Path) -> None:
    tokenizer = saved("byte_level", tmp_path)
    broken = tokenizer.encode("é")[0] if len(tokenizer.encode("é")) > 1 else tokenizer.encode("日")[0]
    stream = tokenizer.stream()
    pieces = [stream.step(broken) for _ in range(200)]
    assert REPLACEMENT in "".join(pieces)
    assert len(stream._window) < 200


# which tokenizers belong together


def test_equal_tokenizers_agree(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    assert saved("llama_like", tmp_path).agrees_with(saved("llama_like", tmp_path / "b"))


def test_different_tokenizers_do_not_agree(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    a, b = saved("llama_like", tmp_path), saved("byte_level", tmp_path / "b")
    assert not a.agrees_with(b) and not b.agrees_with(a)


def test_an_added_token_or_two_swapped_ids_are_a_difference() -> None:
    a, added = Tokenizer(llama_like(), "a"), Tokenizer(llama_like(), "b")
    added.backend.add_tokens(["<|new|>"])
    assert not a.agrees_with(added)
    content = json.loads(llama_like().to_str())
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    swapped = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)), "c")
    assert swapped.size == a.size and not a.agrees_with(swapped)


def test_other_merges_agree_since_each_id_means_the_same_text() -> None:
    """Drafts never read text, so it is enough that ids have one meaning."""
    content = json.loads(llama_like().to_str())
    content["model"]["merges"] = content["model"]["merges"][1:]
    fewer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)), "b")
    a = Tokenizer(llama_like(), "a")
    assert a.encode("the") != fewer.encode("the")
    assert a.decode(fewer.encode("the")) == "the"
    assert a.agrees_with(fewer)


# errors


def test_a_missing_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json and no tokenizer\.model; save the tokenizer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"version": "1.0", "model": {"type": "Nonsense"}}'])
def test_a_damaged_tokenizer_is_one_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a readable tokenizer file") as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_damaged_tokenizer_config_is_one_sentence(content: str, tmp_path: Path) -> None:
    saved("llama_like", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer_config\.json "):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    assert Tokenizer.load(tmp_path).config == {"chat_template": "x"}


def test_streamed_text_continues_the_prompt() -> None:
    """A decoder that strips the space before the first word must not strip it in the middle of a text."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"▁once": 0, "▁upon": 1, "▁a": 2}, unk_token="▁a"))
    backend.decoder = tokenizers.decoders.Metaspace()
    words = Tokenizer(backend, "test")
    alone, after = words.stream(), words.stream([0])
    assert "".join(alone.step(token) for token in (1, 2)) == "upon a"
    assert "".join(after.step(token) for token in (1, 2)) == " upon a"


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.load(EMBEDDED / "target")
    text = "a " * 200
    assert tokenizer.encode(text, max_tokens=512) == tokenizer.encode(text)
    longest = max(tokenizer.backend.get_vocab(True), key=len)
    assert tokenizer.longest == len(longest)
    monkeypatch.setattr(tokenizer, "backend", None)  # not asked
    monkeypatch.setattr(tokenizer, "chat_text", lambda messages: "x" * 10**7)
    hi = {"role": "user", "content": "hi"}
    for ids in (lambda: tokenizer.encode("x" * 10**7, max_tokens=512), lambda: tokenizer.chat([hi], max_tokens=512)):
        with pytest.raises(RequestError, match=r"the prompt has 10,000,000 characters, more than 512 tokens"):
            ids()
    monkeypatch.setattr(tokenizer, "chat_text", None)  # nor is the template, where the messages alone are too long
    for messages, told in (([{**hi, "content": "x" * 10**7}], "10,000,000 characters"), ([hi] * 513, "513 messages")):
        with pytest.raises(RequestError, match=told):
            tokenizer.chat(messages, max_tokens=512)
