"""Writes GGUF files of published shapes with random weights, a mixture or a hybrid: `python -m recipes.random_models`.

No published one is small enough to be measured here, and what a forward costs does not depend on the numbers. The
blocks are random bytes with scales that keep rows in proportion; the vocabulary has a token for each byte.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from draftwood.util.files import replacing

END = "<|end|>"
PLAIN = ("gate_inp.weight", "conv1d.weight")  # matrices that are not quantised


@dataclass(frozen=True)
class Mixture:
    """Sizes of a Qwen3-MoE: those of Qwen3-30B-A3B, but for layers and vocabulary."""

    architecture: ClassVar[str] = "qwen3moe"
    layers: int = 4
    width: int = 2048
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 128
    experts: int = 128
    chosen: int = 8
    inner: int = 768
    vocabulary: int = 2048
    context: int = 4096

    def metadata(self) -> dict[str, int | float]:
        return {
            "block_count": self.layers,
            "context_length": self.context,
            "embedding_length": self.width,
            "feed_forward_length": self.inner,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
            "expert_count": self.experts,
            "expert_used_count": self.chosen,
            "expert_feed_forward_length": self.inner,
        }

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the tensors."""
        yield "token_embd.weight", (self.vocabulary, self.width)
        yield "output_norm.weight", (self.width,)
        yield "output.weight", (self.vocabulary, self.width)
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = {
            **{"attn_norm": (self.width,), "ffn_norm": (self.width,)},
            **{"attn_q_norm": (self.head_dim,), "attn_k_norm": (self.head_dim,)},
            **{"attn_q": (queries, self.width), "attn_k": (keys, self.width), "attn_v": (keys, self.width)},
            **{"attn_output": (self.width, queries), "ffn_gate_inp": (self.experts, self.width)},
            **{f"ffn_{part}_exps": (self.experts, self.inner, self.width) for part in ("gate", "up")},
            "ffn_down_exps": (self.experts, self.width, self.inner),
        }
        for number in range(self.layers):
            yield from ((f"blk.{number}.{name}.weight", shape) for name, shape in layer.items())


