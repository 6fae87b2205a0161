"""Gemma 4's assistants draft what transformers' do, and change no text."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gguf_files
import pytest
import torch
from assistant_models import CLUSTERS, reads, says, write_assistant, write_pair
from every_method import shortage
from family_models import PROMPT, write
from family_variants import FULL
from native_library import needs_native
from safetensors.torch import load_file, save_file
from test_mtp import METHODS, said
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

from draftwood import ConfigurationError, Engine, ModelError, load
from draftwood.models.checkpoints import checkpoint
from draftwood.models.heads import assistant
from draftwood.models.heads.state_head import ABSENT_LOGIT
from draftwood.models.text.tokenizer import Tokenizer

__all__ = ["said"]
LETTERS = Tokenizer(Backend(BPE({"a": 0, "b": 1}, [])), "letters")
GREEDY: dict[str, Any] = {"sampling": {"temperature": 0}, "ignore_eos": True}


def check(model: Any, own: Any, said: list[Any]) -> None:
    """All that was said is what transformers' assistant says; tokens of other clusters are not drafted."""
    once = {(tuple(tokens), tuple(drafts)): logits for tokens, drafts, logits in said}
    read = {tokens: reads(model, tokens) for tokens, _ in once}
    for (tokens, drafts), logits in once.items():
        expected = says(model, own, tokens, drafts, read[tokens])
        known = logits > ABSENT_LOGIT
        if own.masked_embedding is not None:
            assert torch.equal(known, expected > expected.min())
        torch.testing.assert_close(logits[known], expected[known], atol=1e-4 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize(
    ("name", "backend", "changes"),
    [
        ("gemma4_per_layer", "auto", CLUSTERS),
        ("gemma4", "pytorch", {}),
        pytest.param("gemma4_per_layer", "pytorch", CLUSTERS, marks=pytest.mark.slow),
        pytest.param("gemma4", "auto", {}, marks=pytest.mark.slow),
        pytest.param("gemma4_experts", "auto", {}, marks=pytest.mark.slow),
    ],
)
def test_logits_are_transformers(
    name: str, backend: str, changes: dict[str, Any], tmp_path: Path, said: list[Any]
) -> None:
    """Behind verified tokens, drafts and rejected ones, in chains, trees and beams, beyond the window."""
    model, own = write_pair(tmp_path / "target", tmp_path / "own", name, **changes)
    target = checkpoint.load(tmp_path / "target", backend=backend)
    engine = Engine(target, [assistant.load(tmp_path / "own", target)])
    plain = engine.generate(PROMPT, "autoregressive", max_new_tokens=7, **GREEDY).tokens
    for method in ("chain", "tree", "beams"):
        said.clear()
        options = {} if method == "beams" else GREEDY
        made = engine.generate(PROMPT, METHODS[method], max_new_tokens=7, **options)
        assert made.metrics.drafted > 4 and len(said) > 8
        assert method == "beams" or made.tokens == plain
        assert max(len(drafts) for _, drafts, _ in said) >= 1 + (method == "chain")
        check(model, own, said)


def test_drafts_are_those_of_transformers_generate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[Any]
) -> None:
    """Until the first rejection: from then on transformers' assistant also reads keys of a rejected token."""
    model, own = write_pair(tmp_path / "target", tmp_path / "own", "gemma4_per_layer")
    theirs: list[list[int]] = []
    get = SinglePositionMultiTokenCandidateGenerator.get_candidates

    def heard(generator: Any, input_ids: Any, *args: Any, **options: Any) -> Any:
        made = get(generator, input_ids, *args, **options)
        theirs.append(made[0][0, input_ids.shape[1] :].tolist())
        return made

    monkeypatch.setattr(SinglePositionMultiTokenCandidateGenerator, "get_candidates", heard)
    own.generation_config.num_assistant_tokens = 3
    limits = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    prompt = torch.tensor([PROMPT])  # which has the token that transformers takes for padding
    model.generate(prompt, attention_mask=torch.ones_like(prompt), assistant_model=own, **limits)
    target = checkpoint.load(tmp_path / "target")
    engine = Engine(target, [assistant.load(tmp_path / "own", target)])
    method = {**METHODS["chain"], "gamma": 3}
    engine.generate(PROMPT, method, max_new_tokens=6, **GREEDY)
    first = [int(logits.argmax()) for tokens, _, logits in said if len(tokens) == len(PROMPT) + 1]
    assert len(first) == 3 and theirs[1] == first


@needs_native  # with PyTorch's kernels trees and beams are near plain decoding, see docs/exactness.md
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_text_is_plain_decodings(method: str, short: bool, tmp_path: Path) -> None:
    """In batches, and when requests are put back for want of memory."""
    write_pair(tmp_path / "target", tmp_path / "own", "gemma4_per_layer", **CLUSTERS)
    target = checkpoint.load(tmp_path / "target")
    engine = Engine(target, [assistant.load(tmp_path / "own", target)])
    plain = {"beams": {"name": "beam-search", "width": 2}, "sampled": {"name": "autoregressive", "verify": "coupled"}}
    options: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}
    if method != "beams":
        options["sampling"] = {"temperature": 0.9 if method == "sampled" else 0.0}
    requests = [{"prompt": PROMPT[: 3 + 3 * i], "seed": i} for i in range(3)]
    expected = engine.batch(requests, 2, method=plain.get(method, {"name": "autoregressive"}), **options)
    if short:
        with shortage(0.1, random.Random(3), engine):
            made = engine.batch(requests, 3, method=METHODS[method], **options)
        assert engine.scheduler.preempted
    else:
        made = engine.batch(requests, 2, method=METHODS[method], **options)
    assert [result.tokens for result in made] == [result.tokens for result in expected]
    assert sum(result.metrics.drafted for result in made) > 6


