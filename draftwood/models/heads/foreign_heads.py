"""Trained heads as others publish them: EAGLE-3 and P-EAGLE of `speculators` and of EAGLE's authors, Medusa heads.

Blocks are read by `foreign_blocks`. Knows their config.json and the names of their tensors. Weights are read from
safetensors files, never unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.checkpoints import config_keys as keys
from draftwood.models.checkpoints.artifact import Artifact, fingerprint
from draftwood.models.checkpoints.checkpoint import read_config
from draftwood.models.checkpoints.config_keys import Raw
from draftwood.models.checkpoints.families.table import FAMILIES
from draftwood.models.checkpoints.gguf_weights import GgufWeights
from draftwood.models.checkpoints.safetensors_weights import Safetensors
from draftwood.models.checkpoints.tensor_names import EAGLE, Names
from draftwood.models.decoder import Decoder
from draftwood.models.heads import assistant
from draftwood.models.heads.eagle_head import EagleHead, EagleNorms, check_reads, usual_reads
from draftwood.models.heads.parallel_eagle import ParallelEagleHead
from draftwood.util.safe_parsing import short_repr

LAYER_TYPES = ("llama", "qwen3")  # model types that a head's layers may be of
MAX_BLOCK = 64  # tokens that a pass drafts
MAX_PADDING = 1.02  # how many times larger padding may make a vocabulary
UNREAD_TENSORS = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # their information is in d2t or the target


FILES = {"eagle": "eagle", "medusa": "heads", "draft": "draft", "dflash": "dflash"}  # kind -> name of its file
# speculators_model_type -> kind
SPECULATORS = {"eagle3": "eagle", "peagle": "eagle", "dflash": "dflash", "dspark": "dflash"}


def kind_of(directory: Path) -> str | None:
    """The kind of head in a directory or GGUF file: a key of FILES, or 'assistant'; None: no head.

    Raises ModelError for other speculators.
    """
    if directory.is_file():
        return "assistant" if GgufWeights(directory).architecture == assistant.ARCHITECTURE else None
    if not (directory / "config.json").is_file():
        return next((kind for kind, file in FILES.items() if _has(directory, file)), None)
    raw = read_config(directory)
    if raw.get("medusa_num_heads") is not None:
        return "medusa"
    model_type = str(raw.get("model_type"))
    if model_type == assistant.MODEL_TYPE:
        return "assistant"
    if model_type.endswith("_assistant"):
        raise ModelError(
            f"{directory} holds an assistant of type {short_repr(model_type)}, but of these only "
            f"{assistant.MODEL_TYPE} is read; use another draft"
        )
    named = raw.get("speculators_model_type")
    if named is not None:
        if not isinstance(named, str) or named not in SPECULATORS:
            *others, last = SPECULATORS
            raise ModelError(
                f"{directory} holds a speculator of type {short_repr(named)}, but of these only {', '.join(others)} "
                f"and {last} are read"
            )
        return SPECULATORS[named]
    architectures = raw.get("architectures") or []
    architectures = [str(one).lower() for one in architectures] if isinstance(architectures, list) else []
    if raw.get("dflash_config") is not None or any("dflash" in one for one in architectures):
        return "dflash"
    eagle_named = any("eagle3" in one for one in architectures)
    return "eagle" if eagle_named or raw.get("draft_vocab_size") is not None else None


def _has(directory: Path, kind: str) -> bool:
    return (directory / f"{kind}.safetensors").is_file()


def eagle(directory: Path, target: Decoder) -> tuple[EagleHead, dict[str, Tensor]]:
    """An EAGLE-3 head of a directory: without weights, and these by the names of its parameters.

    In `speculators`' layout config.json has the layer's own under transformer_layer_config; in that of EAGLE's authors
    it is the layer's, and the layer is called midlayer. d2t[i] is how far the target's id of the head's token i is
    from i. `eagle_aux_hidden_state_layer_ids` are numbers of layers behind which the target is read.
    """
    raw = read_config(directory)
    ours = raw.get("speculators_model_type") is not None
    layer = raw.get("transformer_layer_config") if ours else raw
    place = directory / "config.json"
    kind = layer.get("model_type", "llama") if isinstance(layer, dict) else None
    if not isinstance(layer, dict) or kind not in LAYER_TYPES:
        raise ModelError(
            f"{place}: an EAGLE head of {short_repr(kind)} layers is not supported; {' and '.join(LAYER_TYPES)} are"
        )
    known = {name.replace("midlayer.", "layers.0."): part for name, part in read_tensors(directory).items()}
    try:
        full_config = FAMILIES[str(kind)].config({"num_hidden_layers": 1, **layer})
        own = raw if ours else {**nested(raw, "eagle_config"), **raw}
        reads = layer_ids(own, "eagle_aux_hidden_state_layer_ids") or usual_reads(target.n_layers)
    except ModelError as error:
        raise ModelError(f"{place}: {error}") from None
    vocabulary, width = full_config.vocab_size, target.config.hidden_size
    words = known_words(directory, raw, known, vocabulary, target)
    size = vocabulary if words is None else len(words)
    config = replace(full_config, vocab_size=size, tie_word_embeddings=False)
    check_reads(reads, target)
    outer = None if "embed_tokens.weight" in known else target.embed
    if outer is not None and config.hidden_size != width:
        raise ModelError(
            f"{directory} was made for a target {config.hidden_size} wide, but this one is {width} wide; give a head "
            "of this target"
        )
    whose = fingerprint(target)
    norms, table = norms_of(own, directory, len(reads))
    parallel = raw.get("speculators_model_type") == "peagle"
    if parallel:
        known |= masks_of(raw, known, target, directory)
    with torch.device("meta"):
        kind_of_head = partial(ParallelEagleHead, block=drafted_tokens(raw)) if parallel else EagleHead
        made = kind_of_head(config, reads, width, vocabulary, outer, norms, whose)
    made.words = words
    return made, parameters_of(made, known, table, directory, width)


def nested(raw: Raw, key: str) -> Raw:
    """The object under a key of config.json; {} where it has none. ModelError for something else."""
    own = raw.get(key) or {}
    if not isinstance(own, dict):
        raise ModelError(f"{key} is {short_repr(own)}, but must be an object")
    return own


def layer_ids(own: Raw, key: str) -> tuple[int, ...]:
    """The numbers of layers under a key of a head's settings; () where it has none. ModelError for something else."""
    ids = own.get(key)
    if ids is None:
        return ()
    if not isinstance(ids, list) or not ids or any(type(one) is not int for one in ids):
        raise ModelError(f"{key} is {short_repr(ids)}, but must be numbers of layers")
    return tuple(ids)


