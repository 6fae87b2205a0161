"""Compares the tensors that a checkpoint holds with those that its family reads, before any of them is read.

A tensor that nobody reads means that the logits would be others than the author's, so it is refused, unless it is
known not to matter.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TypeAlias

import torch

from draftwood.errors import ModelError
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families import wrappers
from draftwood.models.checkpoints.families.family import Family
from draftwood.models.checkpoints.gguf_weights import GgufWeights
from draftwood.models.checkpoints.mxfp4_weights import Mxfp4Safetensors
from draftwood.models.checkpoints.safetensors_weights import Safetensors, sliced
from draftwood.models.checkpoints.tensor_names import EMBED_WEIGHT, HEAD_WEIGHT, UNREAD, Names
from draftwood.models.decoder_config import DecoderConfig

Tensors: TypeAlias = Safetensors | GgufWeights

# what older versions saved beside the weights and computes nothing that the config does not say; heads of other tasks
HARMLESS_TENSORS = re.compile(
    r"(.*\.)?(rotary_emb\..*|(attn|attention)\.(masked_)?bias)|rope_(freqs|factors_long|factors_short)\.weight|(v_head|mtp)\..*"
)
ADAPTER_TENSORS = re.compile(r"\.lora_|\.adapter|\.dora_")
EXPERTS = re.compile(r"(.*\.experts)(\.\{e\}\.(gate|down)_proj\.weight|\.\w+_proj\[\{e\}\])")
QUANTISED_TENSORS = re.compile(r"(scales?|zeros|g_idx|absmax|_scale_inv)$")


def as_stored(tensors: Tensors, family: Family, raw: Raw, config: DecoderConfig) -> tuple[Family, DecoderConfig]:
    """Adapt the family to the tensor names of a checkpoint, and the config to whether it has a head of its own.

    A head of its own counts, also where the config ties it to the embeddings, unless the two are equal; one of tied
    matrices may be missing. Where the config does not say, a model without a head of its own has a tied one.
    """
    if isinstance(tensors, Mxfp4Safetensors):
        family = replace(family, transposed=frozenset())
    if family.other_parts is not None:
        family = next((f for f in wrappers.placed(family) if tensors.has(f.names["norm"][0])), family)
    bare = family.without_prefix()
    head, present = family.names[HEAD_WEIGHT][0], next((f for f in (family, bare) if _embeds(tensors, f)), None)
    if present is None and config.tie_word_embeddings and tensors.has(head):
        within = {True: family, False: bare}[tensors.has(family.names["norm"][0])]
        return replace(within, names={**within.names, EMBED_WEIGHT: (head,)}), config
    if present is None:
        _no_embeddings(tensors, family)
        return family, config
    if not tensors.has(head):
        if present is family and raw.get("tie_word_embeddings") is None:
            config = replace(config, tie_word_embeddings=True)
        if present is not family and not config.tie_word_embeddings:
            raise ModelError(
                f"{tensors.source} and its tensors are of a base model: there is no {head}, and the embeddings are not "
                "the head (tie_word_embeddings); save the model with its head, by AutoModelForCausalLM"
            )
    elif config.tie_word_embeddings and isinstance(tensors, Safetensors):
        embed, own = (tensors.view(name) for name in (present.names[EMBED_WEIGHT][0], head))
        config = replace(config, tie_word_embeddings=embed.dtype == own.dtype and torch.equal(embed, own))
    return present, config


def experts_as_stored(tensors: Tensors, names: Names, turned: Collection[str] = ()) -> Names:
    """`names` with the experts of a mixture read as the file stores them, by its layer 0.

    Either each expert has tensors of its own, or one tensor has all of them, [experts, out, in]. A published Qwen3.5
    may have one form in its layers and the other in its layer of multi-token prediction, so each calls this for its own
    names. Matrices that the family stores transposed (`turned`) keep their names.
    """
    result = dict(names)
    for name, sources in names.items():
        match = EXPERTS.fullmatch(sources[0]) if sources and name not in turned else None
        if match is None:
            continue
        parts, whole = (("down",), "down_proj") if name.endswith(".down.weight") else (("gate", "up"), "gate_up_proj")
        if tensors.has(f"{match[1]}.{whole}".format(i=0)):
            result[name] = (f"{match[1]}.{whole}[{{e}}]",)
        elif tensors.has(f"{match[1]}.0.{parts[0]}_proj.weight".format(i=0)):
            result[name] = tuple(f"{match[1]}.{{e}}.{part}_proj.weight" for part in parts)
    return result


def _embeds(tensors: Tensors, family: Family) -> bool:
    return tensors.has(family.names[EMBED_WEIGHT][0])


def _no_embeddings(tensors: Tensors, family: Family) -> None:
    """Raise a ModelError that names the embeddings where they have a name that only another program knows."""
    name = family.names[EMBED_WEIGHT][0]
    last = ".".join(name.split(".")[-2:])
    other = next((stored for stored in tensors.names() if stored.endswith(f".{last}")), None)
    if other is not None:
        raise ModelError(
            f"{tensors.source} asks for tensor {name}, but the checkpoint calls it {other}, as parts of larger models "
            "and wrapped ones do; save the language model alone, by AutoModelForCausalLM"
        )


def check_unread(tensors: Tensors, family: Family, layers: int, parameters: Iterable[str]) -> None:
    """Raise ModelError for a tensor of the file that no parameter uses; tensors of layers beyond the last may stay."""
    unread = (key for key in family.names if key.startswith(UNREAD))
    read = {sliced(name)[0] for key in (*parameters, HEAD_WEIGHT, *unread) for name in family.sources(key)}
    before = family.names["layers.{i}.mixer.o.weight"][0].partition("{i}")[0]
    for name in tensors.names():
        number = name.removeprefix(before).partition(".")[0] if name.startswith(before) else ""
        if name in read or HARMLESS_TENSORS.fullmatch(name) or (number.isdecimal() and int(number) >= layers):
            continue
        if family.other_parts is not None and family.other_parts.fullmatch(name):
            continue
        if ADAPTER_TENSORS.search(name):
            fix = "it is of an adapter: merge it into the weights (merge_and_unload of peft) and save the model again"
        elif QUANTISED_TENSORS.search(name):
            fix = "it is of quantised weights: give the checkpoint that they were made from"
        elif name.endswith("bias"):
            keys = "attention_bias, mlp_bias, enable_bias"
            fix = f"correct {tensors.config_source} ({keys}), or give a model of a known family"
        else:
            fix = f"correct {tensors.config_source}, or give a model of a known family as its authors published it"
        raise ModelError(f"{tensors.source} does not ask for tensor {name}, which the checkpoint has; {fix}")