def test_it_reads_what_the_target_reads_again(tmp_path: Path, said: list[Any]) -> None:
    """Beams that were put back for want of memory, and prompts that others have read."""
    model, own = write_pair(tmp_path / "target", tmp_path / "own", "gemma4")
    target = checkpoint.load(tmp_path / "target")
    engine = Engine(target, [assistant.load(tmp_path / "own", target)])
    method = {"name": "dsbd", "drafter": "mtp", "draft_width": 3, "gamma": 2, "width": 2}
    requests = [{"prompt": PROMPT[: 9 + i], "seed": i} for i in range(2)]
    with shortage(0.3, random.Random(3), engine):
        engine.batch(requests, 2, method=method, max_new_tokens=6)
    assert engine.scheduler.preempted and len(said) > 20
    check(model, own, said)


def test_one_beside_the_target_is_found(tmp_path: Path) -> None:
    write_pair(tmp_path, tmp_path / "draft", "gemma4_per_layer")
    engine = load(tmp_path, tokenizer=LETTERS)
    assert engine.default_method.name == "mtp" and engine.default_method.lossless
    made = engine.generate(PROMPT, METHODS["chain"], max_new_tokens=8, **GREEDY)
    assert made.metrics.drafted > 4
    with pytest.raises(ConfigurationError, match=r"draft drafts for another model; give it as the draft"):
        load(tmp_path / "draft", tokenizer=LETTERS)
    lone = load(tmp_path, draft=[], tokenizer=LETTERS)
    with pytest.raises(ModelError, match="no assistant was given"):
        lone.generate(PROMPT, "mtp", max_new_tokens=2)


@pytest.mark.parametrize("bits", ["F32", "Q8_0"])
def test_gguf_files(bits: str, tmp_path: Path, said: list[Any]) -> None:
    """As llama.cpp's converter writes them: without clusters."""
    text = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "head_dim": 16, "global_head_dim": 24}
    model = write(tmp_path / "target", "gemma4_per_layer", head_dim=16, global_head_dim=24)
    own = write_assistant(tmp_path / "own", 32, text=text)
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    raw = {**config["text_config"], "model_type": "gemma4_text"}
    (tmp_path / "own" / "config.json").write_text(json.dumps(raw))
    stored = load_file(tmp_path / "own" / "model.safetensors")
    for name in ("pre_projection", "post_projection"):
        stored[f"nextn.{name}.weight"] = stored.pop(f"{name}.weight")
    save_file(
        {name: part for name, part in stored.items() if name != "lm_head.weight"},
        tmp_path / "own" / "model.safetensors",
    )
    more = {"embedding_length_out": 32, "nextn_predict_layers": 3}
    file = gguf_files.write(
        tmp_path / "own", tmp_path / "own.gguf", gguf_files.matrices(bits), arch="gemma4-assistant", **more
    )
    engine = load(tmp_path / "target", draft=file, tokenizer=LETTERS)
    engine.generate(PROMPT, METHODS["chain"], max_new_tokens=8, **GREEDY)
    assert len(said) > 4
    if bits == "F32":
        check(model, own, said)
    with pytest.raises(ConfigurationError, match=r"own.gguf drafts for another model"):
        load(file, tokenizer=LETTERS)


OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"width": 48}, {}, "made for a target 48 wide, but this one is 32 wide; give the assistant of this target"),
    ({"text": {"vocab_size": 90}}, {}, "knows 90 tokens, but this target 96; give the assistant of this target"),
    (
        {"text": {"head_dim": 8}},
        {},
        "2 heads of 8 components in layers with a window, but its target has 2 of 12",
    ),
    ({}, {"num_hidden_layers": 1, "layer_types": [FULL]}, "layers with a window, but its target has none"),
    ({"text": {"use_double_wide_mlp": True}}, {}, "use_double_wide_mlp"),
    ({"num_centroids": 7, **CLUSTERS}, {"edit": {"num_centroids": 7}}, "96 tokens in num_centroids=7"),
]


@pytest.mark.parametrize(("changes", "target", "sentence"), OTHERS, ids=[each[2][:24] for each in OTHERS])
def test_those_of_other_targets_are_refused(
    changes: dict[str, Any], target: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    edit = target.pop("edit", {}) if "edit" in target else {}
    write(tmp_path / "target", "gemma4", attention_k_eq_v=False, **target)
    wide = {"use_double_wide_mlp": True} if changes.get("text", {}).get("use_double_wide_mlp") else {}
    text = {key: value for key, value in changes.get("text", {}).items() if key not in wide}
    rest = {key: value for key, value in changes.items() if key not in ("width", "text", *edit)}
    write_assistant(tmp_path / "own", changes.get("width", 32), text=text, **rest)
    path = tmp_path / "own" / "config.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({**raw, **edit, "text_config": {**raw["text_config"], **wide}}))
    with pytest.raises(ModelError, match=sentence):
        load(tmp_path / "target", draft=tmp_path / "own", tokenizer=LETTERS)