def norms_of(own: Raw, directory: Path, reads: int) -> tuple[EagleNorms, Names]:
    """The norms that the settings of an EAGLE head ask for, and the names of its tensors; it reads so many states."""
    try:
        fused, each, before_residual, output = (
            keys.flag(own, key, False) for key in ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
        )
    except ModelError as error:
        raise ModelError(f"{directory / 'config.json'}: {error}") from None
    if fused and each:
        raise ModelError(
            f"{directory / 'config.json'} asks for norm_before_fc and fc_norm, of which a head has one; fetch it again"
        )
    table = {**EAGLE, "fused_norm": tuple(f"fc_norm.{n}.weight" for n in range(reads))} if each else EAGLE
    return EagleNorms(before_residual, fused or each, each, output), table


def drafted_tokens(raw: Raw) -> int:
    """How many tokens the first proposal method of a speculator's config drafts in a pass; 8 where it does not say."""
    own = raw.get("speculators_config") or {}
    methods = own.get("proposal_methods") if isinstance(own, dict) else None
    first = methods[0] if isinstance(methods, list) and methods else {}
    return keys.positive_int(first if isinstance(first, dict) else {}, "speculative_tokens", 8, MAX_BLOCK)


def masks_of(raw: Raw, known: Mapping[str, Tensor], target: Decoder, directory: Path) -> dict[str, Tensor]:
    """The embedding and the states of a P-EAGLE head at tokens that are not known, by the names of its parameters."""
    states, table = known.get("mask_hidden"), known.get("embed_tokens.weight")
    if states is None:
        raise ModelError(f"{directory}: tensor mask_hidden is missing; fetch the head again, or correct config.json")
    return {"mask_hidden": states.flatten(), "mask": mask_embedding(raw, target, table)}


def mask_embedding(raw: Raw, target: Decoder, table: Tensor | None = None) -> Tensor:
    """The embedding [D] of the mask token of a block drafter, from its own table or the target's.

    Raises ModelError where it is no token of the target.
    """
    token = raw.get("mask_token_id")
    if type(token) is not int or not 0 <= token < target.vocab_size:
        raise ModelError(
            f"mask_token_id is {short_repr(token)}, but must be one of the target's {target.vocab_size} tokens"
        )
    if table is not None:
        return table[token]
    row: Tensor = target.embed(torch.tensor([token], device=target.device))[0]
    return row.detach().float().cpu()


