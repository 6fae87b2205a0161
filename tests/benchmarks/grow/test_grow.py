"""Growth keeps the function: logits, greedy texts and acceptance are the small model's; no structure gives it away."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from grown_decoder import grow
from transformers import AutoModelForCausalLM

import draftwood
from benchmarks.grow.growth import Growth, write
from draftwood import Engine, Metrics
from draftwood.corpus import DOMAINS, documents
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ConfigurationError, ModelError
from draftwood.models.backend.attention import fused
from draftwood.models.checkpoints import checkpoint, saving
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata

CONFIG = DecoderConfig(96, 24, 40, 3, 4, 2, 8, 64)
TOKENS = torch.arange(40).reshape(2, 20) * 7 % 96


def small(dtype: torch.dtype = torch.float64, **changes: Any) -> Decoder:
    """A random decoder whose logits spread over several units; norms and biases are random too."""
    model = Decoder(replace(CONFIG, **changes)).to(torch.float64)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.3 * noise)
    model.to(dtype)
    return model.eval().requires_grad_(False)


def apart(a: Decoder, b: Decoder) -> float:
    """Largest difference of two decoders' logits."""
    return float((a.train_forward(TOKENS) - b.train_forward(TOKENS)).abs().max())


WIDER: list[dict[str, Any]] = [
    {"width": 48},
    {"width": 120},
    {"width": 24, "intermediate": 100},
    {"width": 48, "heads": 12, "kv_heads": 3},  # one key/value head has two replicas, the other one
    {"width": 72, "heads": 9, "kv_heads": 3, "intermediate": 41},
    {"width": 48, "heads": 8, "kv_heads": 8},
    {"width": 48, "heads": 6, "kv_heads": 2},
    {"width": 48, "heads": 10},
]


@pytest.mark.parametrize("shape", WIDER, ids=lambda shape: " ".join(map(str, shape.values())))
@pytest.mark.parametrize(
    "knobs", [{}, {"tie_word_embeddings": True}, dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), True)]
)
def test_a_wider_decoder_is_the_same_function(shape: dict[str, Any], knobs: dict[str, Any]) -> None:
    model = small(**knobs)
    grown = grow(model, 3, **shape)
    assert grown.config.hidden_size == shape["width"] and not grown.config.tie_word_embeddings
    assert apart(model, grown) < 1e-10


def test_float32_keeps_logits_to_a_ten_thousandth() -> None:
    model = small(torch.float32)
    assert apart(model, grow(model, 7, 120)) < 1e-4


@pytest.mark.parametrize(("layers", "width"), [(8, 24), (8, 48), (4, 57), (3, 47)])
def test_added_layers_and_left_over_channels_hardly_count(layers: int, width: int) -> None:
    model = small()
    assert 0 < apart(model, grow(model, layers, width)) < 1e-5


def test_head_dim_and_groups_are_kept_by_default() -> None:
    c = grow(small(), 3, 72).config
    assert (c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.intermediate_size) == (12, 6, 8, 120)
    odd = grow(small(), 3, 60).config
    assert (odd.num_attention_heads, odd.num_key_value_heads, odd.intermediate_size) == (10, 5, 100)
    assert grow(small(), 3, 48, heads=10).config.num_key_value_heads == 2


def test_without_the_noise_that_cancels_nothing_would_differ_between_replicas() -> None:
    model = small()
    grown = grow(model, 6, 72, keep_first=1)
    for name, weight in grown.named_parameters():
        assert (weight != 0).all(), name
        if weight.dim() == 2 and name != "embed.weight":
            assert len(weight.flatten().unique()) == weight.numel(), name
    first = grown.layers[0].mixer.qkv.weight.view(-1, 3, 24)  # [rows, replicas, channels]
    original = model.layers[0].mixer.qkv.weight[0]
    torch.testing.assert_close(first[0].sum(0), original, atol=1e-12, rtol=0)
    noise = first[0] - original / 3
    assert 0.5 < float(noise.std() / (model.layers[0].mixer.qkv.weight.pow(2).mean().sqrt() / 3)) < 1.5


