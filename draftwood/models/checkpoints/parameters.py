"""Reads the parameters of a decoder from a checkpoint's tensors, and packs matrices as soon as they are complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.backend.matrix import Holder, hold_of
from draftwood.models.backend.native import NativeEmbedding, NativeMatrix, StoredRows
from draftwood.models.checkpoints.families.family import Family, pattern_of
from draftwood.models.checkpoints.gguf_weights import GgufWeights
from draftwood.models.checkpoints.quantised_weights import QuantisedSafetensors
from draftwood.models.checkpoints.safetensors_weights import Safetensors, part_of
from draftwood.models.checkpoints.stored import Tensors
from draftwood.models.checkpoints.tensor_names import EMBED_WEIGHT, PER_LAYER_TABLE
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.partition import Parallel, ParameterPart
from draftwood.models.quantise import Grouped

PANEL = 16  # outputs that the native kernels keep together, which must be of one type


@dataclass(frozen=True, slots=True)
class ParameterReader:
    """How the parameters of a decoder are read from a checkpoint and held.

    Vectors and plain matrices get `dtype` on `device`; matrices are packed by `hold`, or with `own_bits` as the
    checkpoint holds them. `grouped`: quantised matrices, by the names of their modules, that replace those of the
    checkpoint. `parallel`: the part of a split model that this process has; `config` is that of the full model.
    """

    tensors: Tensors
    family: Family
    config: DecoderConfig
    parallel: Parallel
    dtype: torch.dtype
    device: torch.device
    hold: Holder | None
    own_bits: bool
    grouped: Mapping[str, Grouped]

    def put_all(self, model: nn.Module, shapes: Mapping[str, torch.Size]) -> None:
        """Set parameters, by their names."""
        for name, shape in shapes.items():
            if not (name.endswith(".bias") and name.removesuffix("bias") + "weight" in shapes):  # put with its matrix
                self.put(model, name, shape)

    def put(self, model: nn.Module, name: str, shape: torch.Size) -> None:
        """Set a parameter; a matrix is packed with its bias at once, so that at most one is in memory twice."""
        path, _, leaf = name.rpartition(".")
        module: Any = model.get_submodule(path)
        if isinstance(module, nn.Linear):
            self._put_matrix(model, path, shape)
        elif name in (EMBED_WEIGHT, PER_LAYER_TABLE) and self.own_bits and (rows := self._stored(name, shape)):
            _replace(model, path, NativeEmbedding(NativeMatrix(rows, None)))
        elif name == PER_LAYER_TABLE and getattr(self.hold, "func", self.hold) is NativeMatrix:
            table = self._read(name, shape, True)  # larger than all else together
            assert table is not None
            _replace(model, path, NativeEmbedding(NativeMatrix(table, None)))
        elif (tensor := self._exactly(module, leaf)._read(name, shape)) is not None:
            setattr(module, leaf, nn.Parameter(tensor, requires_grad=False))

    def _exactly(self, module: nn.Module, leaf: str) -> ParameterReader:
        """The reader of a parameter, in float32 at least where its module wants it so."""
        wide = leaf in getattr(module, "wide", ())
        return replace(self, dtype=torch.promote_types(self.dtype, torch.float32)) if wide else self

    def put_tied(self, model: Decoder, shape: torch.Size) -> None:
        """Set the head's weight [V, D], of a tied model, to the embeddings."""
        if isinstance(model.embed, NativeEmbedding):
            model.head = model.embed.matrix
            return
        weight: Tensor = model.embed.weight
        if self.parallel.size > 1:
            piece = ParameterPart((self.parallel.words(self.config.vocab_size),))
            weight = self._assemble(EMBED_WEIGHT, shape, piece, self.hold is not None)
        self._keep(model, "head", weight, None)

    def _put_matrix(self, model: nn.Module, path: str, shape: torch.Size) -> None:
        bias = self._read(f"{path}.bias", shape[:1]) if model.get_submodule(path).bias is not None else None
        known: Any = self.grouped.get(path)
        if self.own_bits:
            known = self._stored(f"{path}.weight", shape)
        if known is not None:
            _replace(model, path, NativeMatrix(known, bias))
        elif (weight := self._read(f"{path}.weight", shape, self.hold is not None)) is not None:
            self._keep(model, path, weight, bias)

    def _keep(self, model: nn.Module, path: str, weight: Tensor, bias: Tensor | None) -> None:
        linear: Any = model.get_submodule(path)
        if self.hold is not None:
            _replace(model, path, hold_of(linear, self.hold)(weight, bias))
            return
        linear.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
        linear.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def _stored(self, name: str, shape: torch.Size) -> list[StoredRows] | Grouped | None:
        """The outputs of a matrix as the checkpoint holds them; None where the kernels cannot compute them so."""
        sources, turned = sources_of(self.tensors, self.family, name, shape)
        assert isinstance(self.tensors, GgufWeights | QuantisedSafetensors)
        parts = [None if turned else self.tensors.stored(source) for source, _ in sources]
        rows = [part for part in parts if isinstance(part, StoredRows)]
        groups = [part for part in parts if isinstance(part, Grouped)]
        order = self.family.order(name, self.config)
        if groups and len(groups) == len(parts):
            joined = Grouped.joined(groups)
            return joined if joined is None or order is None else joined.rows(order)
        if order is not None and len(rows) == len(parts):
            pieces = torch.split(order, [len(part) for part in rows])
            starts = accumulate([0, *(len(part) for part in rows[:-1])])
            rows = [part.reordered((piece - at).numpy()) for part, piece, at in zip(rows, pieces, starts, strict=True)]
        ends = accumulate(map(len, rows))
        mixed = any(end % PANEL and a.kind != b.kind for end, (a, b) in zip(ends, pairwise(rows), strict=False))
        return rows if len(rows) == len(parts) and not mixed else None

    def _read(self, name: str, shape: torch.Size, packable: bool = False) -> Tensor | None:
        """This process's part of a parameter; None: it has none."""
        piece = self.parallel.piece(name, shape, self.config)
        return None if piece is None else self._assemble(name, shape, piece, packable)

    def _assemble(self, name: str, shape: torch.Size, piece: ParameterPart, packable: bool) -> Tensor:
        """A part of a parameter from its tensors, concatenated; each is copied once from the mapped file.

        Where the parameter will be packed (`packable`), it is a view of the file if possible.
        """
        tensors, (sources, turned) = self.tensors, sources_of(self.tensors, self.family, name, shape)
        if not sources:
            value = 0.0 if name.endswith("_bias") else 1.0
            return torch.full(piece.shape(shape), value, dtype=self.dtype, device=self.device)
        if piece.silent:
            return torch.zeros(piece.shape(shape), dtype=self.dtype, device=self.device)
        order = self.family.order(name, self.config)
        whole = order is None and len(sources) == len(piece.rows) == 1 and not turned
        if packable and whole and isinstance(tensors, Safetensors):
            part = part_of(tensors.view(sources[0][0]), piece.rows[0], piece.columns)
            return part.to(self.device, self.dtype).contiguous()
        whole_rows = (slice(0, shape[0]),)
        if order is not None and piece.rows != whole_rows:  # put in order first
            full = self._assemble(name, shape, ParameterPart(whole_rows), False)
            return torch.cat([full[rows] for rows in piece.rows])
        made = torch.empty(piece.shape(shape), dtype=self.dtype, device=self.device)
        offset = done = 0
        for source, part_shape in sources:
            for rows in piece.rows:
                first, last = max(rows.start - offset, 0), min(rows.stop - offset, part_shape[0])
                if first < last:
                    place = made[done : done + last - first]
                    done += last - first
                    inside = slice(first, last), piece.columns
                    tensors.fill(source, place.T if turned else place, *(inside[::-1] if turned else inside))
            offset += part_shape[0]
        return made if order is None else made[order.to(made.device)]


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    above, _, last = path.rpartition(".")
    setattr(model.get_submodule(above), last, module)


