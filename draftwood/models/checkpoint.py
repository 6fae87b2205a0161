"""Hugging Face directories and hub ids to decoders, and back.

Knows config.json, safetensors and each family's names. Never runs code from a checkpoint and never unpickles.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from draftwood.errors import ModelError, did_you_mean
from draftwood.models.decoder import ACTIVATIONS, Decoder, DecoderConfig, RopeScaling, rotary_table

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Family:
    """One model family: how its config.json becomes a DecoderConfig and which tensors make up each parameter.

    `names` maps a parameter to the checkpoint's tensors, concatenated along dimension 0; {i} is the layer.
    """

    config: Callable[[dict[str, Any]], DecoderConfig]
    names: dict[str, tuple[str, ...]]


LLAMA_NAMES: dict[str, tuple[str, ...]] = {
    "embed.weight": ("model.embed_tokens.weight",),
    "norm": ("model.norm.weight",),
    "head.weight": ("lm_head.weight",),
    "layers.{i}.attention_norm": ("model.layers.{i}.input_layernorm.weight",),
    "layers.{i}.mlp_norm": ("model.layers.{i}.post_attention_layernorm.weight",),
    "layers.{i}.qkv.weight": tuple(f"model.layers.{{i}}.self_attn.{x}_proj.weight" for x in "qkv"),
    "layers.{i}.qkv.bias": tuple(f"model.layers.{{i}}.self_attn.{x}_proj.bias" for x in "qkv"),
    "layers.{i}.o.weight": ("model.layers.{i}.self_attn.o_proj.weight",),
    "layers.{i}.o.bias": ("model.layers.{i}.self_attn.o_proj.bias",),
    "layers.{i}.gate_up.weight": tuple(f"model.layers.{{i}}.mlp.{x}_proj.weight" for x in ("gate", "up")),
    "layers.{i}.gate_up.bias": tuple(f"model.layers.{{i}}.mlp.{x}_proj.bias" for x in ("gate", "up")),
    "layers.{i}.down.weight": ("model.layers.{i}.mlp.down_proj.weight",),
    "layers.{i}.down.bias": ("model.layers.{i}.mlp.down_proj.bias",),
}


def _llama_config(raw: dict[str, Any]) -> DecoderConfig:
    """LlamaConfig in the spelling of transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters); class defaults."""
    heads = int(raw.get("num_attention_heads", 32))
    hidden = int(raw.get("hidden_size", 4096))
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise ModelError(f"rotary scaling {kind!r} is not supported; supported are default, linear and llama3")
    activation = raw.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise ModelError(f"activation {activation!r} is not supported" + did_you_mean(activation, ACTIVATIONS))
    context = int(raw.get("max_position_embeddings", 2048))
    return DecoderConfig(
        vocab_size=int(raw.get("vocab_size", 32000)),
        hidden_size=hidden,
        intermediate_size=int(raw.get("intermediate_size", 11008)),
        num_hidden_layers=int(raw.get("num_hidden_layers", 32)),
        num_attention_heads=heads,
        num_key_value_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        max_position_embeddings=context,
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
        rope_scaling=RopeScaling(
            kind,
            float(rope.get("factor", 1.0)),
            float(rope.get("low_freq_factor", 1.0)),
            float(rope.get("high_freq_factor", 4.0)),
            int(rope.get("original_max_position_embeddings", context)),
        ),
        hidden_act=activation,
        qkv_bias=bool(raw.get("attention_bias", False)),
        o_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
    )


FAMILIES: dict[str, Family] = {"llama": Family(_llama_config, LLAMA_NAMES)}


def locate(source: str | Path) -> Path:
    """The directory of a checkpoint: a local one, or a hub id fetched (safetensors and JSON only) into the hub's cache."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    text = str(source)
    if path.exists() or text.count("/") != 1 or text.startswith((".", "/", "~")):
        raise ModelError(f"{source} is not a directory; give a Hugging Face checkpoint directory or a hub id (owner/name)")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(text, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:  # the hub client raises many kinds; the sentence is the same
        raise ModelError(
            f"{source} is neither a directory here nor a model that the hub gives: {type(error).__name__}; "
            "check the path, or the hub id and the network"
        ) from error


def read_config(directory: Path) -> dict[str, Any]:
    """config.json as a dictionary."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelError(f"{directory} has no config.json; give a Hugging Face checkpoint directory")
    try:
        raw = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return raw


def end_tokens(directory: Path) -> frozenset[int]:
    """Ids that end a text: generation_config.json's eos_token_id, else config.json's."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.is_file():
            ids = json.loads(path.read_text("utf-8")).get("eos_token_id")
            if ids is not None:
                return frozenset(ids if isinstance(ids, list) else [ids])
    return frozenset()


def load(source: str | Path, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu") -> Decoder:
    """A decoder from a directory or hub id, ready for inference, in the given dtype on the given device."""
    directory = locate(source)
    raw = read_config(directory)
    kind = str(raw.get("model_type", ""))
    if kind not in FAMILIES:
        raise ModelError(f"{directory}: architecture {kind or 'unnamed'!r} is not supported" + did_you_mean(kind, FAMILIES))
    family = FAMILIES[kind]
    config = family.config(raw)
    wanted = dtype if isinstance(dtype, torch.dtype) else DTYPES.get(dtype)
    if wanted is None:
        raise ModelError(f"dtype {dtype!r} is unknown" + did_you_mean(str(dtype), DTYPES))
    with torch.device("meta"):
        model = Decoder(config)
    with ExitStack() as stack:
        tensors = _Tensors(directory, stack)
        if not config.tie_word_embeddings and "lm_head.weight" not in tensors.place:
            raise ModelError(
                f"{directory}: tensor lm_head.weight is missing; set tie_word_embeddings in config.json if the head is tied"
            )
        state = {}
        for name, parameter in model.named_parameters():
            state[name] = _assemble(tensors, family, name, parameter.shape).to(device=device, dtype=wanted)
    if config.tie_word_embeddings:
        state["head.weight"] = state["embed.weight"]
    model.load_state_dict(state, assign=True)
    if config.tie_word_embeddings:
        model.head.weight = model.embed.weight
    cos, sin = rotary_table(config)
    model.cos, model.sin = cos.to(device, wanted), sin.to(device, wanted)
    return model.eval().requires_grad_(False)


class _Tensors:
    """The tensors of all safetensors files of a directory, opened lazily."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            pickled = [*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")]
            hint = " (pickled weights are never loaded: convert them to safetensors)" if pickled else ""
            raise ModelError(f"{directory} has no .safetensors file{hint}")
        index = directory / "model.safetensors.index.json"
        if index.is_file():
            missing = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()) - {f.name for f in files})
            if missing:
                raise ModelError(f"{directory}: the index names {missing[0]}, which is not there; fetch the missing file")
        self.place: dict[str, tuple[Any, Path]] = {}
        for path in files:
            try:
                handle = stack.enter_context(safe_open(str(path), "pt"))
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} is damaged or truncated ({error}); fetch it again") from error
            for name in handle.keys():  # noqa: SIM118 - not a dictionary
                self.place[name] = (handle, path)
        self.directory = directory

    def get(self, name: str) -> tuple[Tensor, Path]:
        if name not in self.place:
            raise ModelError(f"{self.directory}: tensor {name} is missing from the checkpoint")
        handle, path = self.place[name]
        return handle.get_tensor(name), path


def _assemble(tensors: _Tensors, family: Family, name: str, shape: torch.Size) -> Tensor:
    """One parameter from its tensors, concatenated; shapes are checked."""
    layer, pattern = "", name
    if name.startswith("layers."):
        layer = name.split(".")[1]
        pattern = name.replace(f"layers.{layer}.", "layers.{i}.", 1)
    parts, path = [], tensors.directory
    for source in family.names[pattern]:
        part, path = tensors.get(source.format(i=layer))
        parts.append(part)
    made = parts[0] if len(parts) == 1 else torch.cat(parts)
    if made.shape != shape:
        raise ModelError(
            f"{path}: tensor {family.names[pattern][0].format(i=layer)} gives shape {list(made.shape)} "
            f"where config.json asks for {list(shape)}"
        )
    return made


def save(model: Decoder, directory: Path, dtype: torch.dtype | None = None, **extra: Any) -> None:
    """Write a decoder as a Hugging Face directory of the Llama family; `extra` goes into config.json."""
    c = model.config
    directory.mkdir(parents=True, exist_ok=True)
    rope: dict[str, Any] = {"rope_theta": c.rope_theta, "rope_type": c.rope_scaling.kind}
    if c.rope_scaling.kind != "default":
        rope["factor"] = c.rope_scaling.factor
    if c.rope_scaling.kind == "llama3":
        rope["low_freq_factor"] = c.rope_scaling.low_freq_factor
        rope["high_freq_factor"] = c.rope_scaling.high_freq_factor
        rope["original_max_position_embeddings"] = c.rope_scaling.original_context
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": c.max_position_embeddings,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_parameters": rope,
        "hidden_act": c.hidden_act,
        "attention_bias": c.qkv_bias,
        "mlp_bias": c.mlp_bias,
        "tie_word_embeddings": c.tie_word_embeddings,
        "dtype": str(dtype or model.dtype).removeprefix("torch."),
        **extra,
    }
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n", "utf-8")
    sizes = {
        "q": c.num_attention_heads * c.head_dim,
        "k": c.num_key_value_heads * c.head_dim,
        "v": c.num_key_value_heads * c.head_dim,
    }
    out: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        layer = name.split(".")[1] if name.startswith("layers.") else ""
        pattern = name.replace(f"layers.{layer}.", "layers.{i}.", 1) if layer else name
        sources = [source.format(i=layer) for source in LLAMA_NAMES[pattern]]
        lengths = list(sizes.values()) if len(sources) == 3 else [parameter.shape[0] // len(sources)] * len(sources)
        for source, part in zip(sources, parameter.detach().split(lengths), strict=True):
            out[source] = part.to("cpu", dtype or model.dtype).clone().contiguous()
    save_file(out, directory / "model.safetensors", metadata={"format": "pt"})
