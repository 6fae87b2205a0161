"""DFlash heads in files: those that were trained here, and published ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.backend.matrix import held_alike, pack
from draftwood.models.base import CausalModel
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import Artifact, fingerprint
from draftwood.models.decoder import Decoder
from draftwood.models.heads import foreign_blocks
from draftwood.models.heads.dflash_head import DFlashHead, trained_shape
from draftwood.models.heads.eagle_head import check_reads
from draftwood.models.heads.exit import layered

KIND, FILE = "dflash", "dflash.safetensors"


def save(head: DFlashHead, directory: Path, dtype: torch.dtype = torch.bfloat16, **about: Any) -> None:
    """Write a head that was trained here into a directory; `about` says how it was made."""
    settings = {"reads": list(head.reads), "layers": len(head.decoder.layers), "block": head.block}
    made = {name: part.to(dtype) for name, part in head.weights().items()}
    Artifact(KIND, {"target": head.target}, settings, made, about).save(directory / FILE)


def load(directory: str | Path, target: CausalModel, packed: bool = True) -> DFlashHead:
    """Load the head of a directory, one trained here or a published one, in the dtype and on the device of the target.

    On a CPU matrices are held packed; `packed=False` keeps plain parameters, which can be trained and saved.
    """
    directory = Path(directory).expanduser()
    path, decoder = directory / FILE, layered(target)
    if decoder.parallel.size > 1:
        raise ModelError("a DFlash head uses the target's own, which processes share here; leave out tensor_parallel")
    if not path.is_file() and (directory / "config.json").is_file():
        return finished(*foreign_blocks.dflash(directory, decoder), decoder, packed)
    whose = fingerprint(decoder)
    file = artifact.load(path, KIND, target=whose)
    reads, layers, block = (file.settings.get(name) for name in ("reads", "layers", "block"))
    if not isinstance(reads, list) or type(layers) is not int or type(block) is not int or layers < 1 or block < 2:
        raise artifact.damaged(path, KIND)
    check_reads(reads, decoder)
    with torch.device("meta"):
        made = DFlashHead(trained_shape(decoder, layers), reads, decoder, block, whose=whose)
    made.acceptance = file.acceptance
    try:
        return finished(made, file.tensors, decoder, packed)
    except RuntimeError as error:
        raise artifact.damaged(path, KIND) from error


def finished(made: DFlashHead, tensors: Mapping[str, Tensor], target: Decoder, packed: bool) -> DFlashHead:
    """Give a head on the meta device its weights, in the dtypes and on the device of a target.

    `packed`: pack matrices for a CPU. RuntimeError where the weights do not fit.
    """
    head = made.decoder.head
    if made.borrows_head:
        made.decoder.head = torch.nn.Identity()  # the target's, which is held as it is
    state = {name: part.to(target.device, target.dtype) for name, part in tensors.items()}
    state["decoder.embed.weight"] = torch.empty(0, made.width, device=target.device, dtype=target.dtype)
    made.load_state_dict(state, assign=True)
    made.words = None if made.words is None else made.words.to(target.device)
    made.decoder.kv_dtype = target.kv_dtype
    made.requires_grad_(False).eval()
    if packed:
        pack(made, held_alike(target.head, target.dtype, target.device, target.draft_quantize))
    if made.borrows_head:
        made.decoder.head = head
    return made


def find(target: CausalModel, directory: str | None) -> DFlashHead:
    """The head of a directory; None: the one next to the target's weights."""
    decoder = layered(target)
    decoder.must_have_single_rows("given a DFlash head")  # before one is asked for
    return load(directory or artifact.find(decoder.home, KIND, "block").parent, target)
