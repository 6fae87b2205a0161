"""A Llama checkpoint as a GGUF file, with a stand-in tokenizer: one private character for each token id.

So token ids go in and out of programs that take text only, unchanged. No token must end a text; but the format names
one that does, so that is one which a model never says: a byte that no UTF-8 text has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftwood.eval.experiments.engines.weights import Shape, Weights, fresh

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


def rotary_rows(matrix: Any, heads: int) -> Any:
    """Rows of a query or key projection, from halves (i and i + d/2 turn together) to neighbours (2i and 2i + 1)."""
    rows, columns = matrix.shape
    half = rows // heads // 2
    return matrix.reshape(heads, 2, half, columns).swapaxes(1, 2).reshape(rows, columns)


def write(directory: Path, path: Path, dtype: str) -> None:
    """Convert once."""
    import gguf

    with fresh(path) as part:
        if part is None:
            return
        weights = Weights(directory)
        s = weights.shape
        writer = gguf.GGUFWriter(part, "llama")
        _describe(writer, s, directory)
        stored = gguf.GGMLQuantizationType[TYPES[dtype]]
        for name, array in _tensors(weights):
            kind = gguf.GGMLQuantizationType.F32 if array.ndim == 1 else stored
            data = gguf.quants.quantize(array, kind)
            writer.add_tensor(name, data, raw_shape=data.shape, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _describe(writer: Any, s: Shape, directory: Path) -> None:
    import gguf

    writer.add_context_length(s.context)
    writer.add_embedding_length(s.width)
    writer.add_block_count(s.layers)
    writer.add_feed_forward_length(s.intermediate)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_rope_dimension_count(s.head_dim)
    writer.add_rope_freq_base(s.rope_theta)
    writer.add_layer_norm_rms_eps(s.norm_eps)
    writer.add_vocab_size(s.vocabulary)
    known = json.loads((directory / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    last = known.get(NEVER_SAID, s.vocabulary - 1)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([as_text([token]) for token in range(s.vocabulary)])
    writer.add_token_scores([0.0] * s.vocabulary)
    writer.add_token_types([gguf.TokenType.NORMAL] * s.vocabulary)
    writer.add_bos_token_id(last)
    writer.add_eos_token_id(last)
    writer.add_unk_token_id(last)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)


def _tensors(weights: Weights) -> Any:
    s = weights.shape
    yield "token_embd.weight", weights["model.embed_tokens.weight"]
    for layer in range(s.layers):
        here, there = f"model.layers.{layer}.", f"blk.{layer}."
        yield there + "attn_norm.weight", weights[here + "input_layernorm.weight"]
        yield there + "attn_q.weight", rotary_rows(weights[here + "self_attn.q_proj.weight"], s.heads)
        yield there + "attn_k.weight", rotary_rows(weights[here + "self_attn.k_proj.weight"], s.kv_heads)
        yield there + "attn_v.weight", weights[here + "self_attn.v_proj.weight"]
        yield there + "attn_output.weight", weights[here + "self_attn.o_proj.weight"]
        yield there + "ffn_norm.weight", weights[here + "post_attention_layernorm.weight"]
        yield there + "ffn_gate.weight", weights[here + "mlp.gate_proj.weight"]
        yield there + "ffn_up.weight", weights[here + "mlp.up_proj.weight"]
        yield there + "ffn_down.weight", weights[here + "mlp.down_proj.weight"]
    yield "output_norm.weight", weights["model.norm.weight"]
    yield "output.weight", weights["lm_head.weight"]
