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
from mtp_layers import write_with_mtp
from native_library import needs_native

import draftwood
from draftwood import ConfigurationError, ModelError
from draftwood.cli.groups import ModelOptions
from draftwood.depth import Auto
from draftwood.depth.acceptance import PRIOR_RATE
from draftwood.models.checkpoints import checkpoint
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.heads import eagle, medusa
from draftwood.models.heads.eagle_head import EagleHead
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


def test_a_targets_own_layer_comes_before_a_draft_beside_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Which of them drafts is said; a name takes the other."""
    write_with_mtp(tmp_path, "qwen3_5", vocab_size=257)
    beside = tiny_models.write(tmp_path / "draft", 1)
    shutil.copy(beside / "tokenizer.json", tmp_path)
    engine = draftwood.load(tmp_path, device="cpu")
    assert engine.drafts == [] and engine.default_method.name == "mtp"
    assert f"{beside} is left alone: the target's own layer of multi-token prediction drafts; name it" in caplog.text
    assert ModelOptions(target=str(tmp_path)).drafts == 0
    assert ModelOptions(target=str(tmp_path), tensor_parallel=2).drafts == 1  # processes have no such layer
    caplog.clear()
    named = draftwood.load(tmp_path, beside, device="cpu")
    assert len(named.drafts) == 1 and named.default_method.name == "speculative" and not caplog.text


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target, and what was trained for it: by kind its directory."""
    place = tmp_path_factory.mktemp("heads")
    target = checkpoint.load(tiny_models.write(place / "target", 1), "float32", "cpu", packed=False)
    head, several, draft = (
        EagleHead.of(target),
        medusa.Heads.of(target, 2),
        PrunedDraft.of(target, [1], torch.arange(9)),
    )
    eagle.save(head.weights(), place / "eagle", head.target, head.reads, trained={"acceptance": 0.25})
    medusa.save(several.weights(), place / "medusa", several.target)
    save(draft.weights(), place / "draft", draft.target, draft.kept)
    return {each.name: each for each in place.iterdir()}


@pytest.mark.parametrize("option", [{"draft_dtype": "float64"}, {"draft_device": "cpu"}])
def test_options_of_draft_models_are_refused_without_one(heads: dict[str, Path], option: dict[str, str]) -> None:
    """A head is computed as its target is."""
    (name,) = option
    for kind in ("eagle", "medusa", "draft"):
        sentence = rf"{name} is for draft models that stand alone, but .*{kind} is computed as its target is; leave it"
        with pytest.raises(ConfigurationError, match=sentence):
            draftwood.load(heads["target"], heads[kind], device="cpu", **option)
    with pytest.raises(ConfigurationError, match=f"{name} is for draft models, and there is none; leave it out"):
        draftwood.load(heads["target"], device="cpu", **option)
    models = [heads["target"], heads["eagle"]]
    assert len(draftwood.load(heads["target"], models, device="cpu", **option).drafts) == 2


def test_a_first_guess_of_a_head_is_what_its_training_measured(heads: dict[str, Path]) -> None:
    """Of sampled texts, which must repeat; nobody has measured the draft model."""
    guesses = {}
    for kind in ("eagle", "draft"):
        engine = draftwood.load(heads["target"], heads[kind], device="cpu")
        request = engine.requests.request([1, 2, 3], sampling={"temperature": 1.0}, seed=1)
        depth = engine.builder.generation(request).depth
        assert isinstance(depth, Auto) and not depth.shared
        guesses[kind] = depth.prior
    assert guesses == {"eagle": 0.25, "draft": PRIOR_RATE}


@pytest.mark.parametrize(("kinds", "method"), [(["eagle", "medusa"], "eagle"), (["medusa", "eagle"], "medusa")])
def test_of_heads_alone_the_first_is_the_draft(heads: dict[str, Path], kinds: list[str], method: str) -> None:
    """Methods that draft from heads take it; those that do not name its method."""
    engine = draftwood.load(heads["target"], [heads[kind] for kind in kinds], device="cpu")
    assert engine.default_method.name == method
    assert ModelOptions(target=str(heads["target"]), draft=[str(heads[kind]) for kind in kinds]).drafts == 1
    tree = {"name": "mcsd", "tree": [2, 1]}
    assert engine.generate([1, 2, 3], tree, max_new_tokens=8, ignore_eos=True).metrics.drafted > 0
    for name in ("speculative", "specinfer"):
        with pytest.raises(ModelError, match=f"method {name} needs a draft model; .*: use method {method}$"):
            engine.generate([1, 2, 3], name, max_new_tokens=8)


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
