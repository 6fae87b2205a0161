"""Layers of multi-token prediction draft what transformers' do, and change no text."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import gguf_files
import pytest
import torch
from family_models import PROMPT, write
from mtp_layers import GLM, QWEN, says, write_with_mtp
from safetensors.torch import load_file, save_file

from draftwood import Engine, ModelError
from draftwood.core.forest import TRUNK, Forest
from draftwood.draft import HeadSource
from draftwood.methods.default import default_method
from draftwood.models.checkpoints import checkpoint
from draftwood.models.heads import mtp
from draftwood.runtime.session import Answer, Run

NAMES = ("qwen3_5", "qwen3_next", "glm4_moe")
METHODS: dict[str, dict[str, Any]] = {
    "chain": {"name": "mtp", "gamma": 4, "depth": "fixed"},
    "tree": {"name": "mtp", "width": 3, "gamma": 3, "nodes": 8, "least": 0.0},
    "sampled": {"name": "mtp", "gamma": 3, "verify": "coupled"},
    "beams": {"name": "speculative-beam-search", "drafter": "mtp", "width": 2, "draft_width": 4, "gamma": 2},
}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int], torch.Tensor]]:
    """(tokens up to the last verified one, drafts behind it, logits [V]) of all that a head was asked for."""
    heard: list[tuple[list[int], list[int], torch.Tensor]] = []
    answer = HeadSource.answer

    def asked(
        source: HeadSource, forest: Forest, nodes: Sequence[int], hidden: bool = False
    ) -> Generator[Run, Answer, Answer]:
        answered = yield from answer(source, forest, nodes, hidden)
        for node, logits in zip(nodes, answered.logits, strict=True):
            drafts: list[int] = []
            while node >= max(0, forest.fresh) and forest.parent[node] >= forest.fresh:
                drafts.insert(0, forest.token[node])
                node = forest.parent[node]
            heard.append((list(forest.trunk) if node < TRUNK else forest.sequence(node), drafts, logits))
        return answered

    monkeypatch.setattr(HeadSource, "answer", asked)
    return heard


@pytest.mark.some(2)
@pytest.mark.parametrize("backend", ["auto", "pytorch"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_transformers(name: str, backend: str, tmp_path: Path, said: list[Any]) -> None:
    """After verified tokens, after drafts, after rejected ones, in trees."""
    model, layer = write_with_mtp(tmp_path, name)
    target = checkpoint.load(tmp_path, backend=backend)
    engine = Engine(target)
    assert mtp.present(target.source)
    plain = engine.generate(PROMPT, "autoregressive", {"temperature": 0}, max_new_tokens=12, ignore_eos=True).tokens
    for method in ("chain", "tree"):
        said.clear()
        made = engine.generate(PROMPT, METHODS[method], {"temperature": 0}, max_new_tokens=12, ignore_eos=True)
        assert made.tokens == plain and made.metrics.drafted > 4 and len(said) > 8
        assert max(len(drafts) for _, drafts, _ in said) >= 2
        for trunk, drafts, logits in said:
            expected = says(model, layer, trunk, drafts)
            torch.testing.assert_close(logits, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


@pytest.mark.some(2)
@pytest.mark.parametrize("method", METHODS)
def test_text_is_plain_decodings(method: str, tmp_path: Path) -> None:
    write_with_mtp(tmp_path, "qwen3_5")
    engine = Engine(checkpoint.load(tmp_path, "float64"))
    plain = {"beams": {"name": "beam-search", "width": 2}, "sampled": {"name": "autoregressive", "verify": "coupled"}}
    sampling = {"temperature": 0.9 if method == "sampled" else 0.0 if method != "beams" else 1.0}
    requests = [{"prompt": PROMPT[: 3 + 3 * i], "seed": i} for i in range(3)]
    options: dict[str, Any] = {"max_new_tokens": 16, "ignore_eos": True}
    if method != "beams":
        options["sampling"] = sampling
    expected = engine.batch(requests, 2, method=plain.get(method, {"name": "autoregressive"}), **options)
    made = engine.batch(requests, 2, method=METHODS[method], **options)
    assert [result.tokens for result in made] == [result.tokens for result in expected]
    assert sum(result.metrics.drafted for result in made) > 6


def test_samples_of_one_call_read_their_prompt_once(tmp_path: Path) -> None:
    """The target and the layer that reads behind it: one of them computes it, the others take that over."""
    write_with_mtp(tmp_path, "glm4_moe", max_position_embeddings=1024)
    target = checkpoint.load(tmp_path)
    prompt = [1 + i * i % 59 for i in range(300)]
    requests = [{"prompt": prompt, "seed": seed} for seed in range(5)]
    options: dict[str, Any] = {"method": METHODS["chain"], "max_new_tokens": 6, "ignore_eos": True, "temperature": 0.9}
    apart = Engine(target, reuse_prefixes=False).batch(requests, 5, **options)
    made = Engine(target).batch(requests, 5, **options)
    assert [result.tokens for result in made] == [result.tokens for result in apart]
    for rows in ("target_rows", "draft_rows"):
        once, each = (sum(getattr(result.metrics, rows) for result in results) for results in (made, apart))
        assert len(prompt) <= once < 1.5 * len(prompt) < each / 3


def test_the_default_method_finds_it(tmp_path: Path) -> None:
    write_with_mtp(tmp_path / "with", "qwen3_5")
    write(tmp_path / "without", "qwen3_5")
    assert default_method(0, checkpoint.load(tmp_path / "with"))[0].name == "mtp"
    without = checkpoint.load(tmp_path / "without")
    assert default_method(0, without)[0].name == "lookup"
    engine = Engine(without)
    with pytest.raises(ModelError, match=r"without has no layer of multi-token prediction .*use another draft"):
        engine.generate(PROMPT, "mtp", max_new_tokens=2)


@pytest.mark.parametrize("name", NAMES)
def test_gguf_files(name: str, tmp_path: Path, said: list[Any]) -> None:
    """As llama.cpp's converter writes the layer, behind the last."""
    model, layer = write_with_mtp(tmp_path, name)
    stored = load_file(tmp_path / "model.safetensors")
    last = model.config.num_hidden_layers
    renamed = {"mtp.layers.0.": f"model.layers.{last}."}
    for part, theirs in {
        "eh_proj": "eh_proj",
        "enorm": "enorm",
        "hnorm": "hnorm",
        "post_norm": "shared_head_norm",
    }.items():
        old = QWEN[part] if name.startswith("qwen") else f"model.layers.{last}.{GLM[part]}"
        renamed[f"{old}."] = f"blk.{last}.nextn.{theirs}."
    for old, new in renamed.items():
        for key in [key for key in stored if key.startswith(old)]:
            stored[key.replace(old, new, 1)] = stored.pop(key)
    save_file(stored, tmp_path / "model.safetensors")
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", block_count=last + 1, nextn_predict_layers=1)
    target = checkpoint.load(file)
    assert mtp.present(target.source) and target.n_layers == last
    Engine(target).generate(PROMPT, METHODS["chain"], {"temperature": 0}, max_new_tokens=8, ignore_eos=True)
    assert len(said) > 4
    for trunk, drafts, logits in said:
        expected = says(model, layer, trunk, drafts)
        torch.testing.assert_close(logits, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("stacked", ["", "model", "mtp", "model and mtp"])
def test_experts_in_one_tensor_of_all_are_read(stacked: str, tmp_path: Path) -> None:
    """As published Qwen3.5 mixtures have them: in the layers, in the layer of multi-token prediction, or in both."""
    write_with_mtp(tmp_path, "qwen3_5_moe")
    wanted = mtp.find(checkpoint.load(tmp_path, dtype="float32", packed=False))
    prompt, tensors = [3, 1, 4, 1, 5], load_file(tmp_path / "model.safetensors")
    text = Engine(checkpoint.load(tmp_path, dtype="float32")).generate(prompt, "autoregressive", max_new_tokens=8)
    experts: dict[str, dict[str, list[torch.Tensor]]] = {}
    for name in sorted(tensors, key=lambda each: [int(n) for n in re.findall(r"\d+", each)]):
        match = re.fullmatch(r"(.*\.experts)\.\d+\.(gate|up|down)_proj\.weight", name)
        if match and name.partition(".")[0] in stacked.split(" and "):
            experts.setdefault(match[1], {}).setdefault(match[2], []).append(tensors.pop(name))
    assert len(experts) == {"": 0, "model": 4, "mtp": 1}.get(stacked, 5)
    for module, parts in experts.items():
        gate, up, down = (torch.stack(parts[part]) for part in ("gate", "up", "down"))
        tensors |= {f"{module}.gate_up_proj": torch.cat([gate, up], 1), f"{module}.down_proj": down}
    save_file(tensors, tmp_path / "model.safetensors")
    target = checkpoint.load(tmp_path, dtype="float32")
    assert Engine(target).generate(prompt, "autoregressive", max_new_tokens=8).tokens == text.tokens
    found_layer = mtp.find(checkpoint.load(tmp_path, dtype="float32", packed=False))
    for one, other in zip(found_layer.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(one, other)
