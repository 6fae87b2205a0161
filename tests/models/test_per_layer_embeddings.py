"""Models with per-layer embeddings, whose last layers read the keys and values of others (Gemma 4 E2B and E4B)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pytest
import torch
from checkpoint_files import llama_like, ours
from family_models import PROMPT, chain, close, theirs, write
from safetensors.torch import load_file, save_file

import draftwood
from draftwood import Engine
from draftwood.errors import ConfigurationError, ModelError
from draftwood.models import int4
from draftwood.models.checkpoints import checkpoint
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.compiled import Compiled
from draftwood.models.heads import exit as exits
from draftwood.models.heads.eagle_head import EagleHead
from draftwood.models.heads.pruned import PrunedDraft
from draftwood.models.heads.skip import Skipped, SkippedDecoder, lenders, skipping
from draftwood.models.partition import check
from tests.helpers.native_library import needs_native

NAME = "gemma4_per_layer"  # six layers, the last two of which read the keys of layers 2 and 3


@pytest.mark.some(1)
@pytest.mark.parametrize("backend", [pytest.param("native", marks=needs_native), "pytorch"])
def test_greedy_texts_are_those_of_transformers(backend: str, tmp_path: Path) -> None:
    model = write(tmp_path, NAME)
    close(ours(checkpoint.load(tmp_path, backend=backend), chain(PROMPT)), theirs(model, PROMPT))
    seen = torch.ones(1, len(PROMPT), dtype=torch.int64)  # the prompt has the token that pads
    options: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
    expected = model.generate(torch.tensor([PROMPT]), attention_mask=seen, **options)[0, len(PROMPT) :]
    llama_like().save(str(tmp_path / "tokenizer.json"))
    plain = checkpoint.load(tmp_path, packed=False)
    exits.save(exits.ExitLayer.of(plain, 2).weights(), tmp_path / "exit", fingerprint(plain), 2, torch.float32)
    engine = draftwood.load(tmp_path, device="cpu", backend=backend)
    how: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 40, "ignore_eos": True}
    for method in ("autoregressive", "lookup", "eesd", {"name": "self-spec", "attention": [1], "mlp": [1, 4]}):
        assert engine.generate(PROMPT, method, **how).tokens == expected.tolist()


def test_tensors_that_borrowing_layers_do_not_need_are_not_read(tmp_path: Path) -> None:
    """Published checkpoints hold them."""
    write(tmp_path, NAME)
    before = ours(checkpoint.load(tmp_path), chain(PROMPT))
    tensors = load_file(tmp_path / "model.safetensors")
    for part in ("k_proj", "v_proj", "k_norm"):
        tensors[f"model.layers.4.self_attn.{part}.weight"] = tensors[f"model.layers.2.self_attn.{part}.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert torch.equal(ours(checkpoint.load(tmp_path), chain(PROMPT)), before)
    tensors["model.layers.3.self_attn.x_proj.weight"] = tensors["model.layers.3.self_attn.k_proj.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"does not ask for tensor .*x_proj"):
        checkpoint.load(tmp_path)


@needs_native
def test_files_in_their_own_bits(tmp_path: Path) -> None:
    """The table of all layers too; tensors that nobody needs may be there."""
    write(tmp_path, NAME, hidden_size_per_layer_input=32, intermediate_size=64, head_dim=8, global_head_dim=16)
    spare = {f"blk.4.attn_{part}.weight": np.zeros((16, 32), np.float32) for part in "kv"}
    file = gguf_files.write(tmp_path, tmp_path / "x.gguf", gguf_files.matrices("Q8_0"), more=spare)
    own = checkpoint.load(file, "auto")
    table: Any = own.per_layer_embeddings
    assert own.by_program and table.table.matrix.kind == "q8_0"
    exact = ours(checkpoint.load(file, "float32", backend="pytorch"), chain(PROMPT))
    assert (ours(own, chain(PROMPT)) - exact).abs().mean() < 0.05 * exact.std()


@needs_native
def test_four_bits_are_calibrated_with_what_layers_read(tmp_path: Path) -> None:
    model = write(tmp_path, NAME)
    matrices = int4.quantised(checkpoint.load(tmp_path, packed=False), torch.tensor([PROMPT, PROMPT[::-1]]))
    decoder = checkpoint.load(tmp_path, quantize="int4", grouped=matrices)
    exact = theirs(model, PROMPT)
    assert (ours(decoder, chain(PROMPT)) - exact).std() < 0.6 * exact.std()
    assert "layers.5.per_layer_input.gate" in matrices


def test_heads_are_made_of_layers_with_keys_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, NAME)
    target = checkpoint.load(tmp_path, packed=False)
    layer = exits.ExitLayer.of(target, 2)
    source = target.layers[3]
    assert torch.equal(layer.decoder.layers[0].mixer.qkv.weight, source.mixer.qkv.weight)  # type: ignore[union-attr]
    assert torch.equal(layer.decoder.layers[0].feed.scalar, source.per_layer_input.scalar)  # type: ignore[union-attr]
    exits.save(layer.weights(), tmp_path / "exit", fingerprint(target), 2, torch.float32)
    assert exits.load(tmp_path / "exit", target).train_forward(torch.zeros(1, 3, 32)).isfinite().all()
    with pytest.raises(ModelError, match="an exit of 5 layers cannot begin as the last of 4"):
        exits.ExitLayer.of(target, 2, 5)
    assert EagleHead.of(target).n_layers == 2


@pytest.mark.parametrize(("shared", "sentence"), [(2, "read each other's keys"), (0, "have a table of tokens")])
def test_what_cannot_be_cut_to_a_draft_is_refused(shared: int, sentence: str, tmp_path: Path) -> None:
    write(tmp_path, NAME, num_kv_shared_layers=shared)
    target = checkpoint.load(tmp_path, packed=False)
    with pytest.raises(ModelError, match=f"{sentence}.*; use `draftwood train eagle`"):
        PrunedDraft.of(target, [0], torch.arange(9))
    assert EagleHead.of(target)


def test_lent_keys_are_never_skipped(tmp_path: Path) -> None:
    write(tmp_path, NAME)
    target = checkpoint.load(tmp_path)
    assert lenders(target) == {2, 3}
    assert skipping(target, None).skipped == Skipped((1,), (1, 3))
    with pytest.raises(ConfigurationError, match="attention of layer 3 cannot be skipped: later layers read its keys"):
        SkippedDecoder(target, Skipped((1, 3), ()))


def test_they_are_not_split_among_processes(tmp_path: Path) -> None:
    write(tmp_path, NAME)
    with pytest.raises(ModelError, match="has layers that read the keys of others, which processes cannot share out"):
        check(checkpoint.load(tmp_path).config, 2, tmp_path)


def test_rows_of_several_vectors_are_not_read_by_others(tmp_path: Path) -> None:
    """Gemma 3n runs from part to part, by the native matrices where they are there."""
    model = write(tmp_path, "gemma3n")
    target = checkpoint.load(tmp_path)
    assert not target.by_program
    plain, engine = checkpoint.load(tmp_path, packed=False), Engine(target)
    makers: list[Callable[[], object]] = [lambda: exits.ExitLayer.of(target, 2), lambda: EagleHead.of(plain)]
    makers += [lambda: PrunedDraft.of(plain, [0], torch.arange(9))]
    makers += [partial(engine.generate, [1, 2], name) for name in ("eesd", "eagle", "dflash", "self-spec")]
    for make in makers:
        with pytest.raises(
            ModelError, match=r"rows are several vectors .* use lookup, Medusa or another model as the draft"
        ):
            make()
    with pytest.raises(ConfigurationError, match="leave compile out"):
        Compiled(target)
    with pytest.raises(ModelError, match="cannot be a draft model of itself"):
        skipping(target, None)
    unknown = [3, 95, 91, 7]  # the table of per-layer embeddings has 90 tokens, the others get those of token 0
    close(ours(target, chain(unknown)), theirs(model, unknown))
