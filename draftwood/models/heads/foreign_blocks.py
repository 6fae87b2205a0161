"""Block drafters as others publish them: DFlash in the layouts of `speculators` and of its authors, DSpark.

DSpark's confidence head is not read: depth controllers end drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.checkpoints.checkpoint import read_config
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import layer_windows, sliding_window
from draftwood.models.checkpoints.families.table import FAMILIES
from draftwood.models.checkpoints.tensor_names import DFLASH
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.heads.block_head import BlockMask
from draftwood.models.heads.dflash_head import DFlashHead, usual_reads
from draftwood.models.heads.eagle_head import check_reads
from draftwood.models.heads.eagle_head import usual_reads as speculators_reads
from draftwood.models.heads.foreign_heads import (
    LAYER_TYPES,
    MAX_BLOCK,
    known_words,
    layer_ids,
    mask_embedding,
    nested,
    parameters_of,
    read_tensors,
)
from draftwood.models.heads.markov_head import MarkovHead
from draftwood.util.safe_parsing import short_repr

WINDOW_KEYS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "is_causal")
SCALES = ("output_multiplier", "final_logit_softcapping")  # of logits
OWN_KEYS = {  # of `dflash_config`, beside what its authors' older files have at the top
    *("block_size", "target_layer_ids", "mask_token_id"),
    *("input_embedding_scale", "output_multiplier", "final_logit_softcapping"),
}


def dflash(directory: Path, target: Decoder) -> tuple[DFlashHead, dict[str, Tensor]]:
    """A DFlash head of a directory: without weights, and these by the names of its parameters.

    In `speculators`' layout config.json has the layers' own under transformer_layer_config, layer ids are numbers of
    layers behind which the target is read, and windows count from the anchor. In that of its authors config.json is the
    layers', with more under dflash_config; layer ids count from 0, and windows from each row. Raises ModelError for
    what is not of this target, and for what is not known.
    """
    raw = read_config(directory)
    try:
        return _read(directory, raw, target)
    except ModelError as error:
        if str(directory) in str(error):
            raise
        raise ModelError(f"{directory / 'config.json'}: {error}") from None


def _read(directory: Path, raw: Raw, target: Decoder) -> tuple[DFlashHead, dict[str, Tensor]]:
    ours = raw.get("speculators_model_type") is not None
    own = raw if ours else _authors(raw)
    layer = raw.get("transformer_layer_config") if ours else raw
    if not isinstance(layer, dict) or layer.get("model_type", "qwen3") not in LAYER_TYPES:
        kind = layer.get("model_type") if isinstance(layer, dict) else None
        raise ModelError(
            f"a DFlash head of {short_repr(kind)} layers is not supported; {' and '.join(LAYER_TYPES)} are"
        )
    full = _config(layer)
    width, tensors = target.config.hidden_size, read_tensors(directory)
    words = known_words(directory, own if ours else {}, tensors, full.vocab_size, target)
    if full.hidden_size != width:
        raise ModelError(
            f"{directory} was made for a target {full.hidden_size} wide, but this one is {width} wide; give a head of "
            "this target"
        )
    scale, cap = (keys.positive_number(own, key, None) if own.get(key) else None for key in SCALES)
    config = replace(full, logit_scale=scale or 1.0, logit_softcap=cap)
    if words is not None and (last := int(words.max())) >= target.vocab_size:
        raise ModelError(
            f"{directory} drafts token {last}, but this target has {target.vocab_size}; give a head of this target"
        )
    # a smaller vocabulary has a head of its own; else it is the target's, whose padding may differ
    config = replace(config, vocab_size=target.vocab_size if words is None else len(words))
    reads = _reads(raw, own, target, config.num_hidden_layers)
    check_reads(reads, target)
    block = keys.positive_int(own, "block_size", 8 if ours else 16, MAX_BLOCK)
    spark = own.get("speculators_model_type") == "dspark"
    first = 0 if ours and keys.flag(own, "sample_from_anchor", spark) else 1
    if block <= first:
        raise ModelError(f"block_size is {block}, but must be 2 to {MAX_BLOCK}")
    embedding_scale = keys.positive_number(own, "input_embedding_scale", 1.0)
    masks = _masks(layer, config.num_hidden_layers, own if ours else None)
    whose = fingerprint(target)
    with torch.device("meta"):
        made = DFlashHead(config, reads, target, block, first, masks, embedding_scale, whose)
        if spark:
            made.markov = _markov(own, full.vocab_size, config)
    made.words = words
    tensors = {name: part for name, part in tensors.items() if not (spark and name.startswith("confidence_head."))}
    for name in ("embed_tokens.weight", *(["lm_head.weight"] if words is None else [])):
        tensors.pop(name, None)  # the target's
    tensors["mask"] = mask_embedding(own, target) * embedding_scale
    if words is None:
        made.decoder.head = torch.nn.Identity()
    state = parameters_of(made, tensors, DFLASH, directory, width)
    if words is None:
        made.decoder.head = target.head
    return made, state


def _markov(own: Raw, vocabulary: int, config: DecoderConfig) -> MarkovHead | None:
    """The sequential head of DSpark; None where it has none. ModelError for a kind that is not read."""
    kind = own.get("markov_head_type") or "vanilla"
    if kind not in ("vanilla", "gated"):
        raise ModelError(
            f"a DSpark head of markov_head_type {short_repr(kind)} is not read; vanilla and gated are: use one of "
            "these, or another draft"
        )
    rank = keys.whole_number(own, "markov_rank", 256)
    if not rank:
        return None
    return MarkovHead(vocabulary, config.vocab_size, rank, config.hidden_size, kind == "gated")


def _authors(raw: Raw) -> Raw:
    """The settings of a block in the layout of DFlash's authors. ModelError for one that is not known."""
    own = nested(raw, "dflash_config")
    unknown = next((key for key in own if key not in OWN_KEYS), None)
    if unknown is not None:
        raise ModelError(f"dflash_config has {short_repr(unknown)}, which is not known; DFlash alone is read")
    return {**raw, **own}


