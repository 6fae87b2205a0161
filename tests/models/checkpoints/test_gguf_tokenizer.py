"""Tokenizers of GGUF files give the ids, texts and conversations of those that they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoint_files
import gguf_files
import pieces
import pytest
import sentencepiece
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers, processors

import draftwood
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ModelError
from draftwood.models.checkpoints import checkpoint
from draftwood.models.text.sentencepiece import SentencePiece
from draftwood.models.text.tokenizer import Tokenizer

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
CASED += r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
PATTERNS = {  # as published in tokenizer.json of the models that the names stand for
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,
    "qwen2": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,
    "tekken": CASED + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES,
}
CJK = r"[一-龥\u0800-一가-\ud7ff]+"
PIPELINES: dict[str, list[Any]] = {  # as published in tokenizer.json of the models that the names stand for
    "mpt": [pre_tokenizers.ByteLevel(False)],
    "command-r": [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)],
    "falcon": [
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ],
    "deepseek-coder": [
        *(pre_tokenizers.Split(Regex(each), "isolated") for each in (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK)),
        pre_tokenizers.Digits(True),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ],
    "deepseek-v3": [
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
        pre_tokenizers.Split(
            Regex(
                r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                r"| ?[\p{P}\p{S}]+[\r\n]*" + SPACES
            ),
            "isolated",
        ),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ],
    "gpt-4o": [
        pre_tokenizers.Split(
            Regex(
                CASED.replace("|", f"{CONTRACTIONS}?|")
                + CONTRACTIONS
                + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
                + SPACES
            ),
            "isolated",
        ),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ],
    "qwen35": [
        pre_tokenizers.Split(
            Regex(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES),
            "isolated",
        ),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ],
    "bloom": [
        pre_tokenizers.Split(Regex(r" ?[^(\s|[.,!?…。，、।۔،])]+"), "isolated"),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ],
}
COMPOSED = ("mpt", "command-r", "qwen35")
PARTS = ("'s", "'LL", "12", "12345", "!?\n", "Ab", "<|end|>", "DOG", "/")


def byte_level(name: str) -> tokenizers.Tokenizer:
    """A byte-level tokenizer that splits as the models do that a name stands for; merges that splits decide about."""
    base = checkpoint_files.byte_level()
    told = base.get_vocab(False)
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("Ã", "©"), ("1", "2"), ("12", "3"), ("Ċ", "Ċ")]
    merges += [("Ġ", "Ġ"), ("!", "?"), ("O", "G"), ("?", "Ċ"), ("'", "s"), ("'", "L")]
    for left, right in merges:
        told.setdefault(left + right, len(told))
    told["DOG"] = len(told)  # no merges make it
    pattern = PATTERNS[name]
    model = tokenizers.models.BPE(told, merges, ignore_merges=name in ("llama-bpe", "tekken"))
    made = tokenizers.Tokenizer(model)
    split: list[Any] = [pre_tokenizers.Digits(True)] if name == "smollm" else []
    split += [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    made.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.ByteLevel(False, use_regex=pattern is None)])
    if name == "qwen2":
        made.normalizer = normalizers.NFC()
    made.decoder = base.decoder
    made.add_special_tokens(["<|begin|>", "<|end|>"])
    made.add_tokens([tokenizers.AddedToken("<think>", normalized=False)])
    if name in ("llama-bpe", "tekken"):
        begin = [("<|begin|>", made.token_to_id("<|begin|>"))]
        made.post_processor = processors.TemplateProcessing("<|begin|> $A", "$A $B", special_tokens=begin)
    return made


@pytest.mark.parametrize("name", PATTERNS)
def test_byte_level_texts_are_split_as_the_models_do(name: str, tmp_path: Path) -> None:
    theirs = Tokenizer(byte_level(name), "")
    begin = theirs.id_of("<|begin|>")
    words = gguf_files.byte_level(theirs, name, theirs.size + 7, bos_token_id=begin)
    mine = Tokenizer.load(gguf_files.write_words(tmp_path / "x.gguf", words))
    for text in [*pieces.texts(1500, (*PARTS, "<think>")), "", "DOG", "12345", "the <|end|>  the"]:
        ids = theirs.encode(text)
        assert mine.encode(text) == ids
        assert mine.encode(text, add_special=False) == theirs.encode(text, add_special=False)
        for skip in (True, False):
            assert mine.decode(ids, skip) == theirs.decode(ids, skip)
    assert mine.agrees_with(theirs) and mine.size == theirs.size
    assert (mine.encode("")[:1] == [begin]) == (name in ("llama-bpe", "tekken"))


@pytest.mark.parametrize("name", PIPELINES)
def test_pieces_of_texts_are_those_of_published_tokenizers(name: str, tmp_path: Path) -> None:
    words = gguf_files.byte_level(Tokenizer(checkpoint_files.byte_level(), ""), name)
    mine = Tokenizer.load(gguf_files.write_words(tmp_path / "x.gguf", words)).backend
    theirs = pre_tokenizers.Sequence(PIPELINES[name])
    assert isinstance(mine, tokenizers.Tokenizer) and mine.pre_tokenizer is not None
    for text in pieces.texts(1000, (*PARTS, "don't", "the 1234", "カナ漢字", "한글", ".x", "Ünï", "\r\n", "،", "।")):
        got, expected = (each.pre_tokenize_str(text) for each in (mine.pre_tokenizer, theirs))
        assert [piece for piece, _ in got] == [piece for piece, _ in expected], text
    assert (mine.normalizer is not None) == (name in COMPOSED)


def test_a_file_that_does_not_say_how_it_splits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As llama.cpp takes older files."""
    words = small()
    del words["pre"]
    mine = Tokenizer.load(gguf_files.write_words(tmp_path / "x.gguf", words)).backend
    assert isinstance(mine, tokenizers.Tokenizer) and mine.pre_tokenizer is not None
    got = [piece for piece, _ in mine.pre_tokenizer.pre_tokenize_str("the 1234 tin's $<2")]
    assert got == ["the", "Ġ", "123", "4", "Ġtin", "'", "s", "Ġ", "$<", "2"]
    assert "does not say how text is split" in caplog.text


