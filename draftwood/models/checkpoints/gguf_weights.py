"""GGUF files as Hugging Face checkpoints: metadata as config.json, tensors under the family's names."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.backend.native import StoredRows
from draftwood.models.checkpoints import gguf_experts, gguf_file, gguf_parts
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import Family
from draftwood.models.checkpoints.families.table import FAMILIES
from draftwood.models.checkpoints.gguf_architectures import ARCHITECTURES
from draftwood.models.checkpoints.safetensors_weights import sliced
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.rotary import RopeDivisors
from draftwood.util.safe_parsing import short_repr

EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")  # names of one number
HARMLESS_KEYS = (  # keys that say nothing about the computation, or what other keys say
    *("vocab_size", "tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned"),
    *("attention.layer_norm_epsilon", "expert_used_count", "nextn_predict_layers"),
    *("rope.dimension_sections", "n_deepstack_layers"),  # of images
)
ATTENTION_SIZES = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")  # 0 without attention
SHORT_TRAINED = ("yarn", "longrope")  # rotary scalings that go by the context before them
LAYER = re.compile(r"\.(\{i\}|\d+)\.")  # in a checkpoint's names
HEAD_NORM = re.compile(r"\.norms\.(\d+)\.weight$")  # of one head; those of all are rows of one tensor
ONE_OUTPUT = ".ffn_gate_inp_shexp.weight"  # a matrix whose one row is written as a vector
DECAYS = ".ssm_a"  # minus the exponentials of a checkpoint's numbers
VECTORS = (DECAYS, ".ssm_d", ".ssm_norm.weight")  # which are written as matrices
KEYS_OF_LATENT, VALUES_OF_LATENT = ".attn_k_b.weight", ".attn_v_b.weight"  # a matrix of each head; keys' turned round
CONVOLUTIONS = (".ssm_conv1d.weight", ".shortconv.conv.weight")  # which lack the axis of one input
CHUNK_WEIGHTS = 1 << 18  # weights that are dequantised at once, in the caches


class GgufWeights:
    """The tensors of a file under its own names, with the values and order of rows that the family's decoder has."""

    config_source = "its metadata"  # what tells the model's shape

    def __init__(self, path: Path) -> None:
        self.source, self.file = path, gguf_parts.opened(path)
        self.architecture = str(self.file.metadata.get("general.architecture"))
        self._asked: set[str] = set()  # keys of the architecture that were read

    def described(self) -> tuple[Raw, Family, DecoderConfig]:
        """The metadata as config.json would say it, the family with the file's tensor names, the decoder's shape."""
        purpose = self.file.metadata.get("general.type", "model")
        if purpose != "model":
            raise ModelError(
                f"{self.source} holds a part for a model ({short_repr(purpose)}), and no model; give the model"
            )
        architecture = ARCHITECTURES.get(self.architecture)
        if architecture is None:
            raise ModelError(
                f"{self.source}: architecture {short_repr(self.architecture)} is not supported "
                f"({', '.join(sorted(ARCHITECTURES))} are); give a model of one of these"
            )
        shape = self._shape()
        raw = {"model_type": architecture.family, **shape, "rope_parameters": self._rope(shape["head_dim"])}
        try:
            raw |= architecture.read(self, raw)
            family = FAMILIES[raw["model_type"]]
            config = family.config(raw)
            family = family.named(raw, config)
        except ModelError as error:
            raise ModelError(f"{self.source}: {error}") from None
        self._check_unread()
        if self.has("rope_freqs.weight") and "rope_type" in raw["rope_parameters"]:
            config = replace(config, rope_scaling=self._divisors((config.rotary_dim or config.head_dim) // 2))
        names = {key: tuple(map(self._name, names)) for key, names in family.names.items()}
        family = replace(family, names=gguf_experts.stacked(self, names))
        return raw, architecture.adapt(self, family), config

    def _name(self, name: str) -> str:
        """The file's name for a checkpoint's tensor; what the architecture does not know keeps its name."""
        name, *number = HEAD_NORM.sub(r".weight[\1]", name).partition("[")
        asked = LAYER.sub(".0.", name, 1).replace("_correction_bias", "_correction.bias")
        asked, layer = asked.replace("dt_bias", "dt_proj.bias"), LAYER.search(name)
        asked += {"sinks": ".weight", "expert_bias": ".bias"}.get(asked.rpartition(".")[2], "")
        table = _name_map(ARCHITECTURES[self.architecture].names or self.architecture)
        known = (table.get_name(each, (".weight", ".bias")) for each in spellings(asked))
        own = next(filter(None, known), name)
        row = "" if name.endswith("_correction_bias") else "".join(number)  # those are a vector in files
        return own.replace("blk.0.", f"blk.{layer[1]}." if layer else "blk.0.") + row

    def array(self, key: str) -> list[Any]:
        """The values of an array of the metadata; none where there is none."""
        return self.file.array(self._asking(key))

    def value(self, key: str, default: Any = None) -> Any:
        """A value of the metadata; an array of equal values, one for each layer, is one."""
        name = self._asking(key)
        value = self.file.metadata.get(name, default)
        if isinstance(value, gguf_file.MetadataArray):
            values = self.file.array(name)
            if len(set(values)) > 1:
                raise ModelError(
                    f"{self.source}: {name} differs from layer to layer ({short_repr(values)}), which is not "
                    "supported; give a model whose layers are alike"
                )
            return values[0] if values else default
        return value

    def _asking(self, key: str) -> str:
        """A key with the name of the architecture; it is noted as read."""
        self._asked.add(name := f"{self.architecture}.{key}")
        return name

    def _check_unread(self) -> None:
        """Raise a ModelError for a key of the architecture that says something and that nobody has read."""
        context = self.value("context_length")
        for name, value in self.file.metadata.items():
            if not name.startswith(f"{self.architecture}.") or name in self._asked:
                continue
            key = name.removeprefix(f"{self.architecture}.")
            neutral = (0, "", "none", *((1,) if key.endswith(("factor", "scale", "alpha")) else ()))
            wide = key == "attention.sliding_window" and type(value) is int and value >= context
            if key not in HARMLESS_KEYS and value not in neutral and not wide:
                raise ModelError(
                    f"{self.source}: {name} is {short_repr(value)}, which this architecture's decoder has no part for; "
                    "give a file that llama.cpp's own converter made, or another model"
                )

    def _present(self, key: str, default: int | None = None) -> int:
        """A positive whole number; of an array of a hybrid's layers that of those which have one, others have 0."""
        values, architecture = self.array(key), ARCHITECTURES[self.architecture]
        some = {value for value in values if value}
        if not architecture.attends and key in ATTENTION_SIZES:
            return 1
        if values and architecture.by_layer:
            return self._checked(key, values[0])
        hybrid = architecture.hybrid and len(some) == 1
        return self._checked(key, some.pop() if hybrid else self.value(key, default))

    def _whole(self, key: str, default: int | None = None) -> int:
        return self._checked(key, self.value(key, default))

    def _checked(self, key: str, value: Any) -> int:
        if type(value) is not int or not 0 < value < 2**31:
            raise ModelError(
                f"{self.source}: {self.architecture}.{key} is {'missing' if value is None else short_repr(value)}, but "
                "must be a positive whole number; convert the model again"
            )
        return value

    def _shape(self) -> Raw:
        layers, heads, width = map(self._present, ("block_count", "attention.head_count", "embedding_length"))
        if layers > len(self.file.tensors):
            raise ModelError(
                f"{self.source} asks for {layers} layers, but has {len(self.file.tensors)} tensors; fetch it again"
            )
        head = self._whole("attention.key_length", max(1, width // heads))
        latent = self.value("attention.kv_lora_rank")  # with sizes of its own
        if (values := self._whole("attention.value_length", head)) != head and not latent:
            raise ModelError(
                f"{self.source} has keys of {head} and values of {values} components (attention.key_length and "
                "value_length), which is not supported; give a model where they are alike"
            )
        if self.value("attention.causal", True) is not True:
            raise ModelError(f"{self.source}: attention.causal is false, so it cannot write; give a causal model")
        return {
            "vocab_size": self.shape("token_embd.weight")[0][0],
            "hidden_size": width,
            "intermediate_size": self._present("feed_forward_length", self.value("expert_feed_forward_length")),
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": self._present("attention.head_count_kv", heads),
            "head_dim": head,
            "max_position_embeddings": self._whole("context_length"),
            **dict.fromkeys(EPSILONS, self._epsilon()),
            "tie_word_embeddings": not self.has("output.weight"),
            "attention_bias": self.has("blk.0.attn_q.bias") or self.has("blk.0.attn_qkv.bias"),
            "mlp_bias": self.has("blk.0.ffn_down.bias"),
        }

    def _epsilon(self) -> float:
        """The epsilon of the norms, which must be in the file: a family's default would be a guess."""
        epsilon = self.value("attention.layer_norm_rms_epsilon", self.value("attention.layer_norm_epsilon"))
        if epsilon is None:
            raise ModelError(
                f"{self.source}: {self.architecture}.attention.layer_norm_rms_epsilon is missing; fetch the file, or "
                "convert the model, again"
            )
        return epsilon  # type: ignore[no-any-return]  # what it is, is checked with the others

    def _rope(self, head_dim: int) -> Raw:
        """Base and scaling of rotary positions, as config.json would have them."""
        factor = self.value("rope.scaling.factor", self.value("rope.scale_linear"))
        scaling = self.value("rope.scaling.type", "linear")
        if scaling == "none" or (scaling == "linear" and factor in (None, 0, 1)):
            scaling = "default"
        rope = {"rope_theta": self.value("rope.freq_base", 10000.0), "rope_type": scaling, "factor": factor}
        magnitude = self.value("rope.scaling.attn_factor", 1.0)
        original = self.value("rope.scaling.original_context_length", self.value("context_length"))
        if self.has("rope_factors_long.weight"):
            rope |= {"rope_type": "longrope", "attention_factor": magnitude}
            rope |= {f"{kind}_factor": self.vector(f"rope_factors_{kind}.weight") for kind in ("short", "long")}
        elif scaling == "yarn":  # llama.cpp: ggml_rope_yarn and llama_context
            overall = self.value("rope.scaling.yarn_log_multiplier", 0.0)  # of "mscale_all_dim"
            if not all(isinstance(number, float) and number >= 0 for number in (factor, overall)):
                raise ModelError(
                    f"{self.source}: rope.scaling.factor is {short_repr(factor)} and yarn_log_multiplier "
                    f"{short_repr(overall)}; convert the model again"
                )
            growth = 0.1 * math.log(max(1.0, factor))
            rope["attention_factor"] = magnitude * (1 + growth) / (1 + overall * growth)
            rope |= {key: self.value(f"rope.scaling.yarn_{key}") for key in ("beta_fast", "beta_slow")}
        if rope["rope_type"] in SHORT_TRAINED:
            rope["original_max_position_embeddings"] = original
        rotated = self._whole("rope.dimension_count", head_dim)
        if rotated != head_dim:
            rope["partial_rotary_factor"] = (rotated + 0.5) / head_dim  # it is rounded down
        return rope

    def _divisors(self, count: int) -> RopeDivisors:
        """Divisors of the rotary frequencies, which is how the scaling of Llama 3.1 is written."""
        (length, *more), _ = self.shape("rope_freqs.weight")
        if length != count or more:
            raise ModelError(f"{self.source}: tensor rope_freqs.weight does not fit the heads; convert the model again")
        return RopeDivisors(divisors=tuple(self.vector("rope_freqs.weight")))

    def vector(self, name: str) -> list[float]:
        """The numbers of a tensor of one dimension."""
        (count, *_), _ = self.shape(name)
        values = torch.empty(count)
        self.fill(name, values, slice(0, count), slice(None))
        numbers: list[float] = values.tolist()
        return numbers

    def names(self) -> list[str]:
        return list(self.file.tensors)

    def has(self, name: str) -> bool:
        return sliced(name)[0] in self.file.tensors or self._number(name) is not None

    def _number(self, name: str) -> float | None:
        """The value of "KEY[3]" for layer 3, where the metadata have a key KEY without an architecture; else None."""
        key, layer = sliced(name)
        value = None if layer is None else self.file.metadata.get(key)
        if isinstance(value, gguf_file.MetadataArray):
            values = self.file.array(key)
            value = values[layer] if layer is not None and layer < len(values) else None
        return value if isinstance(value, float) else None

    def dtype(self) -> str:
        """The dtype, in PyTorch's words, that most of the matrices are stored in; bfloat16 where that is quantised."""
        return str(gguf_file.PLAIN_TYPES.get(self.types()[0], torch.bfloat16)).removeprefix("torch.")

    def types(self) -> list[str]:
        """The types of the matrices, the one with the most bytes first."""
        sizes: Counter[str] = Counter()
        for entry in self.file.tensors.values():
            sizes[entry.kind] += entry.size if len(entry.shape) > 1 else 0
        return [kind for kind, size in sizes.most_common() if size]

    def shape(self, name: str) -> tuple[list[int], Path]:
        """Shape and file of a tensor that must be there."""
        if self._number(name) is not None:
            return [1], self.source
        name, number = sliced(name)
        if name not in self.file.tensors:
            raise ModelError(f"{self.source}: tensor {name} is missing; fetch the file, or convert the model, again")
        entry = self.file.tensors[name]
        shape = list(entry.shape)[number is not None :]
        if name.endswith(VECTORS):
            shape = [math.prod(shape)]
        if name.endswith(KEYS_OF_LATENT):
            shape = [shape[0] * shape[2], shape[1]]
        if name.endswith(VALUES_OF_LATENT):
            shape = [shape[0] * shape[1], shape[2]]
        if name.endswith(CONVOLUTIONS):
            shape = [shape[0], 1, *shape[1:]]
        return [1, *shape] if name.endswith(ONE_OUTPUT) else shape, entry.file

    def fill(self, name: str, place: Tensor, rows: slice, columns: slice) -> None:
        """Dequantise some rows of a tensor, and of a matrix some columns, a few rows at a time, into their place."""
        if (number := self._number(name)) is not None:
            place.fill_(number)
            return
        entry, order = self.file.tensors[sliced(name)[0]], self._order(name)
        if name.endswith(KEYS_OF_LATENT):
            heads = gguf_file.weights(self._rows(name), entry.kind).view(entry.shape)
            place.copy_(heads.mT.flatten(0, 1)[rows, columns])
            return
        if len(self.shape(name)[0]) == 1:
            values = self._settled(name, gguf_file.weights(self._rows(name), entry.kind).flatten().float())
            place.copy_((values if order is None else values[order])[rows])
            return
        stored = self._rows(name)[rows if order is None else order[rows]]
        step = max(1, CHUNK_WEIGHTS // entry.shape[-1])
        for first in range(0, len(stored), step):
            some = slice(first, first + step)
            part = gguf_file.weights(stored[some], entry.kind)[:, columns]
            place[some].copy_(part.view(len(part), 1, -1) if place.ndim == 3 else part)

    def _settled(self, name: str, values: Tensor) -> Tensor:
        """A vector as the family's checkpoints have it."""
        if name.endswith(DECAYS):
            if not (values < 0).all():
                raise ModelError(f"{self.source} is damaged (tensor {name} must be negative); fetch it again")
            return (-values).log()
        offset = ARCHITECTURES[self.architecture].offset_norms and not name.endswith(VECTORS)
        return values - 1 if offset and name.endswith("norm.weight") else values

    def stored(self, name: str) -> StoredRows | None:
        """The outputs of a matrix as the file holds them, mapped; None where its blocks go along outputs."""
        if name.endswith(KEYS_OF_LATENT):
            return None
        entry = self.file.tensors[sliced(name)[0]]
        number = int(gguf_file.library().GGMLQuantizationType[entry.kind])
        return StoredRows(entry.kind, number, entry.shape[-1], self._rows(name), self._order(name), True)

    def _rows(self, name: str) -> gguf_file.Bytes:
        """The bytes of a tensor's rows; of a stack's tensor its own."""
        whole, number = sliced(name)
        count = math.prod(self.shape(name)[0][:-1])
        return self.file.rows(whole, slice(None) if number is None else slice(number * count, (number + 1) * count))

    def _order(self, name: str) -> np.ndarray[Any, Any] | None:
        """For each row of a tensor the file's row, or None: llama.cpp rotates neighbouring components, Llama halves."""
        heads = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}.get(name.split(".")[-2])
        if not ARCHITECTURES[self.architecture].turned_pairs or heads is None:
            return None
        count, rows = self._present(heads, self._whole("attention.head_count")), self.file.tensors[name].shape[0]
        return np.arange(rows).reshape(count, -1, 2).swapaxes(1, 2).reshape(-1)


def spellings(name: str) -> tuple[str, str]:
    """A checkpoint's name of a tensor as the format's table may have it: BLOOM's lack their first word there."""
    return name, name.removeprefix("transformer.")


@lru_cache(8)
def _name_map(architecture: str) -> Any:
    library = gguf_file.library()
    kinds = {name: kind for kind, name in library.MODEL_ARCH_NAMES.items()}
    return library.get_tensor_name_map(kinds[architecture], 1)