@dataclass(frozen=True)
class Hybrid:
    """Sizes of a Qwen3.5: those of Qwen3.5-4B, but for layers and vocabulary. Each fourth layer has attention."""

    architecture: ClassVar[str] = "qwen35"
    layers: int = 8
    width: int = 2560
    heads: int = 16
    kv_heads: int = 4
    head_dim: int = 256
    inner: int = 9216
    key_heads: int = 16
    value_heads: int = 32
    state: int = 128
    kernel: int = 4
    vocabulary: int = 2048
    context: int = 4096

    def metadata(self) -> dict[str, Any]:
        rotated = self.head_dim // 4
        return {
            "block_count": self.layers,
            "context_length": self.context,
            "embedding_length": self.width,
            "feed_forward_length": self.inner,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e7,
            "rope.dimension_count": rotated,
            "rope.dimension_sections": [rotated // 2 - 2 * (rotated // 6), rotated // 6, rotated // 6, 0],
            "ssm.conv_kernel": self.kernel,
            "ssm.state_size": self.state,
            "ssm.group_count": self.key_heads,
            "ssm.time_step_rank": self.value_heads,
            "ssm.inner_size": self.value_heads * self.state,
            "full_attention_interval": 4,
        }

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the tensors."""
        yield "token_embd.weight", (self.vocabulary, self.width)
        yield "output_norm.weight", (self.width,)
        yield "output.weight", (self.vocabulary, self.width)
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        values, channels = self.value_heads * self.state, (self.value_heads + 2 * self.key_heads) * self.state
        feed = {
            **{"attn_norm": (self.width,), "post_attention_norm": (self.width,)},
            **{f"ffn_{part}": (self.inner, self.width) for part in ("gate", "up")},
            "ffn_down": (self.width, self.inner),
        }
        attention = {
            **{"attn_q_norm": (self.head_dim,), "attn_k_norm": (self.head_dim,), "attn_q": (2 * queries, self.width)},
            **{"attn_k": (keys, self.width), "attn_v": (keys, self.width), "attn_output": (self.width, queries)},
        }
        recurrent = {
            **{"attn_qkv": (channels, self.width), "attn_gate": (values, self.width), "ssm_out": (self.width, values)},
            **{f"ssm_{gate}": (self.value_heads, self.width) for gate in ("beta", "alpha")},
            **{"ssm_conv1d": (channels, self.kernel), "ssm_norm": (self.state,)},
        }
        for number in range(self.layers):
            mixer = recurrent if (number + 1) % 4 else attention
            yield from ((f"blk.{number}.{name}.weight", shape) for name, shape in {**feed, **mixer}.items())
            if mixer is recurrent:
                yield f"blk.{number}.ssm_dt.bias", (self.value_heads,)
                yield f"blk.{number}.ssm_a", (self.value_heads,)


Sizes: TypeAlias = Mixture | Hybrid


def write(path: Path, kind: str, sizes: Sizes | None = None) -> Path:
    """Write the file, its matrices in a type (Q4_0 or Q4_K), where it is not there yet."""
    import gguf

    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    model, rng = sizes or Mixture(), np.random.default_rng(0)
    with replacing(path) as partial:
        writer = gguf.GGUFWriter(partial, model.architecture)
        add: dict[type, Any] = {float: writer.add_float32, int: writer.add_uint32, list: writer.add_array}
        for key, value in model.metadata().items():
            add[type(value)](f"{model.architecture}.{key}", value)
        _tell_words(writer, model.vocabulary)
        for name, shape in model.shapes():
            chosen = gguf.GGMLQuantizationType["F32" if len(shape) == 1 or name.endswith(PLAIN) else kind]
            length, size = gguf.GGML_QUANT_SIZES[chosen]
            plain = chosen == gguf.GGMLQuantizationType.F32
            stored = shape if plain else (*shape[:-1], shape[-1] // length * size)
            dtype: np.dtype[Any] = np.dtype(np.float32 if plain else np.uint8)
            writer.add_tensor_info(name, stored, dtype, prod(stored) * dtype.itemsize, chosen)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, shape in model.shapes():
            writer.write_tensor_data(_values(rng, name, shape, kind))
        writer.close()
    return path


def _values(rng: np.random.Generator, name: str, shape: tuple[int, ...], kind: str) -> np.ndarray[Any, Any]:
    if len(shape) == 1:
        return np.full(shape, -1 if name.endswith("ssm_a") else 1, np.float32)
    if name.endswith(PLAIN):
        return rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
    blocks = {"Q4_0": (32, 18, 4.6, 0.0), "Q4_K": (256, 144, 200.0, 7.5)}
    length, size, spread, shift = blocks[kind]  # of a block: weights, bytes, their spread over its scale, its minimum
    data = rng.integers(0, 256, (prod(shape) // length, size), np.uint8)
    scale = 1 / (spread * shape[-1] ** 0.5)
    numbers = np.array([scale, shift * scale] if shift else [scale], np.float16)
    data[:, : numbers.nbytes] = numbers.view(np.uint8)
    return data.reshape(*shape[:-1], -1)


def _tell_words(writer: Any, size: int) -> None:
    """Byte-level words: a token for each byte, one merge, one that ends a text; the rest is never said."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), "th", END]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, *(f"[PAD{number}]" for number in range(len(tokens), size))])
    writer.add_token_types([*[1] * (len(tokens) - 1), 3, *[5] * (size - len(tokens))])
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(len(tokens) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("file", type=Path, help="the file to write")
    parser.add_argument("--type", choices=("Q4_0", "Q4_K"), default="Q4_K", help="of its matrices")
    parser.add_argument("--hybrid", action="store_true", help="Qwen3.5-4B's layers, in place of Qwen3-30B-A3B's")
    given = parser.parse_args()
    print(write(given.file, given.type, Hybrid() if given.hybrid else Mixture()))


if __name__ == "__main__":
    main()
