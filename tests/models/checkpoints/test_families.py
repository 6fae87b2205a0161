"""Each family computes what Hugging Face computes: prompts, trees, chunks after commits, batches, layer ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import llama_like, ours
from family_models import ALL, FIRST, PROMPT, USUAL, chain, close, grow, mostly_slow, per_path, theirs, write
from family_variants import VARIANTS

import draftwood
from draftwood.core.forest import Forest, Verdict, advance
from draftwood.models.checkpoints import checkpoint
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session


@pytest.mark.some(24)
@pytest.mark.parametrize("name", VARIANTS)
def test_prompts_trees_and_later_chunks_equal_hugging_faces(name: str, tmp_path: Path) -> None:
    """The cache starts small and grows, and each round reuses the slots of dead branches."""
    model = write(tmp_path, name)
    decoder = checkpoint.load(tmp_path)
    close(ours(decoder, chain(PROMPT)), theirs(model, PROMPT))
    session = Session(decoder, decoder.new_cache())
    forest = Forest.from_prompt(list(PROMPT))
    for token in (50, 51, 52):
        leaf = grow(forest)
        close(ours(decoder, forest, session), per_path(model, forest))
        trunk, kept, grown = advance(forest, Verdict([leaf], [token], [], {}))
        session.commit(trunk, kept, grown)
        forest = grown


@pytest.mark.some(8)
@pytest.mark.parametrize("name", [name for name, (_, settings) in VARIANTS.items() if settings.get("sliding_window")])
def test_windows_without_a_mask_from_outside(name: str, tmp_path: Path) -> None:
    """Plain decoding: one cell that sees all slots, which only the window hides."""
    model = write(tmp_path, name)
    decoder = checkpoint.load(tmp_path)
    session = Session(decoder, decoder.new_cache())
    forest = Forest.from_prompt(PROMPT[:3])
    for token in (50, 51, 52, 53, 54, 55):
        torch.testing.assert_close(ours(decoder, forest, session), per_path(model, forest), atol=1e-4, rtol=0)
        trunk, kept, grown = advance(forest, Verdict([0], [token], [], {}))
        session.commit(trunk, kept, grown)
        forest = grown


@pytest.mark.parametrize("name", ["mistral", "qwen2_windows", "gemma2", "gemma3", "gemma4_per_layer", "gpt2"])
def test_requests_of_different_lengths_in_one_forward(name: str, tmp_path: Path) -> None:
    model = write(tmp_path, name)
    decoder = checkpoint.load(tmp_path)
    cache = decoder.new_cache(32)
    forests = [Forest.from_prompt(PROMPT[:n]) for n in (12, 3, 7)]
    sessions = [Session(decoder, cache) for _ in forests]
    with torch.inference_mode():
        execute([Run(session, Forest.from_prompt([9]), [0]) for session in sessions])
    for session in (sessions[1], sessions[0]):
        session.close()  # leaves a gap; what was there must not show
    for forest in forests[::2]:
        grow(forest)
    runs = [Run(s, f, range(len(f))) for s, f in zip(sessions, forests, strict=True)]
    with torch.inference_mode():
        for answer, forest in zip(execute(runs), forests, strict=True):
            torch.testing.assert_close(answer.logits, per_path(model, forest), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["mistral", "gemma3", "gemma4_per_layer", "opt"])
def test_layer_ranges_continue_where_they_stopped(name: str, tmp_path: Path) -> None:
    model = write(tmp_path, name)
    decoder = checkpoint.load(tmp_path)
    session = Session(decoder, decoder.new_cache(32))
    forest = Forest.from_prompt(list(PROMPT))
    leaf = grow(forest)
    with torch.inference_mode():
        for upto in (1, 2):
            assert execute([Run(session, forest, [leaf], upto)])[0].hidden[upto].shape == (1, 32)
    close(ours(decoder, forest, session), per_path(model, forest))


@pytest.mark.parametrize("name", mostly_slow(VARIANTS))
def test_training_forward_equals_the_cached_one(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    decoder = checkpoint.load(tmp_path)
    logits = decoder.train_forward(torch.tensor([PROMPT, PROMPT[::-1]]))
    for row, tokens in zip(logits, [PROMPT, PROMPT[::-1]], strict=True):
        torch.testing.assert_close(row, ours(decoder, chain(tokens)), atol=1e-4, rtol=0)


@pytest.mark.some(6)
@pytest.mark.parametrize("kind", mostly_slow(FIRST, [ALL[name][0] for name in USUAL]))
def test_greedy_speculation_equals_plain_decoding(kind: str, tmp_path: Path) -> None:
    words = llama_like().get_vocab_size()
    model = write(tmp_path / "target", FIRST[kind], vocab_size=words)
    noisy = write(tmp_path / "draft", FIRST[kind], seed=1, vocab_size=words)
    for a, b in zip(noisy.parameters(), model.parameters(), strict=True):
        a.mul_(0.05).add_(b)
    noisy.save_pretrained(tmp_path / "draft")
    for role in ("target", "draft"):
        llama_like().save(str(tmp_path / role / "tokenizer.json"))
    engine = draftwood.load(tmp_path / "target", tmp_path / "draft", device="cpu")
    options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 16, "ignore_eos": True}
    plain = engine.generate(PROMPT, "autoregressive", **options).tokens
    assert plain[0] == int(theirs(model, PROMPT)[-1].argmax())
    assert plain[-1] == int(theirs(model, PROMPT + plain[:-1])[-1].argmax())
    accepted = 0
    for method in ("speculative", {"name": "mcsd", "tree": [2, 2]}):
        result = engine.generate(PROMPT, method, **options)
        assert result.tokens == plain
        accepted += sum(round_.accepted for round_ in result.rounds)
    assert accepted > 0


@pytest.mark.parametrize("name", mostly_slow(VARIANTS))
def test_bfloat16_is_near_float32(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    exact = ours(checkpoint.load(tmp_path), chain(PROMPT))
    decoder = checkpoint.load(tmp_path, "bfloat16")
    rounded = ours(decoder, chain(PROMPT))
    assert {parameter.dtype for parameter in decoder.parameters()} == {
        torch.bfloat16
    } and rounded.dtype == torch.float32
    error = (rounded - exact).abs().mean() / exact.std()
    assert 1e-5 < error < 0.05