def pack_embeddings(model: Decoder, tied: bool) -> None:
    """Pack the embeddings of a model whose matrices are native; those that are the head's weights are the head."""
    head: nn.Module = model.head
    if not isinstance(head, NativeMatrix):
        return
    given = model.per_layer_embeddings
    if given is not None and not isinstance(given.table, NativeEmbedding):
        given.table = NativeEmbedding(NativeMatrix(given.table.weight, None))
    if isinstance(model.embed, NativeEmbedding):
        return
    table = model.embed.weight
    shared = tied and head.kind == str(table.dtype).removeprefix("torch.")
    model.embed = NativeEmbedding(head if shared else NativeMatrix(table, None))


def sources_of(
    tensors: Tensors, family: Family, name: str, shape: torch.Size
) -> tuple[list[tuple[str, list[int]]], bool]:
    """The tensors of the file that form a parameter: (name, shape) of each, and True if they are transposed."""
    sources = family.sources(name)
    if not sources:  # ones, and zeros for biases: the family has no such weights
        return [], False
    shapes = [tensors.shape(source) for source in sources]
    as_they_lie = family.either_way and all(part == list(shape) for part, _ in shapes)
    turned = pattern_of(name) in family.transposed and not as_they_lie
    if turned:
        shapes = [(part[::-1], path) for part, path in shapes]
    rows = sum(part[0] if part else 0 for part, _ in shapes)
    if any([rows, *part[1:]] != list(shape) for part, _ in shapes):
        which = ", ".join(f"{source} {part}" for source, (part, _) in zip(sources, shapes, strict=True))
        raise ModelError(
            f"{shapes[0][1]}: tensor {which} does not fit {tensors.config_source}, which asks for {list(shape)}"
            f"{' together' if len(sources) > 1 else ''}; the two do not belong together: fetch both again"
        )
    return [(source, part) for source, (part, _) in zip(sources, shapes, strict=True)], turned
