"""Target and draft from checkpoints through the engine: padded vocabularies, contexts, tokenizers, dtypes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import byte_level, edit_json, llama_like, theirs, write

import draftwood
from draftwood.errors import ModelError, RequestError
from draftwood.models.text.tokenizer import Tokenizer

WORDS = llama_like().get_vocab_size()
PROMPT = "the thin tin in the"
METHODS: list[str | dict[str, Any]] = [
    {"name": "speculative", "gamma": 4},
    {"name": "mcsd", "tree": [3, 2, 1]},
    {"name": "specinfer", "expansion": [2, 2]},
]


def pair(directory: Path, target: int = WORDS, draft: int = WORDS, **draft_shape: Any) -> tuple[Path, Path]:
    """Directories of a target and of a draft that often agrees: the target with small noise on its weights."""
    paths = directory / "target", directory / "draft"
    model = write(paths[0], vocab_size=target)
    shape = {"vocab_size": target, **draft_shape}
    noisy = write(paths[1], **shape)
    for a, b in zip(noisy.parameters(), model.parameters(), strict=True):
        a.mul_(0.08).add_(b)
    if draft != target:
        noisy.resize_token_embeddings(draft, mean_resizing=False)
    noisy.save_pretrained(paths[1])
    for path in paths:
        llama_like().save(str(path / "tokenizer.json"))
    return paths


@pytest.mark.parametrize(
    ("target", "draft"), [(WORDS, WORDS), (WORDS + 40, WORDS), (WORDS, WORDS + 40), (WORDS + 7, WORDS + 64)]
)
def test_padded_vocabularies_of_any_size_decode_as_without_a_draft(target: int, draft: int, tmp_path: Path) -> None:
    engine = draftwood.load(*pair(tmp_path, target, draft), device="cpu")
    assert (engine.target.vocab_size, engine.drafts[0].vocab_size) == (target, draft)
    greedy = {"temperature": 0}
    options: dict[str, Any] = {"sampling": greedy, "max_new_tokens": 24, "ignore_eos": True}
    plain = engine.generate(PROMPT, "autoregressive", **options)
    accepted = 0
    for method in METHODS:
        result = engine.generate(PROMPT, method, **options)
        assert result.tokens == plain.tokens and result.text == plain.text
        accepted += sum(round_.accepted for round_ in result.rounds)
    assert accepted > 0
    for seed in range(2):
        for method in METHODS:
            sampled = engine.generate(PROMPT, method, max_new_tokens=24, seed=seed, ignore_eos=True)
            assert len(sampled.tokens) == 24 and all(0 <= token < target for token in sampled.tokens)


def test_plain_greedy_decoding_is_hugging_faces(tmp_path: Path) -> None:
    target, _ = pair(tmp_path)
    model = write(tmp_path / "again", vocab_size=WORDS)
    engine = draftwood.load(target, device="cpu")
    result = engine.generate(PROMPT, sampling={"temperature": 0}, max_new_tokens=20, ignore_eos=True)
    tokens = llama_like().encode(PROMPT).ids
    for token in result.tokens:
        assert int(theirs(model, tokens)[-1].argmax()) == token
        tokens.append(token)


def test_a_token_that_the_draft_lacks_is_no_obstacle(tmp_path: Path) -> None:
    """A prompt may hold an id of the target's padding; the draft has no embedding for it."""
    engine = draftwood.load(*pair(tmp_path, WORDS + 40, WORDS), device="cpu")
    prompt = [1, WORDS + 39, 5, WORDS, 9]
    options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 16, "ignore_eos": True}
    assert engine.generate(prompt, "speculative", **options).tokens == (
        engine.generate(prompt, "autoregressive", **options).tokens
    )


def test_a_draft_with_a_shorter_context_stops_drafting_there(tmp_path: Path) -> None:
    engine = draftwood.load(*pair(tmp_path, max_position_embeddings=24), device="cpu")
    options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 60, "ignore_eos": True}
    plain = engine.generate(PROMPT, "autoregressive", **options)
    for method in METHODS:
        result = engine.generate(PROMPT, method, **options)
        assert result.tokens == plain.tokens
        drafted = [round_.position for round_ in result.rounds if round_.drafted]
        assert drafted and max(drafted) < 24
    long = engine.generate(PROMPT * 4, "speculative", **options)  # longer than the draft's context from the start
    assert long.tokens == engine.generate(PROMPT * 4, "autoregressive", **options).tokens
    assert not any(round_.drafted for round_ in long.rounds)


def test_output_ends_where_the_targets_context_ends(tmp_path: Path) -> None:
    engine = draftwood.load(*pair(tmp_path), device="cpu")
    prompt = [5] * 120
    for method in ("autoregressive", "speculative"):
        result = engine.generate(prompt, method, max_new_tokens=50, ignore_eos=True)
        assert len(result.tokens) == 8 and result.finish_reason == "length"
    with pytest.raises(RequestError, match="the prompt has 128 tokens, but the target's context holds 128"):
        engine.generate([5] * 128)


def test_the_overlap_of_different_tokenizers_is_told(tmp_path: Path) -> None:
    target, draft = pair(tmp_path)
    byte_level().save(str(draft / "tokenizer.json"))
    (told,) = draftwood.load(target, draft, device="cpu").names["shared_vocabulary"]
    assert re.fullmatch(r"\d+ of the target's 280 tokens, \d+% of those in a sample text", told), told


def test_a_copy_of_the_targets_tokenizer_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large vocabularies take half a second each."""
    target, draft = pair(tmp_path)
    load, read = Tokenizer.load, []
    monkeypatch.setattr(Tokenizer, "load", lambda directory, *name: read.append(directory) or load(directory, *name))
    draftwood.load(target, draft)
    assert read == [target]
    (draft / "tokenizer.json").write_text((draft / "tokenizer.json").read_text() + " ")
    draftwood.load(target, draft)
    assert read[1:] == [target, draft]


def test_a_draft_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    target, draft = pair(tmp_path)
    (draft / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"draft has no tokenizer\.json"):
        draftwood.load(target, draft)


def test_the_checkpoints_end_tokens_end_the_text(tmp_path: Path) -> None:
    target, draft = pair(tmp_path)
    options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 24}
    tokens = draftwood.load(target, draft).generate(PROMPT, ignore_eos=True, **options).tokens
    end = tokens[5]
    edit_json(target / "generation_config.json", eos_token_id=[end])
    result = draftwood.load(target, draft).generate(PROMPT, "speculative", **options)
    assert result.finish_reason == "eos" and result.tokens == tokens[: tokens.index(end) + 1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "auto"])
def test_every_dtype_decodes(dtype: str, tmp_path: Path) -> None:
    target, draft = pair(tmp_path)
    edit_json(draft / "config.json", dtype="bfloat16")
    engine = draftwood.load(target, draft, dtype=dtype, device="cpu")
    result = engine.generate(PROMPT, {"name": "mcsd", "tree": [2, 2]}, max_new_tokens=16, ignore_eos=True)
    assert len(result.tokens) == 16
    if dtype == "float64":
        options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 24, "ignore_eos": True}
        plain = engine.generate(PROMPT, "autoregressive", **options)
        assert engine.generate(PROMPT, "speculative", **options).tokens == plain.tokens
