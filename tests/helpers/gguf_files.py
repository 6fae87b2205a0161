"""GGUF files for tests, converted from checkpoint directories, and random blocks of every quantised type."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import gguf_gemma
import gguf_hybrids
import gguf_latent
import gguf_mixtures
import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.engines.gguf_file import rotary_rows
from draftwood.models.checkpoints.gguf_weights import spellings
from draftwood.models.text.tokenizer import Tokenizer

Stored = Callable[[str, np.ndarray], tuple[np.ndarray, str]]  # a tensor's name and values -> its bytes and type
SCALES = {  # places of the float16 numbers in a block
    **{"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2)},
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)},
    **{"IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": ()},
}


def matrices(kind: str) -> Stored:
    """This type for matrices, F32 for vectors, as llama.cpp's converter has it."""

    def stored(name: str, array: np.ndarray) -> tuple[np.ndarray, str]:
        chosen = kind if array.ndim > 1 else "F32"
        return gguf.quants.quantize(np.ascontiguousarray(array), gguf.GGMLQuantizationType[chosen]), chosen

    return stored


PLAIN = matrices("F32")


ARCHITECTURES = {  # of model types that are called otherwise
    **{"olmo3": "olmo2", "hunyuan_v1_dense": "hunyuan-dense", "glm": "chatglm", "cohere": "command-r"},
    "ministral3": "mistral3",
    **{"phi": "phi2", "gpt_neox": "gptneox", "gpt_bigcode": "starcoder"},
    **gguf_mixtures.ARCHITECTURES,
    **gguf_hybrids.ARCHITECTURES,
    **gguf_latent.ARCHITECTURES,
}
# with the rows of queries and keys in pairs
TURNED = ("llama", "internlm2", "mistral3", "smollm3", "olmo", "granite", "granitemoe", "granitehybrid", "arcee")
OFFSET = ("gemma", "gemma2", "gemma3", "nemotron", "qwen35", "qwen35moe", "qwen3next")  # norms have 1 added
GPT_2_KEYS = {
    **{"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embd"},
    **{"max_position_embeddings": "n_positions", "intermediate_size": "n_inner", "rms_norm_eps": "layer_norm_epsilon"},
}
OTHER_KEYS = {
    **dict.fromkeys(("gpt2", "gpt_bigcode"), GPT_2_KEYS),
    "bloom": {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
    "mpt": {"num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "hidden_size": "d_model"},
}
WINDOWED = ("phi3", "gemma2", "gemma3", "olmo2", "exaone4", "cohere2", "starcoder2", "gpt-oss")
OWN_KEYS = {  # of config.json, as metadata has them
    **{"clip_qkv": "attention.clamp_kqv", "embedding_multiplier": "embedding_scale"},
    **{"attention_multiplier": "attention.scale", "residual_multiplier": "residual_scale"},
    **{"logits_scaling": "logit_scale", "logit_scale": "logit_scale"},
    "use_parallel_residual": "use_parallel_residual",
}


def write(
    directory: Path,
    path: Path,
    stored: Stored = PLAIN,
    words: Mapping[str, Any] | None = None,
    more: Mapping[str, np.ndarray] | None = None,
    part_tensors: int = 0,
    arch: str | None = None,
    without: tuple[str, ...] = (),
    **metadata: Any,
) -> Path:
    """A directory's model as a GGUF file; `words` are a tokenizer, `more` further tensors, `metadata` further keys.

    `arch`: the format's name of the family, by default that of the model's type. `without`: parts of the names of
    tensors that are left out.

    Where there are more than `part_tensors` tensors (0: never) it is split into parts of so many beside `path`, which
    is not written.
    """
    raw = json.loads((directory / "config.json").read_text("utf-8"))
    arch = arch or ARCHITECTURES.get(raw["model_type"], raw["model_type"].removesuffix("_text"))
    arch += "_moe" if arch == "nemotron_h" and "moe" in raw["layers_block_type"] else ""
    there = load_file(directory / "model.safetensors")
    learned = {name: there.pop(name) for name in [*there] if ".act_fn." in name}  # numbers of activations
    there = gguf_latent.tensors(raw, gguf_gemma.stacked(there))
    tensors = _norms_of_heads(gguf_mixtures.tensors(gguf_hybrids.tensors(raw, there)))
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    raw.setdefault("num_hidden_layers", len(raw.get("layers_block_type", ())))
    raw |= {new: raw[old] for new, old in OTHER_KEYS.get(raw["model_type"], {}).items()}
    raw |= gguf_hybrids.sizes(raw)
    if raw["model_type"] in ("bloom", "mpt"):
        raw |= {"intermediate_size": 4 * raw["hidden_size"], "num_key_value_heads": raw["num_attention_heads"]}
        raw |= {"max_position_embeddings": raw.get("seq_length", raw.get("max_seq_len", 2048))}
    known = arch.removesuffix("-assistant")  # whose tensors are called alike
    names = gguf.get_tensor_name_map(kinds[known], raw["num_hidden_layers"] + metadata.get("nextn_predict_layers", 0))
    heads = raw["num_attention_heads"]
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=part_tensors)
    keys = _shape(raw, arch, heads) | gguf_mixtures.metadata(raw) | gguf_hybrids.metadata(raw)
    for key, value in {**keys, **gguf_latent.metadata(raw), **gguf_gemma.metadata(raw), **metadata}.items():
        if value is not None:
            _add(writer, f"{arch}.{key}", value)
    for part in sorted({name.rpartition(".")[2] for name in learned}):
        each = range(raw["num_hidden_layers"])
        writer.add_array(f"xielu.{part}", [float(learned[f"model.layers.{i}.mlp.act_fn.{part}"]) for i in each])
    _tell(writer, words or {})
    for name, array in {**(more or {}), **_rotary_tensors(raw), **gguf_gemma.tensors(raw)}.items():
        writer.add_tensor(name, array)
    for name, tensor in tensors.items():
        array = tensor.float().numpy()
        name = gguf_gemma.name(name.replace("dt_bias", "dt_proj.bias"))
        if arch in ("gptneox", "falcon", "bloom") and "query_key_value" in name:
            rows = np.arange(len(array)).reshape(_kv_heads(raw), -1, raw["hidden_size"] // heads)
            array = array[np.concatenate([part.ravel() for part in (rows[:, :-2], rows[:, -2], rows[:, -1])])]
        if arch == "gpt2" and array.ndim > 1 and ".h." in name:
            array = array.T
        if arch in TURNED and ("q_proj" in name or "k_proj" in name):
            count = heads if "q_proj" in name else raw["num_key_value_heads"]
            array = rotary_rows(array.reshape(len(array), -1), count).reshape(array.shape)
        if arch in OFFSET and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            array = array + 1
        known = (names.get_name(each, (".weight", ".bias")) for each in spellings(name))
        there = next(filter(None, known), name)
        if any(part in there for part in without):
            continue
        data, kind = stored(there, array)
        writer.add_tensor(there, data, raw_shape=data.shape, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _norms_of_heads(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Norms that are a tensor for each head, as one for all."""
    made: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        whole, head, leaf = name.partition(".norms.")
        if not head:
            made[name] = tensor
        elif leaf == "0.weight":
            heads = [tensors[f"{whole}.norms.{i}.weight"] for i in range(sum(whole in other for other in tensors))]
            made[f"{whole}.weight"] = torch.stack(heads)
    return made


def _kv_heads(raw: Mapping[str, Any]) -> int:
    heads: int = raw["num_attention_heads"]
    if raw["model_type"] == "falcon":
        return int(raw["num_kv_heads"]) if raw["new_decoder_architecture"] else 1 if raw["multi_query"] else heads
    if raw["model_type"] == "gpt_bigcode":
        return 1
    return int(raw.get("num_key_value_heads") or heads)


def write_words(path: Path, words: Mapping[str, Any], arch: str = "llama") -> Path:
    """A file with a tokenizer only."""
    writer = gguf.GGUFWriter(path, arch)
    _tell(writer, words)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def _tell(writer: gguf.GGUFWriter, words: Mapping[str, Any]) -> None:
    for key, value in words.items():
        _add(writer, f"tokenizer.{key}" if key.startswith("chat_template") else f"tokenizer.ggml.{key}", value)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        kinds[type(value)](key, value)


def _shape(raw: Mapping[str, Any], arch: str, heads: int) -> dict[str, Any]:
    rope = raw.get("rope_parameters") or {"rope_theta": 10000.0}
    local = rope.get("sliding_attention") or {}
    rope = rope.get("full_attention", rope)
    layered = raw.get("layer_norm_eps", raw.get("norm_epsilon", raw.get("norm_eps", raw.get("layer_norm_epsilon"))))
    values = {
        "context_length": raw["max_position_embeddings"],
        "embedding_length": raw["hidden_size"],
        "block_count": raw["num_hidden_layers"],
        "feed_forward_length": raw.get("ffn_hidden_size") or raw["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": _kv_heads(raw),
        "attention.layer_norm_rms_epsilon": None if layered else raw.get("rms_norm_eps"),
        "attention.layer_norm_epsilon": layered or (1e-5 if arch == "olmo" else None),
        **dict.fromkeys(("attention.key_length", "attention.value_length"), raw.get("head_dim")),
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.freq_base_swa": local.get("rope_theta") and float(local["rope_theta"]),
    }
    if rope.get("rope_type") == "linear":
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    if rope.get("rope_type") == "yarn":
        values |= {"rope.scaling.type": "yarn", "rope.scaling.factor": float(rope["factor"])}
        values["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        values["rope.scaling.yarn_log_multiplier"] = rope.get("mscale_all_dim")
        values["attention.temperature_scale"] = rope.get("llama_4_scaling_beta")
    if rope.get("rope_type") == "longrope":
        told = {**rope, **raw}
        values["rope.scaling.original_context_length"] = told["original_max_position_embeddings"]
        values["rope.scaling.attn_factor"] = float(rope["attention_factor"])
    part = rope.get("partial_rotary_factor", 1.0)
    if arch == "phi3" or part != 1:
        values["rope.dimension_count"] = int(part * (raw.get("head_dim") or raw["hidden_size"] // heads))
    values["attention.sliding_window"] = raw.get("sliding_window") if arch in WINDOWED else None
    if arch != "falcon-h1":  # whose multipliers are in the weights
        values |= {name: raw[key] for key, name in OWN_KEYS.items() if raw.get(key) is not None}
    if raw["model_type"] == "mpt":
        clip = raw["attn_config"]["clip_qkv"]
        values |= {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": clip}
    if arch.startswith("gemma"):
        values |= {key: raw.get(key) for key in ("attn_logit_softcapping", "final_logit_softcapping")}
    return {key: value for key, value in values.items() if value is not None}


def _rotary_tensors(raw: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The scalings of Llama 3.1 and LongRoPE as llama.cpp's converter writes them."""
    rope = raw.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{kind}.weight": np.float32(rope[f"{kind}_factor"]) for kind in ("short", "long")}
    if rope.get("rope_type") != "llama3":
        return {}
    half = raw["head_dim"] // 2
    frequency = 1 / rope["rope_theta"] ** (torch.arange(half, dtype=torch.float32) / half)
    turns = rope["original_max_position_embeddings"] * frequency / (2 * np.pi)
    slow, fast = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = ((turns - slow) / (fast - slow)).clamp(0, 1)
    divisors: np.ndarray = (1 / ((1 - smooth) / rope["factor"] + smooth)).numpy()
    return {"rope_freqs.weight": divisors}


def byte_level(tokenizer: Tokenizer, pre: str, size: int | None = None, **more: Any) -> dict[str, Any]:
    """A byte-level tokenizer of the library as metadata; padded to `size` tokens as llama.cpp's converter does."""
    told = json.loads(tokenizer.backend.to_str())
    ids = tokenizer.backend.get_vocab(True)
    added = {token["content"]: token["special"] for token in told["added_tokens"]}
    texts = [f"[PAD{i}]" for i in range(size or tokenizer.size)]
    types = [5] * len(texts)
    for text, i in ids.items():
        texts[i], types[i] = text, (3 if added[text] else 4) if text in added else 1
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in told["model"]["merges"]]
    return {"model": "gpt2", "pre": pre, "tokens": texts, "token_type": types, "merges": merges, **more}


def pieces(model: Any, size: int | None = None, **more: Any) -> dict[str, Any]:
    """A sentencepiece model as metadata; padded as above."""
    texts = [f"[PAD{i}]" for i in range(size or model.get_piece_size())]
    types, scores = [5] * len(texts), [-10000.0] * len(texts)
    for i in range(model.get_piece_size()):
        texts[i], scores[i] = model.id_to_piece(i), model.get_score(i)
        flags = (model.is_unknown(i), model.is_control(i), texts[i] == "<|user|>", model.is_unused(i), model.is_byte(i))
        types[i] = flags.index(True) + 2 if True in flags else 1
    roles = {"bos_token_id": model.bos_id(), "eos_token_id": model.eos_id(), "unknown_token_id": model.unk_id()}
    words = {"model": "llama", "pre": "default", "tokens": texts, "token_type": types, "scores": scores}
    return {**words, **roles, **more}


def blocks(kind: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Random bytes [rows, bytes of a row] of a quantised type, with scales of either sign around 0.01."""
    rng = np.random.default_rng(seed)
    length, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    data = rng.integers(0, 256, (rows, columns // length, size), np.uint8)
    for place in SCALES[kind]:
        scales = rng.normal(0, 0.01, (*data.shape[:2], 1)).astype(np.float16)
        data[..., place : place + 2] = scales.view(np.uint8)
    if kind == "MXFP4":
        data[..., 0] = rng.integers(116, 124, data.shape[:2])  # exponents: 2**-12 to 2**-5
    return data.reshape(rows, -1)


def dequantised(data: np.ndarray, kind: str) -> torch.Tensor:
    """The values that the library reads from bytes."""
    return torch.from_numpy(gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]))
