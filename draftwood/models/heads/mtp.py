"""Layers of multi-token prediction in the checkpoints of their targets, safetensors or GGUF."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from draftwood.errors import ModelError
from draftwood.models.backend.matrix import held_alike
from draftwood.models.backend.native import NativeMatrix
from draftwood.models.base import CausalModel
from draftwood.models.checkpoints import checkpoint
from draftwood.models.checkpoints.families.family import Family
from draftwood.models.checkpoints.parameters import ParameterReader
from draftwood.models.checkpoints.stored import Tensors, experts_as_stored
from draftwood.models.checkpoints.tensor_names import Names
from draftwood.models.decoder import Decoder
from draftwood.models.heads.exit import layered
from draftwood.models.heads.mtp_head import MtpHead, sketch
from draftwood.models.partition import UNSPLIT

# where the layer lies ({last}: behind the model's last), and the product, the norms of embeddings and states, the last
LAYOUTS = (
    ("mtp.layers.0", "mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"),  # Qwen
    ("{last}", "{last}.eh_proj", "{last}.enorm", "{last}.hnorm", "{last}.shared_head.norm"),  # GLM, DeepSeek
    ("{last}", *(f"{{last}}.nextn.{name}" for name in ("eh_proj", "enorm", "hnorm", "shared_head_norm"))),  # GGUF
)
LAYER, HEAD_LAYER = "layers.{i}.", "decoder.layers.0."


def find(target: CausalModel) -> MtpHead:
    """The head in a target's checkpoint, in the dtype, or the file's bits, and on the device of the target.

    Raises ModelError where there is none.
    """
    decoder = layered(target)
    if decoder.parallel.size > 1:
        raise ModelError(
            "a layer of multi-token prediction is not read for a target that processes share; leave out "
            "tensor_parallel, or use another draft"
        )
    with ExitStack() as stack:
        stored = _found(decoder.source, stack)
        if stored is None:
            raise ModelError(
                f"{decoder.source or 'the target'} has no layer of multi-token prediction (tensors mtp.*, of layers "
                "behind the last, or nextn in GGUF files), and no assistant was given; use another draft"
            )
        return _read(decoder, *stored)


def present(source: Path | None) -> bool:
    """True if a checkpoint has such a layer; None: a model that is not from one."""
    with ExitStack() as stack:
        return _found(source, stack) is not None


def _found(source: Path | None, stack: ExitStack) -> tuple[Tensors, Family] | None:
    """The tensors of a checkpoint, and the family with the names of the head's parameters; None: no head."""
    if source is None:
        return None
    tensors, _, family, config = checkpoint.opened(source, stack)
    before = family.names[f"{LAYER}mixer.o.weight"][0].partition("{i}")[0]
    last = f"{before}{config.num_hidden_layers}"
    for layout in LAYOUTS:
        layer, *parts = (part.format(last=last) for part in layout)
        product, embeds, states, norm = (f"{part}.weight" for part in parts)
        if not tensors.has(product):
            continue
        names: Names = {"fc.weight": (product,), "embed_norm": (embeds,), "state_norm": (states,)}
        names["decoder.norm"] = (norm,) if tensors.has(norm) else family.names["norm"]
        for name, sources in family.names.items():
            if name.startswith(LAYER):
                own = tuple(source.replace(f"{before}{{i}}", layer) for source in sources)
                names[name.replace(LAYER, HEAD_LAYER)] = own
        moved = {name.replace(LAYER, HEAD_LAYER): order for name, order in family.orders.items()}
        turned = frozenset(name.replace(LAYER, HEAD_LAYER) for name in family.transposed)
        return tensors, replace(
            family, names=experts_as_stored(tensors, names, turned), orders=moved, transposed=turned
        )
    return None


def _read(target: Decoder, tensors: Tensors, family: Family) -> MtpHead:
    """A head with its weights. Matrices are in the bits of the file where the target's are, else held as heads are."""
    made = sketch(target)
    own_bits = target.own_bits and target.draft_quantize is None
    hold = NativeMatrix if own_bits else held_alike(target.head, target.dtype, target.device, target.draft_quantize)
    reader = ParameterReader(
        tensors, family, made.decoder.config, UNSPLIT, target.dtype, target.device, hold, own_bits, {}
    )
    made.decoder.head = nn.Identity()  # while others are read: it is the target's
    shapes = {name: part.shape for name, part in made.named_parameters() if name != "decoder.embed.weight"}
    reader.put_all(made, shapes)
    made.decoder.head = target.head
    nothing = torch.empty(0, made.width, dtype=target.dtype, device=target.device)
    made.decoder.embed.weight = nn.Parameter(nothing, requires_grad=False)
    made.decoder.kv_dtype = target.kv_dtype
    return made.requires_grad_(False).eval()
