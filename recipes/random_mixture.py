"""Writes GGUF files of a mixture of experts, a published shape with random weights: `python -m recipes.random_mixture`.

No published mixture is small enough to be measured here, and what a forward costs does not depend on the numbers. The
blocks are random bytes with scales that keep rows in proportion; the vocabulary has a token for each byte.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.util.files import replacing

END = "<|end|>"


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sizes of a Qwen3-MoE: those of Qwen3-30B-A3B, but for layers and vocabulary."""

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


def write(path: Path, kind: str, mixture: Mixture | None = None) -> Path:
    """Write the file, its matrices in a type (Q4_0 or Q4_K), where it is not there yet."""
    import gguf

    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    mixture, rng = mixture or Mixture(), np.random.default_rng(0)
    with replacing(path) as partial:
        writer = gguf.GGUFWriter(partial, "qwen3moe")
        for key, value in mixture.metadata().items():
            if isinstance(value, float):
                writer.add_float32(f"qwen3moe.{key}", value)
            else:
                writer.add_uint32(f"qwen3moe.{key}", value)
        _tell_words(writer, mixture.vocabulary)
        for name, shape in mixture.shapes():
            chosen = gguf.GGMLQuantizationType["F32" if len(shape) == 1 or "gate_inp" in name else kind]
            length, size = gguf.GGML_QUANT_SIZES[chosen]
            plain = chosen == gguf.GGMLQuantizationType.F32
            stored = shape if plain else (*shape[:-1], shape[-1] // length * size)
            dtype: np.dtype[Any] = np.dtype(np.float32 if plain else np.uint8)
            writer.add_tensor_info(name, stored, dtype, prod(stored) * dtype.itemsize, chosen)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, shape in mixture.shapes():
            writer.write_tensor_data(_values(rng, name, shape, kind))
        writer.close()
    return path


def _values(rng: np.random.Generator, name: str, shape: tuple[int, ...], kind: str) -> np.ndarray[Any, Any]:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    if "gate_inp" in name:
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
    given = parser.parse_args()
    print(write(given.file, given.type))


if __name__ == "__main__":
    main()
