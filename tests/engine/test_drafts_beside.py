"""Drafts that are found next to a target's weights, and those that are left alone, with a sentence that says why."""

import json
import shutil
from pathlib import Path

import checkpoint_files
import eagle_heads
import gguf_files
import pytest
import tiny_models
import torch
from native_library import needs_native

import draftwood
from draftwood import ModelError
from draftwood.models.checkpoints import checkpoint
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.heads.pruned import PrunedDraft, save
from draftwood.models.text.tokenizer import Tokenizer


def test_a_draft_beside_the_weights_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = checkpoint.load(tiny_models.write(tmp_path, 1), "float32", "cpu", packed=False)
    draft = PrunedDraft.of(target, [1], torch.arange(100))
    save(draft.weights(), tmp_path / "draft", draft.target, draft.kept)
    engine = draftwood.load(tmp_path, device="cpu")
    assert isinstance(engine.drafts[0], PrunedDraft) and engine.default_method.name == "speculative"
    assert engine.names["draft"] == [str(tmp_path / "draft")]
    assert draftwood.load(tmp_path, [], device="cpu").drafts == []
    save(draft.weights(), tmp_path / "draft", "another", draft.kept)
    assert draftwood.load(tmp_path, device="cpu").drafts == []
    assert "is left alone: draft model" in caplog.text
    with pytest.raises(ModelError, match="was trained for another target"):
        draftwood.load(tmp_path, tmp_path / "draft", device="cpu")


def test_a_lone_gguf_file_beside_the_weights_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whole or in parts; of several models none, since nothing says which."""
    target, small, beside = tmp_path / "target", tmp_path / "small", tmp_path / "target" / "draft"
    tiny_models.write(target, 1)
    tiny_models.write(small, 2)
    beside.mkdir()
    words = gguf_files.byte_level(Tokenizer.load(target), "gpt-2")
    file = gguf_files.write(small, beside / "small.gguf", words=words)
    engine = draftwood.load(target, device="cpu")
    assert engine.names["draft"] == [str(file)] and engine.default_method.name == "speculative"
    assert engine.generate([1, 2, 3], {"name": "speculative", "gamma": 2}, max_new_tokens=4).metrics.drafted > 0
    gguf_files.write(small, beside / "parts.gguf", words=words, part_tensors=5)
    assert draftwood.load(target, device="cpu").drafts == []
    assert "is left alone: it holds 2 GGUF models; leave one, or name it as draft" in caplog.text
    file.unlink()
    engine = draftwood.load(target, device="cpu")
    assert len(engine.drafts) == 1 and "parts-00001-of-" in engine.names["draft"][0]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"speculators_model_type": "xpress"}, "type 'xpress', but of these only eagle3, peagle, dflash and dspark"),
        (
            {"model_type": "gemma4_unified_assistant"},
            "an assistant of type 'gemma4_unified_assistant', but of these only gemma4_assistant is read; use another",
        ),
    ],
)
def test_what_is_not_read_is_left_alone(
    config: dict[str, str], sentence: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside the weights the target is loaded without it; named, it is refused with the same sentence."""
    beside = tiny_models.write(tmp_path, 1) / "draft"
    beside.mkdir()
    (beside / "config.json").write_text(json.dumps(config))
    assert draftwood.load(tmp_path, device="cpu").drafts == []
    assert "draft is left alone: " in caplog.text and sentence in caplog.text
    with pytest.raises(ModelError, match=sentence) as caught:
        draftwood.load(tmp_path, beside, device="cpu")
    assert "\n" not in str(caught.value)


@needs_native
def test_a_draft_that_cannot_be_calibrated_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its model has fewer logits than its tokenizer has tokens, so it cannot read what it would go on from."""
    target = tiny_models.write(tmp_path, 1)
    checkpoint_files.write(target / "draft", vocab_size=40)
    shutil.copy(target / "tokenizer.json", target / "draft")
    assert draftwood.load(target, draft_quantize="int4").drafts == []
    assert "is left alone: the prompt has token id" in caplog.text


def test_published_heads_beside_the_weights_are_found(tmp_path: Path) -> None:
    """In the directory of their kind, in the format of their makers."""
    tiny_models.write(tmp_path, 1)
    layer = {**eagle_heads.LAYER, "hidden_size": 32, "vocab_size": 257}
    raw = eagle_heads.config(
        transformer_layer_config=layer, draft_vocab_size=257, eagle_aux_hidden_state_layer_ids=[1, 1, 1]
    )
    eagle_heads.write(tmp_path / "eagle", raw)
    engine = draftwood.load(tmp_path, device="cpu")
    assert engine.default_method.name == "eagle"
    options = {"max_new_tokens": 4, "ignore_eos": True}
    assert engine.generate([1, 2, 3], {"name": "eagle", "gamma": 2}, **options).metrics.drafted > 0
    shutil.rmtree(tmp_path / "eagle")
    assert draftwood.load(tmp_path, device="cpu").default_method.name == "lookup"


def test_a_fingerprint_reads_packed_embeddings_from_anywhere(tmp_path: Path) -> None:
    """Also while modules are made on the meta device, whose tensors have no memory that could be read."""
    model = checkpoint.load(tiny_models.write(tmp_path, 1), "float32", "cpu")
    if not model.native:
        pytest.skip("draftwood-native is not installed")
    plain = fingerprint(model)
    with torch.device("meta"):
        assert fingerprint(model) == plain
        with pytest.raises(ModelError, match="read by numbers on the CPU, not on meta"):
            model.head.rows(torch.arange(3))