def _config(layer: Mapping[str, Any]) -> DecoderConfig:
    """The config of the layers, without windows: queries and keys have norms whatever their family."""
    plain = {key: value for key, value in layer.items() if key not in WINDOW_KEYS}
    config = FAMILIES[str(layer.get("model_type", "qwen3"))].config(plain)
    return replace(config, qk_norm="one", tie_word_embeddings=False)


def _reads(raw: Raw, own: Raw, target: Decoder, layers: int) -> tuple[int, ...]:
    """The numbers of layers after which the target is read."""
    ours = raw is own
    key = "aux_hidden_state_layer_ids" if ours else "target_layer_ids"
    ids = layer_ids(own, key)
    if not ids:
        return speculators_reads(target.n_layers) if ours else usual_reads(target.n_layers, layers)
    return tuple(one if ours else one + 1 for one in ids)


def _masks(layer: Raw, layers: int, speculators: Raw | None) -> tuple[BlockMask, ...]:
    """The mask of each layer; `speculators`: the settings of that layout, None in that of DFlash's authors."""
    qwen = layer.get("model_type", "qwen3") == "qwen3"
    window = sliding_window(layer, None)
    types = layer.get("layer_types")
    if types is None and qwen and keys.flag(layer, "use_sliding_window", False):
        last = keys.whole_number(layer, "max_window_layers", 28)
        types = ["sliding_attention" if n >= last and window else "full_attention" for n in range(layers)]
    if types is None:
        types = ["full_attention"] * layers
    slides = [width > 0 for width in layer_windows({"layer_types": types}, layers, 1, lambda _: False)]
    if qwen and not keys.flag(layer, "use_sliding_window", False):
        window = 0  # as transformers reads it
    if speculators is not None:
        causal = bool(window) and not keys.flag(speculators, "sliding_window_non_causal", False)
        sliding = BlockMask(causal, window or None, from_anchor=True)
        return tuple(sliding if slide else BlockMask() for slide in slides)
    always = layer.get("is_causal")
    if always is not None and not isinstance(always, bool):
        raise ModelError(f"is_causal is {short_repr(always)}, but must be true or false")
    return tuple(
        BlockMask(slide if always is None else always, (window or None) if slide else None) for slide in slides
    )
