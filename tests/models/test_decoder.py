"""The decoder computes what Hugging Face's Llama computes: shapes, biases, rotary kinds, spellings, chains, trees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import SHAPE, VOCAB, edit_json, ours, reference, theirs, write

from draftwood.core.forest import TRUNK, Forest, Verdict, advance
from draftwood.models.base import Batch, CausalModel, Segment
from draftwood.models.cache import Cache
from draftwood.models.checkpoints import checkpoint
from draftwood.models.decoder import Decoder
from draftwood.runtime.session import Session

LLAMA_3_1 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "head_dim": {"head_dim": 12},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "gelu": {"hidden_act": "gelu"},
    "relu": {"hidden_act": "relu"},
    "eps": {"rms_norm_eps": 0.1},
    "code_llama": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama_3_1": {"rope_parameters": LLAMA_3_1, "max_position_embeddings": 131072, "head_dim": 16},
}
PROMPT = [3, 94, 17, 17, 60, 5, 0, 41, 8, 77, 2, 29]


def tree() -> Forest:
    """The prompt, then two branches of which one forks, and a fork right at the root."""
    forest = Forest.from_prompt(list(PROMPT))
    root = forest.roots[0]
    a, b, c = forest.propose(root, [11, 12, 13], None)
    d, e = forest.propose(a, [21, 22], None)
    (f,) = forest.propose(b, [21], None)
    forest.propose(e, [31, 32], None)
    forest.propose(f, [31], None)
    assert c < d
    return forest


def per_path(model: Any, forest: Forest) -> torch.Tensor:
    """Hugging Face's logits [len(forest), V], one forward per node over its own path."""
    return torch.stack([theirs(model, forest.sequence(node))[-1] for node in range(len(forest))])


@pytest.mark.parametrize("name", VARIANTS)
def test_prompt_and_tree_logits_equal_hugging_faces(name: str, tmp_path: Path) -> None:
    model = write(tmp_path, **VARIANTS[name])
    forest = tree()
    expected = per_path(model, forest)
    assert expected.std() > 0.5  # logits of a size at which a difference shows
    torch.testing.assert_close(ours(checkpoint.load(tmp_path), forest), expected, atol=1e-4, rtol=0)


def test_float64_equals_hugging_face_far_more_closely(tmp_path: Path) -> None:
    model = write(tmp_path, **VARIANTS["biases"]).double()
    decoder = checkpoint.load(tmp_path, "float64")
    assert isinstance(decoder, CausalModel) and decoder.dtype == torch.float64
    logits = ours(decoder, tree())
    assert logits.dtype == torch.float64
    # its rotary angles and norms are float32 inside, ours only the angles
    torch.testing.assert_close(logits, per_path(model, tree()), atol=1e-5, rtol=0)


def test_every_prompt_position_equals_hugging_face(tmp_path: Path) -> None:
    model = write(tmp_path)
    forest = Forest(trunk=[])
    parent = TRUNK
    for token in PROMPT:
        parent = forest.add(parent, token)
    torch.testing.assert_close(ours(checkpoint.load(tmp_path), forest), theirs(model, PROMPT), atol=1e-4, rtol=0)


def test_after_commit_a_second_tree_still_equals_hugging_face(tmp_path: Path) -> None:
    model = write(tmp_path)
    decoder = checkpoint.load(tmp_path)
    session = Session(decoder, decoder.new_cache(32))
    forest = tree()
    ours(decoder, forest, session)
    leaf = max(range(len(forest)), key=lambda node: forest.depth[node])
    trunk, kept, grown = advance(forest, Verdict([leaf], [50], [], {}))
    session.commit(trunk, kept, grown)
    for branch in grown.propose(grown.roots[0], [51, 52], None):
        grown.propose(branch, [53], None)
    torch.testing.assert_close(ours(decoder, grown, session), per_path(model, grown), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["llama_3_1", "linear", "code_llama", "gqa"])
def test_positions_far_beyond_the_original_context(name: str, tmp_path: Path) -> None:
    """Jumps in position stand for long texts: all rotary angles up to 131,071 are met."""
    changes = {**VARIANTS[name], "max_position_embeddings": 131072}
    model = write(tmp_path, **changes)
    decoder = checkpoint.load(tmp_path)
    positions = [0, 1, 100, 2047, 8191, 8192, 9000, 20000, 65536, 100000, 131070, 131071]
    n, cache = len(PROMPT), decoder.new_cache()
    segment = Segment.causal(cache.lend(n), 0, n)
    with torch.inference_mode():
        logits = decoder(Batch.of(decoder, PROMPT, positions, [segment]), cache)
    torch.testing.assert_close(logits, theirs(model, PROMPT, positions), atol=1e-4, rtol=0)


KNOBS: dict[str, dict[str, Any]] = {
    "rms_norm_eps": {"rms_norm_eps": 0.1},
    "rope_theta": {"rope_theta": 1e6},
    "rope_scaling": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "hidden_act": {"hidden_act": "gelu"},
}


@pytest.mark.parametrize("knob", KNOBS)
def test_each_knob_of_the_config_changes_the_logits(knob: str, tmp_path: Path) -> None:
    write(tmp_path)
    before = ours(checkpoint.load(tmp_path), tree())
    edit_json(tmp_path / "config.json", drop=("rope_parameters",))
    torch.testing.assert_close(ours(checkpoint.load(tmp_path), tree()), before)  # the defaults of the class
    edit_json(tmp_path / "config.json", **KNOBS[knob])
    assert (ours(checkpoint.load(tmp_path), tree()) - before).abs().max() > 1e-2


