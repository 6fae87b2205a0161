"""EAGLE-3 heads in files: those that were trained here, and published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwood.models.backend.matrix import QUANTISATIONS, held_alike, pack
from draftwood.models.base import CausalModel
from draftwood.models.checkpoints import artifact
from draftwood.models.checkpoints.artifact import Artifact, fingerprint
from draftwood.models.decoder import Decoder
from draftwood.models.heads import foreign_heads
from draftwood.models.heads.eagle_head import EagleHead, check_reads, shape
from draftwood.models.heads.exit import layered

KIND, FILE = "eagle", "eagle.safetensors"


def save(
    weights: Mapping[str, Tensor],
    directory: Path,
    target: str,
    reads: Sequence[int],
    dtype: torch.dtype = torch.bfloat16,
    quantize: str | None = None,
    **about: Any,
) -> None:
    """Write a head into a directory.

    `target`: the target's fingerprint; `quantize`: how its matrices are held beside quantised ones, if it was trained
    for that; `about`: how the head was made.
    """
    made = {name: part.to(dtype) if part.is_floating_point() else part for name, part in weights.items()}
    settings = {"reads": list(reads), **({} if quantize is None else {"quantize": quantize})}
    Artifact(KIND, {"target": target}, settings, made, about).save(directory / FILE)


def load(directory: str | Path, target: CausalModel, packed: bool = True) -> EagleHead:
    """Load the head of a directory, one trained here or a published one, in the dtype and on the device of the target.

    On a CPU matrices are held packed; `packed=False` keeps plain parameters, which can be trained, grown and saved.
    """
    directory = Path(directory).expanduser()
    path, decoder = directory / FILE, layered(target)
    if not path.is_file() and (directory / "config.json").is_file():
        return finished(*foreign_heads.eagle(directory, decoder), decoder, packed)
    whose = fingerprint(decoder)
    file = artifact.load(path, KIND, target=whose)
    tensors, reads = dict(file.tensors), file.settings.get("reads")
    quantize = file.settings.get("quantize", "int8")
    if not isinstance(reads, list) or quantize not in QUANTISATIONS:
        raise artifact.damaged(path, KIND)
    check_reads(reads, decoder)
    words = tensors.pop("words", None)
    config, width = shape(decoder.config, None if words is None else len(words)), decoder.config.hidden_size
    with torch.device("meta"):
        made = EagleHead(config, reads, width, decoder.vocab_size, decoder.embed, target=whose)
    made.words = words
    made.acceptance = file.acceptance
    try:
        return finished(made, tensors, decoder, packed, quantize)
    except RuntimeError as error:
        raise artifact.damaged(path, KIND) from error


def finished(
    made: EagleHead, tensors: Mapping[str, Tensor], target: Decoder, packed: bool, quantize: str = "int8"
) -> EagleHead:
    """Give a head on the meta device its weights, in the dtypes and on the device of a target.

    `packed`: pack matrices for a CPU, beside quantised ones as `quantize` says. RuntimeError where the weights do not
    fit.
    """
    place, dtype = target.device, target.dtype
    state = {name: part.to(place, dtype) for name, part in tensors.items()}
    state["decoder.embed.weight"] = torch.empty(0, made.width, device=place, dtype=dtype)
    made.load_state_dict(state, assign=True)
    made.words = None if made.words is None else made.words.to(place)
    made.decoder.kv_dtype = target.kv_dtype
    made.requires_grad_(False).eval()
    if packed:
        made.tell_states_apart()
        pack(made, held_alike(target.head, dtype, place, target.draft_quantize, quantize))
    return made


def find(target: CausalModel, directory: str | None) -> EagleHead:
    """The head of a directory; None: the one next to the target's weights."""
    decoder = layered(target)
    decoder.must_have_single_rows("given an EAGLE head")  # before one is asked for
    return load(directory or artifact.find(decoder.home, KIND, "head").parent, target)
