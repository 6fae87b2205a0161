"""gpt-oss as it is published: the experts' matrices in MXFP4, numbers of 4 bits in blocks of 32 with one exponent.

NAME_blocks [E, N, K / 32, 16] uint8 has two numbers a byte, the first in the low bits; NAME_scales [E, N, K / 32] uint8
has the exponents, plus 127 (OCP Microscaling Formats 1.0). GGUF's blocks hold the same bits in another order.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.backend.native import StoredRows
from draftwood.models.checkpoints.quantised_weights import QuantisedSafetensors, Scheme
from draftwood.models.checkpoints.safetensors_weights import PLAIN_DTYPES, sliced

METHOD = "mxfp4"
STORED_NUMBER = 39  # of the type in GGUF
BLOCK, NOT_A_NUMBER = 32, 0xFF
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


class Mxfp4Safetensors(QuantisedSafetensors):
    """The tensors of such a checkpoint: matrices of experts are found as [out, in], under the names of plain ones."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack, Scheme(METHOD, 4))

    def dtype(self) -> str:
        kinds = (str(handle.get_slice(name).get_dtype()) for name, (handle, _) in self._place.items())
        return next(kind for kind in kinds if kind in PLAIN_DTYPES).replace("BF", "bfloat").replace("F", "float")

    def _plain(self, name: str) -> str | None:
        matrix = name.removesuffix("_scales")
        return None if matrix != name and self._is_stored(f"{matrix}_blocks") else name.removesuffix("_blocks")

    def _codes(self, name: str) -> str | None:
        codes = _part(name, "blocks")
        return codes if self._is_stored(codes) else None

    def shape(self, name: str) -> tuple[list[int], Path]:
        if self._codes(name) is None:
            return super().shape(name)
        blocks, scales = self._blocks(name)
        if blocks.shape != (*scales.shape, BLOCK // 2) or blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
            raise ModelError(
                f"{self.directory}: the parts of {name} do not fit each other (blocks {list(blocks.shape)}, scales "
                f"{list(scales.shape)}); fetch the checkpoint again"
            )
        return [len(scales), scales.shape[1] * BLOCK], self._place[sliced(_part(name, "blocks"))[0]][1]

    def view(self, name: str) -> Tensor:
        """A plain tensor, or a matrix of an expert [N, K] dequantised to float32."""
        if self._codes(name) is None:
            return super().view(name)
        blocks, scales = self._blocks(name)
        codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)  # [N, K / 32, 32]
        return torch.ldexp(VALUES[codes.int()], scales.int()[..., None] - 127).flatten(1)

    def stored(self, name: str) -> StoredRows | None:
        if self._codes(name) is None:
            return self._stored_rows(name)
        blocks, scales = self._blocks(name)
        codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)  # [N, K / 32, 32]
        first, last = codes.chunk(2, -1)
        rows = torch.cat((scales[..., None], first | last << 4), -1).flatten(1)
        return StoredRows("MXFP4", STORED_NUMBER, scales.shape[1] * BLOCK, rows.numpy())

    def _blocks(self, name: str) -> tuple[Tensor, Tensor]:
        """The blocks [N, K / 32, 16] and exponents [N, K / 32] of a matrix of an expert."""
        blocks, scales = (self.view_stored(_part(name, part)) for part in ("blocks", "scales"))
        if bool((scales == NOT_A_NUMBER).any()):
            raise ModelError(f"{self.directory} is damaged ({name} has a scale that is no number); fetch it again")
        return blocks, scales


def _part(name: str, part: str) -> str:
    """NAME[3] -> NAME_blocks[3]."""
    whole, number = sliced(name)
    return f"{whole}_{part}" if number is None else f"{whole}_{part}[{number}]"