def test_merged_pieces_of_gemma_4(tmp_path: Path) -> None:
    """Merges of the file over characters, spaces too; bytes for what has no token; lines apart."""
    texts = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{i:02X}>" for i in range(256))]
    texts += ["\n", "\n\n", "▁", "▁▁", "t", "h", "th", "▁th", "é", "<|turn>"]
    types = [3, 3, 3, 2, *[6] * 256, *[1] * 9, 3]
    merges = ["\n \n", "▁ ▁", "t h", "▁ th"]
    words = {"model": "gemma4", "tokens": texts, "token_type": types, "merges": merges, "unknown_token_id": 3}
    file = gguf_files.write_words(tmp_path / "x.gguf", {**words, "bos_token_id": 2, "eos_token_id": 1}, "gemma3")
    mine = Tokenizer.load(file)
    first = texts.index("\n")
    for text, ids in (
        ("th th", [first + 6, first + 7]),
        ("  th", [first + 3, first + 6]),
        ("\n\n\n th", [first + 1, first, first + 7]),
        ("é<|turn>ß", [first + 8, first + 9, 4 + 0xC3, 4 + 0x9F]),
    ):
        assert mine.encode(text) == [2, *ids]
        assert mine.decode(ids, skip_special=False) == text


def test_the_embedded_tokenizer(tmp_path: Path) -> None:
    own = Tokenizer.load(EMBEDDED / "target")
    mine = Tokenizer.load(gguf_files.write_words(tmp_path / "x.gguf", gguf_files.byte_level(own, "smollm")))
    for text in ("Story: In Corfe there lived\n\nan otter, 12 years old!", "12+345 =  x\t<|eos|>é🙂", "  the\n\n"):
        assert mine.encode(text) == own.encode(text)
    assert mine.agrees_with(own)


def test_pieces_are_merged_as_sentencepiece_does(tmp_path: Path) -> None:
    model = sentencepiece.SentencePieceProcessor(model_proto=pieces.model("llama"))
    theirs = Tokenizer(SentencePiece(pieces.model("llama"), {}), "")
    words = gguf_files.pieces(model, 450)
    mine = Tokenizer.load(gguf_files.write_words(tmp_path / "x.gguf", words))
    for text in pieces.texts(1500, ("</s>", "[INST]", "the quick brown")):
        text = text.replace("▁", " ")
        ids = theirs.encode(text)
        assert mine.encode(text) == ids
        assert mine.decode(ids) == theirs.decode(ids)
    assert mine.agrees_with(theirs)
    bare = {"add_space_prefix": False, "add_bos_token": False, "add_eos_token": True}
    mine = Tokenizer.load(gguf_files.write_words(tmp_path / "y.gguf", words | bare))
    theirs = Tokenizer(SentencePiece(pieces.model("llama"), {**bare, "add_prefix_space": False}), "")
    for text in pieces.texts(300, seed=1):
        text = text.replace("▁", " ")
        assert mine.encode(text) == theirs.encode(text)
        assert mine.decode(mine.encode(text)) == text


def test_runs_of_spaces_merge_before_all_else(tmp_path: Path) -> None:
    """As in Gemma, whose runs llama.cpp's converter writes as text with the lowest scores."""
    texts = ["<unk>", "<s>", "  ", "   ", "    ", "▁", "a", "▁a", "▁aa", "aa"]
    scores = [0.0, 0.0, -1000.0, -1000.0, -1000.0, -9.0, -9.0, -1.0, -2.0, -3.0]
    words = {"model": "llama", "tokens": texts, "token_type": [2, 3, 4, 4, 4, 1, 1, 1, 1, 1], "scores": scores}
    words |= {"add_space_prefix": False, "add_bos_token": False, "unknown_token_id": 0}
    mine = Tokenizer.load(gguf_files.write_words(tmp_path / "x.gguf", words))
    for text, ids in (("  aa", [2, 9]), (" aa", [8]), ("a    a", [6, 4, 6]), ("     a", [4, 7]), ("aab", [9, 0])):
        assert mine.encode(text) == ids
    assert mine.decode([4, 9]) == "    aa"
    assert mine.id_of("▁▁") == 2