def test_the_residual_stream_keeps_its_size() -> None:
    model = small()
    for width, bound in ((72, 1e-12), (60, 0.2)):  # left-over channels thin it out: 48 of 60 are replicas
        x, y = model.embed(TOKENS), grow(model, 3, width).embed(TOKENS)
        ratio = float(y.pow(2).mean().sqrt() / x.pow(2).mean().sqrt())
        assert abs(ratio - math.sqrt(width // 24 * 24 / width)) < 1e-6 and abs(ratio - 1) < bound


@pytest.mark.parametrize("keep_first", [0, 1, 2, 3, 9])
def test_layers_are_added_after_the_first_ones(keep_first: int) -> None:
    model = small()
    grown = grow(model, 5, 48, keep_first=keep_first)
    silent = [
        float(layer.mixer.o.weight.abs().max()) < 1e-6 and float(layer.feed.down.weight.abs().max()) < 1e-6
        for layer in grown.layers
    ]
    place = min(keep_first, 3)
    assert silent == [place <= i < place + 2 for i in range(5)]
    assert apart(model, grown) < 2e-5
    for layer in grown.layers:  # what the silent layers compute inside is of the usual size
        assert 0.05 < float(layer.feed.gate_up.weight.std()) < 1


def test_early_layers_give_the_same_hidden_states() -> None:
    """An exit after layer 2 sees replicas of what it saw."""
    model = small()
    grown = grow(model, 9, 72, keep_first=2)
    x, y = model.embed(TOKENS), grown.embed(TOKENS)
    rotary = model.attention_kinds[0].rotary
    assert rotary is not None
    cos, sin = rotary.tables(20, x.device, x.dtype)
    view = AttentionMetadata(cos[:20], sin[:20], fused)
    for layer, wide in zip(model.layers[:2], grown.layers[:2], strict=True):
        x = layer(x, view, None)
        y = wide(y, view, None)
    torch.testing.assert_close(y, x.repeat(1, 1, 3), atol=1e-10, rtol=0)


def test_the_seed_decides_the_noise() -> None:
    model = small()
    first, again, other = (grow(model, 4, 48, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"layers": 2, "width": 48}, "has 3 layers, so it cannot grow to 2"),
    ({"layers": 3, "width": 23}, "24 wide, so it cannot grow to width 23"),
    ({"layers": 3, "width": 48, "heads": 9, "kv_heads": 2}, "9 heads over 2"),
    ({"layers": 3, "width": 48, "heads": 2, "kv_heads": 2}, "2 heads over 2"),
    ({"layers": 3, "width": 48, "heads": 4, "kv_heads": 1}, "4 heads over 1"),
    ({"layers": 3, "width": 48, "heads": 6, "kv_heads": 6, "intermediate": 39}, "40 hidden units"),
    ({"layers": 3, "width": 48, "heads": 4, "kv_heads": 4, "keep_first": -1}, "keep_first is -1"),
]


@pytest.mark.parametrize(("shape", "sentence"), REFUSED)
def test_impossible_shapes(shape: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        grow(small(), **shape)


def test_too_few_replicas_of_a_group() -> None:
    with pytest.raises(ConfigurationError, match="leave 2 that read key/value head 1, but the model has 3"):
        grow(small(num_attention_heads=6), 3, 48, heads=6, kv_heads=3)


def test_other_families_are_refused() -> None:
    with pytest.raises(ModelError, match="has no word for this model's norm, qk_norm"):
        grow(small(norm="rms_offset", qk_norm="one"), 3, 48)


def written(source: Path, out: Path, layers: int, width: int, dtype: str = "float32", **options: Any) -> Path:
    """A checkpoint grown from a checkpoint, with its tokenizer."""
    model = checkpoint.load(source, packed=False)
    growth = Growth.plan(model, layers, width, **options)
    write(model, out, growth, checkpoint.read_config(source), dtype, source.name)
    if (source / "tokenizer.json").is_file():
        (out / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    return out


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint, in float32."""
    path = tmp_path_factory.mktemp("grow") / "small"
    saving.save(small(torch.float32, tie_word_embeddings=True), path, eos_token_id=5)
    return path


@pytest.mark.parametrize("shard_bytes", [saving.SHARD_BYTES, 60_000])
def test_what_is_written_loads_everywhere(
    source: Path, tmp_path: Path, shard_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "SHARD_BYTES", shard_bytes)
    out = written(source, tmp_path / "out", 5, 48)
    files = sorted(path.name for path in out.iterdir())
    if shard_bytes == 60_000:
        index = json.loads((out / "model.safetensors.index.json").read_text("utf-8"))
        shards = {out / name for name in index["weight_map"].values()}
        assert len(shards) > 3 and all(path.stat().st_size < 65_000 for path in shards)
        assert index["metadata"]["total_size"] == 4 * sum(
            p.numel() for p in checkpoint.load(out, packed=False).parameters()
        )
    else:
        assert files == ["config.json", "model.safetensors"]
    expected = checkpoint.load(source, packed=False).train_forward(TOKENS)
    ours = checkpoint.load(out, packed=False)
    theirs = AutoModelForCausalLM.from_pretrained(out).eval()
    with torch.no_grad():
        torch.testing.assert_close(ours.train_forward(TOKENS), expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(theirs(TOKENS).logits, expected, atol=1e-4, rtol=0)


def test_written_weights_are_those_of_grow(source: Path, tmp_path: Path) -> None:
    out = written(source, tmp_path / "out", 5, 60, seed=4)
    stored = checkpoint.load(out, packed=False).state_dict()
    for name, weight in grow(checkpoint.load(source, packed=False), 5, 60, seed=4).state_dict().items():
        assert torch.equal(stored[name], weight)


def test_the_config_says_what_was_grown_and_keeps_the_rest(source: Path, tmp_path: Path) -> None:
    once = written(source, tmp_path / "once", 4, 48, keep_first=1, seed=7)
    raw = checkpoint.read_config(once)
    assert raw["eos_token_id"] == 5 and raw["tie_word_embeddings"] is False
    assert raw["grown_from"] == {
        "source": "small",
        "layers": 3,
        "width": 24,
        "heads": 4,
        "kv_heads": 2,
        "intermediate": 40,
        "parameters": sum(parameter.numel() for parameter in checkpoint.load(source, packed=False).parameters()),
        "keep_first": 1,
        "seed": 7,
    }
    twice = checkpoint.read_config(written(once, tmp_path / "twice", 4, 96))
    assert twice["grown_from"]["grown_from"] == raw["grown_from"]


def test_a_failed_write_leaves_nothing(source: Path, tmp_path: Path) -> None:
    model = checkpoint.load(source, packed=False)

    def fail(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(model, tmp_path / "out", Growth.plan(model, 3, 48), checkpoint.read_config(source), advance=fail)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", ["float16", "float33"])
def test_other_dtypes_are_refused(source: Path, tmp_path: Path, dtype: str) -> None:
    with pytest.raises(ConfigurationError, match=f"dtype '{dtype}' is not for grown models"):
        written(source, tmp_path / "out", 3, 48, dtype)


PROMPTS = [item.prompt for domain in DOMAINS for item in islice(documents(domain, "held-out", seed=9), 2)][:10]
CHAIN: dict[str, Any] = {"name": "speculative", "gamma": 3}


@pytest.fixture(scope="module")
def shipped() -> Engine:
    return draftwood.load(device="cpu")


@pytest.fixture(scope="module")
def grown_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    path = tmp_path_factory.mktemp("pair")
    target = written(EMBEDDED / "target", path / "target", 14, 384)
    return target, written(EMBEDDED / "draft", path / "draft", 3, 256)


@pytest.fixture(scope="module")
def grown(grown_pair: tuple[Path, Path]) -> Engine:
    return draftwood.load(*grown_pair, device="cpu")


@pytest.mark.slow
def test_greedy_texts_of_the_grown_pair_are_the_small_ones(shipped: Engine, grown: Engine) -> None:
    """Texts part at most where the small model's two best tokens tie up to rounding."""
    options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 16, "top_logprobs": 2}
    for prompt in PROMPTS:
        plain = shipped.generate(prompt, "autoregressive", **options)
        for method in ("autoregressive", CHAIN):
            tokens = grown.generate(prompt, method, **options).tokens
            if tokens != plain.tokens:
                place = next(i for i, (a, b) in enumerate(zip(plain.tokens, tokens, strict=False)) if a != b)
                (_, first), (_, second) = plain.top_logprobs[place]
                assert first - second < 1e-4


def accepted(engine: Engine, seeds: int) -> tuple[Metrics, list[list[int]]]:
    """Acceptance summed over prompts and seeds, and the tokens."""
    metrics, texts = Metrics(), []
    for seed in range(seeds):
        for prompt in PROMPTS:
            result = engine.generate(prompt, CHAIN, {"temperature": 1.0}, 24, seed, ignore_eos=True)
            texts.append(result.tokens)
            for round_ in result.rounds:
                metrics.add(round_)
    return metrics, texts


@pytest.mark.slow
def test_acceptance_of_the_grown_pair_is_the_small_ones(
    shipped: Engine, grown: Engine, grown_pair: tuple[Path, Path]
) -> None:
    """float32: the same draws, but where a draw falls between the two roundings. bfloat16: the same within noise.

    position_rate is a mean of 360 to 480 acceptances and rejections, so two independent ones differ by less than four
    standard errors, and tau, its sum of powers 0 to 3, by less than 1 + 2 + 3 times as much.
    """
    small_metrics, small_texts = accepted(shipped, 2)
    metrics, texts = accepted(grown, 2)
    assert sum(a == b for a, b in zip(small_texts, texts, strict=True)) >= 0.9 * len(texts)
    assert abs(metrics.position_rate - small_metrics.position_rate) < 0.02
    assert abs(metrics.tau - small_metrics.tau) < 0.05
    short, _ = accepted(draftwood.load(*grown_pair, dtype="bfloat16", device="cpu"), 2)
    rate = small_metrics.position_rate
    error = math.sqrt(rate * (1 - rate) * (1 / small_metrics.attempted + 1 / short.attempted))
    assert small_metrics.attempted > 300 and error < 0.05
    assert abs(short.position_rate - rate) < 4 * error
    assert abs(short.tau - small_metrics.tau) < 4 * error * (1 + 2 + 3)