def known_words(
    directory: Path, raw: Mapping[str, Any], known: dict[str, Tensor], vocabulary: int, target: Decoder
) -> Tensor | None:
    """The target's tokens that a head for `vocabulary` tokens knows; None: all. Takes d2t out of its tensors.

    Raises ModelError where the head was made for a target with another vocabulary.
    """
    place = directory / "config.json"
    if not 1 / MAX_PADDING < vocabulary / target.vocab_size < MAX_PADDING:
        raise ModelError(
            f"{directory} was made for a target of {vocabulary} tokens, but this one knows {target.vocab_size}; "
            "give a head of this target"
        )
    words = known.pop("d2t", None)
    size = raw.get("draft_vocab_size") or vocabulary
    if type(size) is not int or not 0 < size <= vocabulary:
        raise ModelError(f"{place}: draft_vocab_size is {short_repr(size)}, but must be 1 to {vocabulary}")
    if words is None:
        if size != vocabulary:
            raise ModelError(
                f"{directory} knows {size} of {vocabulary} tokens, but not which: it has no d2t; fetch it again"
            )
        return None
    words = words.long() + torch.arange(len(words))
    if len(words) != size or not 0 <= int(words.min()) <= int(words.max()) < vocabulary:
        raise ModelError(f"{directory}: d2t does not name {size} of {vocabulary} tokens; fetch the head again")
    return words


def parameters_of(
    made: nn.Module, known: dict[str, Tensor], table: Names, directory: Path, width: int
) -> dict[str, Tensor]:
    """The parameters of a head for a target `width` wide, from its published tensors `known`, all of which are taken.

    Raises ModelError where one is missing, has another shape or is left over.
    """
    shapes = {name: part.shape for name, part in made.named_parameters() if name != "decoder.embed.weight"}
    state = {}
    for name, wanted in shapes.items():
        sources = names(name, table)
        missing = next((source for source in sources if source not in known), None)
        if missing is not None:
            raise ModelError(f"{directory}: tensor {missing} is missing; fetch the head again, or correct config.json")
        part = torch.cat([known.pop(source) for source in sources])
        if part.shape != wanted:
            raise ModelError(
                f"{directory}: tensor {', '.join(sources)} is {list(part.shape)}, but {list(wanted)} is what "
                f"config.json asks for with a target {width} wide; give a head of this target"
            )
        state[name] = part
    if known:
        raise ModelError(
            f"{directory / 'config.json'} does not ask for tensor {next(iter(known))}, which the head has; its kind is "
            "not known"
        )
    return state


def names(parameter: str, table: Names) -> tuple[str, ...]:
    """The published tensors that a parameter of a head is made of, by a table for all layers."""
    if parameter in table:
        return table[parameter]
    before, number, rest = parameter.split("layers.")[0], *parameter.split("layers.")[1].split(".", 1)
    return tuple(name.format(i=number) for name in table[f"{before}layers.{{i}}.{rest}"])


def medusa(directory: Path, target: Decoder) -> Artifact:
    """Medusa heads of a directory, as they would be if they had been trained here.

    Head k is k.0.linear (a residual block) and k.1 (its output); config.json says how many heads and blocks there are,
    or fewer heads: those of Medusa's authors say 2 beside 5.
    """
    raw, tensors = read_config(directory), read_tensors(directory)
    count, blocks = raw.get("medusa_num_heads"), raw.get("medusa_num_layers", 1)
    if type(count) is not int or count < 1 or blocks != 1:
        raise ModelError(
            f"{directory} has {short_repr(count)} heads of {short_repr(blocks)} blocks, but heads of one block "
            "each are read"
        )
    width, vocabulary, made = target.config.hidden_size, target.vocab_size, {}
    while f"{count}.0.linear.weight" in tensors:
        count += 1
    for k in range(count):
        for name, source, wanted in (
            (f"lift.{k}.weight", f"{k}.0.linear.weight", [width, width]),
            (f"lift.{k}.bias", f"{k}.0.linear.bias", [width]),
            (f"out.{k}.weight", f"{k}.1.weight", [vocabulary, width]),
        ):
            if source not in tensors or list(tensors[source].shape) != wanted:
                stored = list(tensors[source].shape) if source in tensors else "missing"
                raise ModelError(
                    f"{directory}: tensor {source} is {stored}, but {wanted} fits this target; "
                    "give heads of this target"
                )
            made[name] = tensors.pop(source)
    if tensors:
        raise ModelError(
            f"{directory} has a tensor {next(iter(tensors))} beside its {count} heads, whose use is not known"
        )
    return Artifact("heads", {"target": fingerprint(target)}, {"heads": count, "shared": False}, made)


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors of a directory's safetensors files, but for those that are also in d2t or the target."""
    with ExitStack() as stack:
        tensors = Safetensors(directory, stack).read()
    return {name: part for name, part in tensors.items() if name not in UNREAD_TENSORS}