def test_white_space_behind_the_special_tokens_of_phi(tmp_path: Path) -> None:
    words = gguf_files.pieces(sentencepiece.SentencePieceProcessor(model_proto=pieces.model("llama")))
    stripped = {}
    for arch in ("llama", "phi3"):
        mine = Tokenizer.load(gguf_files.write_words(tmp_path / f"{arch}.gguf", words, arch))
        stripped[arch] = mine.encode("<|user|>\n the") == mine.encode("<|user|>the")
        assert mine.encode("<s> the") == [1, *mine.encode(" the")]
    assert stripped == {"llama": False, "phi3": True}


def small(**more: Any) -> dict[str, Any]:
    return gguf_files.byte_level(Tokenizer(checkpoint_files.byte_level(), ""), "gpt-2", **more)


def test_conversations(tmp_path: Path) -> None:
    end = Tokenizer(checkpoint_files.byte_level(), "").id_of("<|end|>")
    told = {
        "chat_template": "{{ messages[0].content }}{{ eos_token }}",
        "chat_template.tool_use": "{{ tools[0].name }}",
    }
    mine = Tokenizer.load(gguf_files.write_words(tmp_path / "x.gguf", small(eos_token_id=end, **told)))
    chat = [{"role": "user", "content": "the tin"}]
    assert mine.chat_text(chat) == "the tin<|end|>"
    assert mine.chat(chat) == [*mine.encode("the tin"), end]
    assert mine.chat_text(chat, tools=[{"name": "cut"}]) == "cut"


def test_end_tokens(tmp_path: Path) -> None:
    words = small(eos_token_id=3, eot_token_id=9)
    size = len(words["tokens"])
    words["tokens"] += ["<|im_end|>", "<|eot_id|>"]
    words["token_type"] += [3, 1]  # the second is ordinary text
    file = gguf_files.write_words(tmp_path / "x.gguf", words)
    assert checkpoint.end_tokens(file) == {3, 9, size, size - 1}  # <|end|> is the last of the others
    file = gguf_files.write_words(tmp_path / "y.gguf", small(eos_token_id=10**6))
    assert checkpoint.end_tokens(file) == {size - 1}


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"model": "bert"}, "a tokenizer of the kind 'bert' is not supported .* give the directory of the model's"),
    "split": (
        {"pre": "superbpe"},
        "splits text by 'superbpe', which is not known .* give the directory of the model's own",
    ),
    "merges": ({"merges": ["q w"]}, "holds a broken tokenizer .* fetch it again"),
    "no merge": ({"merges": ["qw"]}, "holds a broken tokenizer .* fetch it again"),
    "types": ({"token_type": [1]}, "holds no tokenizer, or a broken one; give the directory of the model's own"),
    "numbers": ({"tokens": [1, 2]}, "holds no tokenizer, or a broken one"),
    "scores": ({"model": "llama", "scores": [1.0]}, "has 1 scores for .* tokens; fetch it again"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_tokenizers_are_one_sentence(name: str, tmp_path: Path) -> None:
    change, sentence = BROKEN[name]
    file = gguf_files.write_words(tmp_path / "x.gguf", small() | change)
    with pytest.raises(ModelError, match=sentence) as caught:
        Tokenizer.load(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_another_tokenizer_takes_the_place_of_an_unknown_one(tmp_path: Path) -> None:
    checkpoint_files.write(tmp_path, vocab_size=300, num_hidden_layers=1)
    checkpoint_files.byte_level().save(str(tmp_path / "tokenizer.json"))
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", words=small(eos_token_id=3) | {"pre": "superbpe"})
    engine = draftwood.load(file, tokenizer=tmp_path, device="cpu")
    assert engine.end_tokens == {3, 261}
    assert engine.generate("the tin", max_new_tokens=3).prompt_tokens == Tokenizer.load(tmp_path).encode("the tin")
    draftwood.load(tmp_path, file, device="cpu")  # a draft never reads text
    other = gguf_files.write(tmp_path, tmp_path / "y.gguf", words=small() | {"tokens": small()["tokens"][::-1]})
    assert "shared_vocabulary" in draftwood.load(tmp_path, other, device="cpu").names


def test_tokens_of_spaces_are_found_first(tmp_path: Path) -> None:
    words = small()
    words["tokens"] += ["   "]
    words["token_type"] += [4]
    mine = Tokenizer.load(gguf_files.write_words(tmp_path / "x.gguf", words))
    assert mine.encode("a   b") == [*mine.encode("a"), len(words["tokens"]) - 1, *mine.encode("b")]
