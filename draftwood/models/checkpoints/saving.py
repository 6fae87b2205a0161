"""Writes decoders of the Llama family as Hugging Face directories, parameter by parameter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.checkpoints.families.table import FAMILIES
from draftwood.models.checkpoints.files import write_tensors
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig

SHARD_BYTES = 2 * 10**9
SAME_KEYS = [  # knobs that are called in config.json what they are called here
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "hidden_act", "mlp_bias"),
    "tie_word_embeddings",
]

Parameters: TypeAlias = Iterable[tuple[str, torch.Size, Callable[[torch.dtype], Tensor]]]  # name, shape, maker


def save(model: Decoder, directory: Path, stored: torch.dtype | None = None, **extra: Any) -> None:
    """Write a decoder; `extra` are more keys of config.json. ModelError where it is not of the Llama family."""
    model.must_be_plain("saved")
    kept = stored or model.dtype
    known = {"tie_word_embeddings": model.head.weight is model.embed.weight, "dtype": str(kept).removeprefix("torch.")}
    document = config_json(model.config) | known | extra

    def maker(parameter: Tensor) -> Callable[[torch.dtype], Tensor]:
        return lambda dtype: parameter.detach().to("cpu", dtype)

    parameters = [(name, parameter.shape, maker(parameter)) for name, parameter in model.named_parameters()]
    write(directory, parameters, model.config, kept, document)


def config_json(config: DecoderConfig) -> dict[str, Any]:
    """config.json of a model of the Llama family; ModelError for any other."""
    c, scaling = config, config.rope_scaling
    if c.qkv_bias != c.o_bias:
        raise ModelError(
            "the Llama family has biases in all of q, k, v and o or in none; this model cannot be saved as one"
        )
    rope: dict[str, Any] = {"rope_theta": c.rope_theta, "rope_type": scaling.kind}
    if scaling.kind != "default":
        rope["factor"] = scaling.factor
    if scaling.kind == "llama3":
        rope["low_freq_factor"], rope["high_freq_factor"] = scaling.low_freq_factor, scaling.high_freq_factor
        rope["original_max_position_embeddings"] = scaling.original_context
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{name: getattr(c, name) for name in SAME_KEYS},
    }
    raw |= {"rope_parameters": rope, "attention_bias": c.qkv_bias}
    read = FAMILIES["llama"].config(raw)
    if read != c:
        knobs = ", ".join(key.name for key in fields(c) if getattr(c, key.name) != getattr(read, key.name))
        raise ModelError(f"the Llama family has no word for this model's {knobs}; it cannot be saved as one")
    return raw


def write(
    directory: Path,
    parameters: Parameters,
    config: DecoderConfig,
    dtype: torch.dtype,
    document: dict[str, Any],
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Make and write parameters in shards of `SHARD_BYTES`, then `document` as config.json.

    `advance` hears how many weights were made. What was written is removed when the writing fails.
    """
    written: list[Path] = []
    existed = directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_shards(directory, list(parameters), config, dtype, written, advance)
        written.append(directory / "config.json")  # last: without it nothing loads what is unfinished
        written[-1].write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        if not existed:
            with suppress(OSError):
                directory.rmdir()
        raise


def _write_shards(
    directory: Path,
    parameters: list[tuple[str, torch.Size, Callable[[torch.dtype], Tensor]]],
    config: DecoderConfig,
    dtype: torch.dtype,
    written: list[Path],
    advance: Callable[[int], None],
) -> None:
    """Write parameters to files of SHARD_BYTES at most, and an index of several files as Hugging Face has it."""
    shards: list[list[Any]] = []
    room = 0
    for parameter in parameters:
        size = parameter[1].numel() * dtype.itemsize
        if size > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(parameter)
        room -= size
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors: dict[str, Tensor] = {}
        for name, shape, make in shard:
            for part, tensor in _named_parts(name, make(dtype), config):
                tensors[part], weight_map[part] = tensor.clone(), file
            advance(shape.numel())
        written.append(directory / file)
        write_tensors(written[-1], tensors, {"format": "pt"})
    if len(shards) > 1:
        total = sum(shape.numel() for _, shape, _ in parameters) * dtype.itemsize
        written.append(directory / "model.safetensors.index.json")
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        written[-1].write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _named_parts(name: str, tensor: Tensor, config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a parameter, with their names in the Llama family."""
    layer = name.split(".")[1] if name.startswith("layers.") else ""
    names = FAMILIES["llama"].names[name.replace(f"layers.{layer}.", "layers.{i}.", 1) if layer else name]
    lengths = [tensor.shape[0] // len(names)] * len(names)
    if len(names) == 3:
        heads = config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads
        lengths = [count * config.head_dim for count in heads]
    for part, piece in zip(names, torch.split(tensor, lengths), strict=True):
        yield part.format(i=layer), piece
