"""Text that int4 weights are calibrated with: a file's or the model's own; it is remembered and made once."""

from __future__ import annotations

import json
import logging
import re
import shutil
from itertools import chain, islice
from pathlib import Path

import pytest
import torch
from checkpoint_files import byte_level, llama_like, write
from native_library import needs_native

import draftwood
from draftwood.corpus import documents
from draftwood.engine import calibration
from draftwood.engine.calibration import Int4Calibration, own_rows, timed
from draftwood.engine.loading import EMBEDDED
from draftwood.models import int4
from draftwood.models.text.text_files import prompted_texts_of, texts_of
from draftwood.models.text.tokenizer import Tokenizer

WORDS = Tokenizer.load(EMBEDDED / "target")


def text(read: Int4Calibration, home: Path, embedded: bool = False) -> int4.CalibrationText:
    return read.text(home, "it", embedded, lambda step, share: None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A text of some thousand tokens."""
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(item.text for item in islice(documents("stories", "train"), 30)), "utf-8")
    return path


def test_files_hold_text_conversations_and_tokens(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    conversation = [{"role": "user", "content": "Hi"}]
    lines: list[object] = [{"text": "A fox"}, {"tokens": [5, 6]}, {"messages": conversation}]
    path.write_text("".join(json.dumps(line) + "\n\n" for line in lines), "utf-8")
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ '?' if add_generation_prompt }}"
    words = Tokenizer(WORDS.backend, "it", {"chat_template": template})
    expected = [words.encode("A fox"), [5, 6], words.encode("<user>Hi", add_special=False)]
    assert list(texts_of(path, words)) == expected
    assert Int4Calibration.read(path, words).tokens == tuple(chain(*expected))


def test_prompts_are_told_from_answers(tmp_path: Path) -> None:
    """By `prompt_tokens`, or by the answer that ends a conversation."""
    path = tmp_path / "mine.jsonl"
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "A fox"}]
    lines: list[object] = [{"tokens": [5, 6, 7], "prompt_tokens": 2}, {"messages": talk}, {"messages": talk[:1]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    words = Tokenizer(WORDS.backend, "it", {"chat_template": template + "{{ '<assistant>' if add_generation_prompt }}"})
    given, answered, asked = prompted_texts_of(path, words)
    assert (given, asked[1]) == (([5, 6, 7], 2), 0)
    assert words.decode(answered[0][: answered[1]]) == "<user>Hi<assistant>"
    assert words.decode(answered[0][answered[1] :]).strip() == "A fox"
    path.write_text('{"tokens": [5], "prompt_tokens": 2}', "utf-8")
    with pytest.raises(draftwood.ConfigurationError, match="prompt_tokens 2, but 1 tokens; give how many"):
        list(texts_of(path, words))


def test_tokens_beside_a_text_are_those_of_the_text(tmp_path: Path) -> None:
    """With special tokens, which may have text there or none, and whatever spaces are around it; or another model's."""
    path, tokens = tmp_path / "mine.jsonl", [*WORDS.encode("A fox"), 0]
    shown = WORDS.decode(tokens, skip_special=False)
    assert shown != WORDS.decode(tokens) == "A fox"
    for text in ("A fox", " A fox\n", shown):
        path.write_text(json.dumps({"tokens": tokens, "text": text}), "utf-8")
        assert list(texts_of(path, WORDS)) == [tokens]
    for others in ([*tokens[:-1], tokens[0]], [WORDS.size + 7], [-1]):
        path.write_text("\n" + json.dumps({"tokens": others, "text": "A fox"}), "utf-8")
        with pytest.raises(draftwood.ConfigurationError, match=r"mine.jsonl, line 2, has tokens that are not its text"):
            list(texts_of(path, WORDS))
        assert list(texts_of(path, None)) == [others]


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.txt", " \n", "holds no text; give a file of texts"),
        ("a.jsonl", '{"prompt": "x"}', "line 1, has neither text nor messages nor tokens; give one of them"),
        ("a.jsonl", "{", "line 1, is not JSON; give an object with text, messages or tokens"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": "x"}]}', "line 1, cannot be read: .*no chat template"),
        ("b.txt", None, "cannot be read .No such file or directory.; give a file of texts"),
    ],
)
def test_files_without_text_are_refused(name: str, content: str | None, error: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(draftwood.DraftwoodError, match=error) as refused:
        Int4Calibration.read(tmp_path / name, WORDS)
    assert "\n" not in str(refused.value)


def test_without_a_tokenizer_there_must_be_tokens(tmp_path: Path, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(draftwood.ModelError, match="it cannot write without a tokenizer; give tokenizer="):
        text(Int4Calibration.read(None, None), tmp_path)
    with pytest.raises(draftwood.ConfigurationError, match="the model has no tokenizer; give tokens, or tokenizer="):
        Int4Calibration.read(file, None)
    tokens = tmp_path / "tokens.jsonl"
    tokens.write_text(json.dumps({"tokens": list(range(90))}), "utf-8")
    rows = text(Int4Calibration.read(tokens, None), tmp_path).rows(40)
    assert rows is not None and rows.tolist() == [list(range(40)), list(range(40, 80))]
    assert [record.message for record in caplog.records if "90 tokens only" in record.message]


def test_tokens_of_another_model_are_refused(target: Path) -> None:
    read = int4.CalibrationText("text", lambda context: torch.tensor([[1, 257]]))
    with pytest.raises(draftwood.ModelError, match="outside of the model's vocabulary of 257; give text, or tokens of"):
        int4.cached(target, read)


def test_names_tell_texts_apart(file: Path, tmp_path: Path) -> None:
    name = text(Int4Calibration.read(file, WORDS), tmp_path).name
    shutil.copy(file, tmp_path / "copy.txt")
    assert text(Int4Calibration.read(tmp_path / "copy.txt", WORDS), tmp_path).name == name
    file.write_text("x" + file.read_text("utf-8"), "utf-8")
    own = Int4Calibration.read(None, WORDS)
    other_words = Int4Calibration.read(None, Tokenizer(byte_level(), "it", {}))  # as drafts were once calibrated with
    others = [
        text(Int4Calibration.read(file, WORDS), tmp_path),
        text(own, tmp_path),
        text(own, tmp_path, embedded=True),
        text(other_words, tmp_path),
    ]
    assert len({name, *(other.name for other in others)}) == 5
    assert text(Int4Calibration.read(None, Tokenizer.load(EMBEDDED / "target")), tmp_path).name == others[1].name


def test_a_model_writes_the_same_text_of_its_own_again(copy_of_target: Path) -> None:
    """Rows of different openings, full, of a random model whose texts would end; shorter where its context is."""
    words = Tokenizer.load(copy_of_target)
    shares: list[float] = []
    rows = own_rows(copy_of_target, words, shares.append, 60)
    assert rows.shape == (calibration.ROWS, 59) and sum(shares) == pytest.approx(1)
    assert torch.equal(own_rows(copy_of_target, words, lambda share: None, 60), rows)
    assert len({tuple(row) for row in rows.tolist()}) == calibration.ROWS
    assert words.decode(rows[0].tolist()[:3]) == "The"


def test_weights_are_made_again_for_another_text_only(
    copy_of_target: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = Tokenizer.load(copy_of_target)
    given, own = (text(Int4Calibration.read(each, words), copy_of_target) for each in (file, None))
    made = int4.cached(copy_of_target, given)
    with monkeypatch.context() as patch:
        patch.setattr(int4, "quantised", None)
        assert torch.equal(
            int4.cached(copy_of_target, given)["layers.0.mixer.qkv"].codes, made["layers.0.mixer.qkv"].codes
        )
    again = int4.cached(copy_of_target, own)
    assert any(not torch.equal(again.tensors[name], made.tensors[name]) for name in made.tensors)
    assert int4.load(copy_of_target / "int4" / "int4.safetensors", int4.fingerprint(copy_of_target), given.name) is None


def test_an_interrupted_calibration_leaves_nothing(copy_of_target: Path) -> None:
    def interrupted(share: float) -> None:
        if share:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        int4.cached(copy_of_target, int4.NO_TEXT, interrupted)
    assert not (copy_of_target / "int4").exists()
    assert int4.cached(copy_of_target, int4.NO_TEXT)


def test_the_time_is_told_after_the_first_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 5.0, 8.0])
    monkeypatch.setattr(calibration, "monotonic", lambda: next(now))
    told: list[tuple[str, float]] = []
    advance = timed("it", lambda step, share: told.append((step, share)))
    for share in (0, 0.02, 0.98):
        advance(share)
    step = "quantising it to int4, once"
    assert told == [(step, 0), (f"{step}: about 2 minutes", 0.02), (f"{step}: about 2 minutes", 0.98)]


def test_calibration_without_int4_is_refused(target: Path, file: Path) -> None:
    for quantize in (None, "int8"):
        with pytest.raises(draftwood.ConfigurationError, match="calibration is text for quantize int4; give that too"):
            draftwood.load(target, quantize=quantize, calibration=file)


@needs_native
def test_embedded_models_keep_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options reach the quantiser, from `load` and from the command line."""
    names: list[str] = []

    def noted(home: Path, text: int4.CalibrationText, advance: object) -> int4.Matrices:
        names.append(text.name)
        raise draftwood.ModelError("enough")

    monkeypatch.setattr(int4, "cached", noted)
    with pytest.raises(draftwood.ModelError, match="enough"):
        draftwood.load(quantize="int4")
    assert names == ["the embedded corpus"]


@needs_native
@pytest.mark.parametrize("kind", ["own", "text", "tokens"])
def test_a_draft_with_another_tokenizer_is_calibrated_in_its_own_tokens(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On text that it writes, or on that of a file, whose tokens are the target's."""
    for name, backend in (("target", llama_like()), ("draft", byte_level())):
        write(tmp_path / name, vocab_size=backend.get_vocab_size())
        backend.save(str(tmp_path / name / "tokenizer.json"))
    target, draft = (Tokenizer.load(tmp_path / name) for name in ("target", "draft"))
    content, file = "the tin is thin in " * 40, tmp_path / ("a.jsonl" if kind == "tokens" else "a.txt")
    file.write_text(json.dumps({"tokens": target.encode(content)}) if kind == "tokens" else content, "utf-8")
    rows: dict[str, list[list[int]]] = {}

    def noted(home: Path, text: int4.CalibrationText, advance: object) -> int4.Matrices:
        made = text.rows(100)
        assert made is not None
        rows[home.name] = made.tolist()
        return cached(home, int4.CalibrationText(text.name, lambda context: made))

    cached = int4.cached
    monkeypatch.setattr(int4, "cached", noted)
    options = {} if kind == "own" else {"calibration": file}
    engine = draftwood.load(tmp_path / "target", tmp_path / "draft", quantize="int4", **options)
    assert engine.drafts and rows.keys() == {"target", "draft"}
    for name, words in (("target", target), ("draft", draft)):
        expected = words.encode("The" if kind == "own" else content)[:60]
        assert expected in [row[: len(expected)] for row in rows[name]], name


@needs_native
def test_the_command_takes_a_file(command, copy_of_target: Path, file: Path, caplog: pytest.LogCaptureFixture) -> None:  # type: ignore[no-untyped-def]
    options = ("--target", copy_of_target, "--quantize", "int4", "--calibration", file, "--max-new-tokens", 2)
    with caplog.at_level(logging.INFO):
        shown = command("generate", "Once", *options)
    assert shown.code == 0 and "computed in int4 and" in shown.err
    whose = int4.fingerprint(copy_of_target)
    name = text(Int4Calibration.read(file, Tokenizer.load(copy_of_target)), copy_of_target).name
    assert int4.load(copy_of_target / "int4" / "int4.safetensors", whose, name)
    refused = command("generate", "Once", "--target", copy_of_target, "--calibration", file)
    assert refused.code == 2 and re.search("calibration is text for quantize int4", " ".join(refused.err.split()))


@needs_native
@pytest.mark.real
@pytest.mark.slow
def test_a_real_model_calibrates_itself(smollm2: Path, tmp_path: Path) -> None:
    """Perplexity of stories, which it did not write, is within 3% of the file's."""
    home = tmp_path / smollm2.name
    home.symlink_to(smollm2)
    steps: list[str] = []
    small = draftwood.load(home, quantize="int4", progress=lambda step, share: steps.append(step))
    assert any(re.search("quantising .* to int4, once: about ", step) for step in steps)
    exact, nats = draftwood.load(home), {}
    for engine in (exact, small):
        stories = islice(documents("stories", "held-out", seed=1), 8)
        scores = [value for item in stories for value in engine.score(item.text).logprobs if value is not None]
        nats[engine] = -sum(scores) / len(scores)
    assert abs(nats[small] - nats[exact]) < 0.03
