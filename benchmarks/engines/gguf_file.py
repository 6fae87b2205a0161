"""A Llama checkpoint as a GGUF file, with a stand-in tokenizer: one private character for each token id.

So token ids go in and out of programs that take text only, unchanged. No token must end a text; but the format names
one that does, so that is one which a model never says: a byte that no UTF-8 text has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftwood.errors import ConfigurationError
from draftwood.models.checkpoints.checkpoint import read_config
from draftwood.models.checkpoints.families.table import FAMILIES
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.rotary import UNSCALED
from draftwood.util.files import replacing

FIRST_CHARACTER = 0xF0000  # of a private plane: 65,534 of them
NEVER_SAID = "ÿ"  # byte 0xff as byte-level BPE spells it
TYPES = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}


def as_text(tokens: list[int]) -> str:
    """Token ids as text for the stand-in tokenizer."""
    return "".join(chr(FIRST_CHARACTER + token) for token in tokens)


def as_tokens(text: str, vocabulary: int) -> list[int]:
    """Ids of the stand-in characters in a text; others are passed over."""
    ids = (ord(character) - FIRST_CHARACTER for character in text)
    return [token for token in ids if 0 <= token < vocabulary]


def shape_of(directory: Path) -> DecoderConfig:
    """The shape of a plain Llama model; raises ConfigurationError for any other."""
    raw = read_config(directory)
    if raw["model_type"] == "llama":
        shape = FAMILIES["llama"].config(raw)
        if shape.rope_scaling == UNSCALED:
            return shape
    raise ConfigurationError(f"{directory.name} is not a plain Llama model, which is all that is converted here")


class FileWeights:
    """Tensors by name, as float32 arrays."""

    def __init__(self, directory: Path) -> None:
        from safetensors import safe_open

        self.shape = shape_of(directory)
        files = [safe_open(file, framework="pt") for file in sorted(directory.glob("*.safetensors"))]
        self._where = {name: file for file in files for name in file.keys()}  # noqa: SIM118  (not a mapping)

    def __getitem__(self, name: str) -> Any:
        if name == "lm_head.weight" and self.shape.tie_word_embeddings:
            name = "model.embed_tokens.weight"
        return self._where[name].get_tensor(name).float().numpy()


def rotary_rows(matrix: Any, heads: int) -> Any:
    """Rows of a query or key projection, from halves (i and i + d/2 turn together) to neighbours (2i and 2i + 1)."""
    rows, columns = matrix.shape
    half = rows // heads // 2
    return matrix.reshape(heads, 2, half, columns).swapaxes(1, 2).reshape(rows, columns)


def write(directory: Path, path: Path, dtype: str) -> None:
    """Convert once; int4 is Q4_K_M by llama.cpp's own quantiser, from the file in bfloat16."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        if dtype == "int4":
            _quantise(directory, path.with_name(path.name.replace(dtype, "bfloat16")), partial)
        else:
            _convert(directory, partial, dtype)


def _convert(directory: Path, path: Path, dtype: str) -> None:
    import gguf

    weights = FileWeights(directory)
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, weights.shape, directory)
    for name, array in _tensors(weights):
        kind = gguf.GGMLQuantizationType["F32" if array.ndim == 1 else TYPES[dtype]]
        data = gguf.quants.quantize(array, kind)
        writer.add_tensor(name, data, raw_shape=data.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _quantise(directory: Path, source: Path, path: Path) -> None:
    import llama_cpp

    write(directory, source, "bfloat16")
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M
    if llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), settings):
        raise RuntimeError(f"llama.cpp could not quantise {source}")


def _describe(writer: Any, s: DecoderConfig, directory: Path) -> None:
    import gguf

    known = json.loads((directory / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    last, size = known.get(NEVER_SAID, s.vocab_size - 1), s.vocab_size
    values = {
        "context_length": s.max_position_embeddings,
        "embedding_length": s.hidden_size,
        "block_count": s.num_hidden_layers,
        "feed_forward_length": s.intermediate_size,
        "head_count": s.num_attention_heads,
        "head_count_kv": s.num_key_value_heads,
        "key_length": s.head_dim,
        "value_length": s.head_dim,
        "rope_dimension_count": s.head_dim,
        "rope_freq_base": s.rope_theta,
        "layer_norm_rms_eps": s.rms_norm_eps,
        "vocab_size": size,
        "tokenizer_model": "llama",
        "token_list": [as_text([token]) for token in range(size)],
        "token_scores": [0.0] * size,
        "token_types": [gguf.TokenType.NORMAL] * size,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "unk_token_id"), last),
        **dict.fromkeys(("add_bos_token", "add_eos_token", "add_space_prefix"), False),
    }
    for name, value in values.items():
        getattr(writer, f"add_{name}")(value)


PARTS = {  # of a layer, as they are named here and there
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _tensors(weights: FileWeights) -> Iterator[tuple[str, Any]]:
    s = weights.shape
    turned = {"attn_q": s.num_attention_heads, "attn_k": s.num_key_value_heads}
    yield "token_embd.weight", weights["model.embed_tokens.weight"]
    for layer in range(s.num_hidden_layers):
        for here, there in PARTS.items():
            array = weights[f"model.layers.{layer}.{here}.weight"]
            yield f"blk.{layer}.{there}.weight", rotary_rows(array, turned[there]) if there in turned else array
    yield "output_norm.weight", weights["model.norm.weight"]
    yield "output.weight", weights["lm_head.weight"]