@pytest.mark.parametrize(
    "part",
    ["mixer.qkv.bias", "mixer.o.bias", "feed.gate_up.bias", "feed.down.bias", "mixer.norm", "feed.norm", "norm"],
)
def test_each_small_parameter_changes_the_logits(part: str, tmp_path: Path) -> None:
    write(tmp_path, **VARIANTS["biases"])
    decoder = checkpoint.load(tmp_path, packed=False)
    before = ours(decoder, tree())
    touched = [p for name, p in decoder.named_parameters() if name == part or name.endswith("1." + part)]
    assert len(touched) == 1
    touched[0].zero_()
    assert (ours(decoder, tree()) - before).abs().max() > 1e-2


@pytest.mark.parametrize("changes", [{"low_freq_factor": 2.0}, {"high_freq_factor": 16.0}, {"factor": 2.0}])
def test_each_llama3_rotary_setting_changes_the_angles(changes: dict[str, float], tmp_path: Path) -> None:
    def angles(decoder: Decoder) -> torch.Tensor:
        return decoder.attention_kinds[0].rotary.tables(16384, decoder.device, decoder.dtype)[0]

    write(tmp_path, **{**VARIANTS["llama_3_1"], "max_position_embeddings": 16384})
    before = angles(checkpoint.load(tmp_path))
    edit_json(tmp_path / "config.json", rope_parameters={**LLAMA_3_1, **changes})
    assert (angles(checkpoint.load(tmp_path)) - before).abs().max() > 0.1


def test_scaled_checkpoints_of_transformers_4_load_alike(tmp_path: Path) -> None:
    """rope_theta and rope_scaling beside each other, with "type" or "rope_type", nulls where nothing is set."""
    model = write(tmp_path, **VARIANTS["llama_3_1"])
    expected = per_path(model, tree())
    scaling = {key: value for key, value in LLAMA_3_1.items() if key != "rope_theta"}
    edit_json(
        tmp_path / "config.json", ("rope_parameters",), rope_theta=500000.0, rope_scaling=scaling, torch_dtype="float32"
    )
    torch.testing.assert_close(ours(checkpoint.load(tmp_path), tree()), expected, atol=1e-4, rtol=0)
    plain = write(tmp_path)
    edit_json(tmp_path / "config.json", ("rope_parameters",), rope_theta=10000.0, rope_scaling=None, head_dim=None)
    torch.testing.assert_close(ours(checkpoint.load(tmp_path), tree()), per_path(plain, tree()), atol=1e-4, rtol=0)


def test_absent_keys_mean_the_defaults_of_llamas_class(tmp_path: Path) -> None:
    absent = (
        "head_dim",
        "num_key_value_heads",
        "hidden_act",
        "rms_norm_eps",
        "rope_parameters",
        "attention_bias",
        "mlp_bias",
        "tie_word_embeddings",
        "max_position_embeddings",
    )
    model = write(tmp_path, num_key_value_heads=4)
    edit_json(tmp_path / "config.json", absent)
    decoder = checkpoint.load(tmp_path)
    assert decoder.context == 2048 and decoder.config.rms_norm_eps == 1e-6
    torch.testing.assert_close(ours(decoder, tree()), per_path(model, tree()), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.15), ("float16", 0.02)])
def test_half_precision_is_near_float32(dtype: str, tolerance: float, tmp_path: Path) -> None:
    write(tmp_path, **VARIANTS["biases"])
    exact = ours(checkpoint.load(tmp_path), tree())
    decoder = checkpoint.load(tmp_path, dtype)
    rounded = ours(decoder, tree())
    assert {p.dtype for p in decoder.parameters()} == {getattr(torch, dtype)}
    assert rounded.dtype == torch.float32
    error = (rounded - exact).abs().max() / exact.std()
    assert 1e-5 < error < tolerance


def test_training_forward_equals_the_cached_one(tmp_path: Path) -> None:
    model = write(tmp_path, **VARIANTS["biases"])
    decoder = checkpoint.load(tmp_path)
    logits = decoder.train_forward(torch.tensor([PROMPT, PROMPT[::-1]]))
    for row, tokens in zip(logits, [PROMPT, PROMPT[::-1]], strict=True):
        torch.testing.assert_close(row, theirs(model, tokens), atol=1e-4, rtol=0)


def test_layer_ranges_compose_to_the_whole(tmp_path: Path) -> None:
    write(tmp_path)
    decoder = checkpoint.load(tmp_path)
    n = len(PROMPT)

    def batch(cache: Cache, **options: Any) -> Batch:
        segment = Segment.causal(extents[cache], 0, n)
        return Batch.of(decoder, PROMPT, range(n), [segment], **options)

    one, two = decoder.new_cache(), decoder.new_cache()
    extents = {cache: cache.lend(n) for cache in (one, two)}
    with torch.inference_mode():
        whole = decoder(batch(one), one)
        hidden = decoder(batch(two, stop=1), two)
        assert hidden.shape == (n, SHAPE["hidden_size"])
        parts = decoder(batch(two, start=1, hidden=hidden), two)
    torch.testing.assert_close(parts, whole, atol=0, rtol=0)


@pytest.mark.gpu
def test_cuda_equals_hugging_face(tmp_path: Path) -> None:
    model = write(tmp_path, **VARIANTS["biases"])
    decoder = checkpoint.load(tmp_path, device="cuda")
    assert decoder.device.type == "cuda"
    torch.testing.assert_close(ours(decoder, tree()).cpu(), per_path(model, tree()), atol=1e-3, rtol=0)


def test_a_decoder_can_be_built_without_a_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, tie_word_embeddings=True)
    config = checkpoint.load(tmp_path).config
    decoder = Decoder(replace(config, num_hidden_layers=1))
    assert decoder.head.weight is decoder.embed.weight and decoder.n_layers == 1
    assert decoder.vocab_size == VOCAB == reference().config.vocab_size
