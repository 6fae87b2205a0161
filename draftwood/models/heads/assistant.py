"""Gemma 4's assistants in checkpoint directories and GGUF files."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.backend.matrix import held_alike
from draftwood.models.backend.native import NativeEmbedding, NativeMatrix
from draftwood.models.base import CausalModel
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.checkpoint import read_config
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.family import Family
from draftwood.models.checkpoints.families.table import FAMILIES
from draftwood.models.checkpoints.gguf_weights import GgufWeights
from draftwood.models.checkpoints.parameters import ParameterReader
from draftwood.models.checkpoints.safetensors_weights import Safetensors
from draftwood.models.checkpoints.stored import Tensors, check_unread
from draftwood.models.checkpoints.tensor_names import EMBED_WEIGHT, HEAD_WEIGHT, UNREAD, Names
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.heads.assistant_head import AssistantHead, shape
from draftwood.models.heads.exit import layered
from draftwood.models.partition import UNSPLIT
from draftwood.util.safe_parsing import short_repr

MODEL_TYPE, ARCHITECTURE, FAMILY = "gemma4_assistant", "gemma4-assistant", "gemma4_text"
NAMES: Names = {
    "fc.weight": ("pre_projection.weight",),
    "post.weight": ("post_projection.weight",),
    "centroids.weight": ("masked_embedding.centroids.weight",),
    "ordering": ("masked_embedding.token_ordering",),
}
GGUF_NAMES: Names = {name: (f"nextn.{NAMES[name][0]}",) for name in ("fc.weight", "post.weight")}
ONLY = {"use_double_wide_mlp": False, "enable_moe_block": False, "hidden_size_per_layer_input": 0}


def load(place: str | Path, target: CausalModel) -> AssistantHead:
    """The assistant of a directory or GGUF file, in the dtype, or the file's bits, and on the device of the target.

    Raises ModelError where it is of another target.
    """
    decoder, source = layered(target), Path(place)
    decoder.must_have_single_rows("drafted for by an assistant")
    if decoder.parallel.size > 1:
        raise ModelError(
            "an assistant cannot draft for a model that is split among processes; leave tensor_parallel out"
        )
    with ExitStack() as stack:
        tensors, raw, family, config = _opened(source, stack)
        made = _sketch(source, decoder, raw, config)
        return _read(made, tensors, _named(tensors, family, made))


def _opened(place: Path, stack: ExitStack) -> tuple[Tensors, Raw, Family, DecoderConfig]:
    """The tensors, the assistant's own config, and that of its decoder as if layers had keys of their own."""
    if place.is_file():
        file = GgufWeights(place)
        return file, *file.described()
    raw = read_config(place)
    text = raw.get("text_config")
    if not isinstance(text, dict):
        raise ModelError(f"{place}: text_config is {short_repr(text)}, but must be an object; fetch config.json again")
    try:
        for key, value in ONLY.items():
            keys.only({key: value, **text}, key, value, None)
        family = FAMILIES[FAMILY]
        text = {**ONLY, **text, "num_kv_shared_layers": 0}
        config = family.config(text)
    except ModelError as error:
        raise ModelError(f"{place / 'config.json'}: {error}") from None
    return Safetensors(place, stack), raw, family.named(text, config), config


def _sketch(place: Path, target: Decoder, raw: Raw, config: DecoderConfig) -> AssistantHead:
    """The assistant without weights; ModelError where the config does not fit the target."""
    width, own = raw.get("backbone_hidden_size", 1536), target.config.hidden_size
    if width != own:
        raise ModelError(
            f"{place} was made for a target {short_repr(width)} wide, but this one is {own} wide; give the assistant "
            "of this target"
        )
    if config.vocab_size != target.vocab_size:
        raise ModelError(
            f"{place} knows {config.vocab_size} tokens, but this target {target.vocab_size}; give the assistant of "
            "this target"
        )
    try:
        clusters = _clusters(raw, config.vocab_size)
        with torch.device("meta"):
            return AssistantHead(shape(config, target), target, clusters)
    except ModelError as error:
        raise ModelError(f"{place}: {error}") from None


def _clusters(raw: Raw, tokens: int) -> tuple[int, int] | None:
    """How many clusters of tokens the head has, and how many are computed; None: it is a plain one."""
    if not keys.flag(raw, "use_ordered_embeddings", False):
        return None
    count, chosen = (
        keys.positive_int(raw, key, usual)
        for key, usual in (("num_centroids", 2048), ("centroid_intermediate_top_k", 32))
    )
    if tokens % count or chosen > count:
        raise ModelError(
            f"{tokens} tokens in num_centroids={count}, of which centroid_intermediate_top_k={chosen} are computed, do "
            "not go; fetch config.json again"
        )
    return count, chosen


def _named(tensors: Tensors, family: Family, made: AssistantHead) -> Family:
    """The family with the names of the assistant's parameters: layers make queries alone, the head may be tied."""
    names = {**family.names, **(GGUF_NAMES if isinstance(tensors, GgufWeights) else NAMES)}
    if not tensors.has(names[HEAD_WEIGHT][0]):
        names[HEAD_WEIGHT] = names[EMBED_WEIGHT]
    names["table.weight"] = names[HEAD_WEIGHT]
    for number in range(made.carried):
        for part in ("weight", "bias"):
            name = f"layers.{number}.mixer.qkv.{part}"
            query, *others = family.sources(name)
            names[name], names[f"{UNREAD}{name}"] = (query,), tuple(others)
        names[f"{UNREAD}{number}"] = tuple(family.sources(f"layers.{number}.mixer.k_norm"))
    return replace(family, names=names)


def _read(made: AssistantHead, tensors: Tensors, family: Family) -> AssistantHead:
    """The assistant with its weights. Matrices are in the bits of a GGUF file where the target's are."""
    target = made.full_model
    own_bits = isinstance(tensors, GgufWeights) and target.own_bits and target.draft_quantize is None
    hold = NativeMatrix if own_bits else held_alike(target.head, target.dtype, target.device, target.draft_quantize)
    config, dtype, device = made.decoder.config, target.dtype, target.device
    reader = ParameterReader(tensors, family, config, UNSPLIT, dtype, device, hold, own_bits, {})
    own = {name: part.shape for name, part in made.named_parameters() if not name.startswith("decoder.")}
    inner = {name: part.shape for name, part in made.decoder.named_parameters() if name != EMBED_WEIGHT}
    check_unread(tensors, family, made.carried, (EMBED_WEIGHT, *own, *inner, *(("ordering",) if made.chosen else ())))
    reader.put_all(made, own)
    reader.put_all(made.decoder, inner)
    if made.chosen:
        made.ordering = _ordering(tensors, made).to(device)
        matrix = None if hold is None else hold(made.table.weight.data, None)
        if isinstance(matrix, NativeMatrix):
            made.table, made.decoder.head = NativeEmbedding(matrix), matrix
    nothing = torch.empty(0, made.width, dtype=dtype, device=device)
    made.decoder.embed.weight = nn.Parameter(nothing, requires_grad=False)
    return made.requires_grad_(False).eval()


def _ordering(tensors: Tensors, made: AssistantHead) -> Tensor:
    """[clusters, tokens of one]: the tokens of each cluster."""
    assert isinstance(tensors, Safetensors)
    (name,) = NAMES["ordering"]
    order = tensors.view(name).long() if tensors.has(name) else torch.empty(0, dtype=torch.int64)
    if not torch.equal(order.sort().values, torch.arange(made.vocab_size)):
        raise ModelError(f"{tensors.directory}: {name} does not name each token once; fetch the assistant again")
    return order.view(made.centroids.out_features, -1)
