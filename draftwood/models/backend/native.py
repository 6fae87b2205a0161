"""The native backend's packed matrices, and what its models are made of (native/src/abi.h)."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.quantise import Grouped
from draftwood.util.native_library import address, check, loaded_library

MATRIX_TYPES = {"float32": 0, "bfloat16": 1, "float16": 2, "int4": 3, "int8": 4}
MATRIX_TYPES |= {"uint4": 16, "uint4_bf16": 17, "int8_bf16": 18}
FP8_FORMAT, FP8_INPUTS = 256, 128  # of StoredRows: a float32 scale before so many numbers of 8 bits (e4m3)
PLAIN_KINDS = frozenset({"float32", "bfloat16", "float16"})
ATTENTION_PART, FEED_FORWARD_PART, EXPERTS_PART, PER_LAYER_INPUT_PART = range(4)
QK_NORMS = {"one": 0, "each": 1, "whole": 2}
PLANE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}  # of keys and values


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class ModelShape(Structure):
    _fields_ = [
        *_fields(c_int32, "width vocabulary layer_norm half_positions position_offset"),
        *_fields(c_float, "eps logit_softcap logit_scale embedding_scale"),
        *_fields(c_void_p, "embeddings positions norm norm_bias head"),
        *_fields(c_int32, "inputs input_width"),
        ("input_scale", c_float),
        *_fields(c_void_p, "input_table input_projection input_norm"),
    ]


class MixtureShape(Structure):
    _fields_ = [
        *_fields(c_int32, "count chosen sigmoid normalised groups chosen_groups shared shared_gate"),
        *_fields(c_float, "scale limit"),
        *_fields(c_void_p, "router selection_bias up down"),
        *_fields(c_void_p, "router_norm own_norm own_post_norm shared_post_norm expert_scale"),
    ]


class ModelPart(Structure):
    _fields_ = [
        *_fields(c_int32, "kind joined layer_norm heads kv_heads head_dim rotary_dim window rope keys values"),
        *_fields(c_int32, "borrowed gate qk_norm late_norm value_norm activation gated"),
        *_fields(c_float, "eps multiplier scale softcap clip"),
        *_fields(c_void_p, "up down norm norm_bias post_norm post_norm_bias q_norm q_norm_bias k_norm k_norm_bias"),
        *_fields(c_void_p, "sinks experts scalar"),
        ("gate_scale", c_float),
        ("input", c_int32),
        *_fields(c_int32, "value_dim growth_length growth_start"),
        *(("growth", c_float), ("group_top", c_int32), ("jitter", c_float), ("bias_stride", c_int64)),
        *_fields(c_void_p, "bias inner_norm numbers latent"),
    ]


class LatentShape(Structure):
    _fields_ = [
        *_fields(c_int32, "q_rank kv_rank"),
        *(("eps", c_float), *_fields(c_void_p, "q_up kv_up q_norm kv_norm")),
    ]


class ModelEntry(Structure):
    _fields_ = [
        *_fields(c_void_p, "fc embeddings beside_norm state_norm given_norm"),
        *(("groups", c_int32), ("eps", c_float)),
    ]


class StoredPart(Structure):
    _fields_ = [*_fields(c_int64, "format rows stride"), *_fields(c_void_p, "data order"), ("mapped", c_int64)]


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Outputs of a matrix as a GGUF file holds them.

    `data` [rows, bytes of a row] uint8, contiguous, may lie in a mapped file; a row has `inputs` weights. `order` [N]
    int64: which row each output is, or None: as they lie. `kind` is the type's name in the file, `number` the format's
    number for it.
    """

    kind: str
    number: int
    inputs: int
    data: Any
    order: Any = None
    mapped: bool = False  # from a file that nobody has written to: pages are let go once they are packed

    def __len__(self) -> int:
        return len(self.data if self.order is None else self.order)

    def reordered(self, order: Any) -> StoredRows:
        """The same outputs, number order[i] as number i."""
        return replace(self, order=order if self.order is None else self.order[order])


class NativeMatrix(nn.Module):
    """y = x W^T + b with W packed for the native kernels; results are float32."""

    fewest_rows = 1

    def __init__(
        self, weight: Tensor | Grouped | Sequence[StoredRows], bias: Tensor | None, kind: str | None = None
    ) -> None:
        """`kind`: float32, bfloat16, float16 or int8 (in groups of 32 inputs); None: the weight's own."""
        super().__init__()
        lib, threads = loaded_library(), torch.get_num_threads()
        self._free = lib.dw_matrix_free
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)  # tells the dtype of small models
        bias_floats = None if bias is None else bias.detach().float().contiguous()
        shape: tuple[int, int]
        if isinstance(weight, Grouped):
            self.kind, shape = weight.kind, (weight.codes.shape[0], weight.codes.shape[1])
            given = (weight.codes, weight.scale, weight.shift, weight.zero)
            parts = [None if part is None else part.contiguous() for part in given]
            places = [address(part) for part in parts]
            self.handle = lib.dw_matrix_grouped(MATRIX_TYPES[self.kind], *shape, *places, address(bias_floats), threads)
            if self.handle and weight.order is not None:
                check(lib.dw_matrix_order(self.handle, weight.order.contiguous().data_ptr()) != 0)
        elif isinstance(weight, Tensor):
            self.kind, shape = kind or str(weight.dtype).removeprefix("torch."), (weight.shape[0], weight.shape[1])
            weight = weight.detach().contiguous()
            half = weight.dtype == torch.bfloat16
            self.handle = lib.dw_matrix(
                MATRIX_TYPES[self.kind], *shape, weight.data_ptr(), half, address(bias_floats), threads
            )
        else:
            self.kind = ", ".join(dict.fromkeys(part.kind.lower() for part in weight))
            shape = sum(map(len, weight)), weight[0].inputs
            orders = [None if part.order is None else part.order.ctypes.data for part in weight]
            table = (StoredPart * len(weight))(
                *(
                    StoredPart(part.number, len(part), part.data.strides[0], part.data.ctypes.data, order, part.mapped)
                    for part, order in zip(weight, orders, strict=True)
                )
            )
            self.handle = lib.dw_matrix_stored(table, len(weight), shape[1], address(bias_floats), threads)
        self.out_features, self.in_features = shape
        check(not self.handle)
        self.weight_bytes = lib.dw_matrix_bytes(self.handle)

    def __del__(self) -> None:
        if handle := self.__dict__.pop("handle", None):
            self._free(handle)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ModelError("a model whose matrices are packed cannot be copied; load it again, or with packed=False")

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features).float().contiguous()
        out = torch.empty(len(rows), self.out_features)
        lib = loaded_library()
        check(
            lib.dw_matrix_apply(self.handle, len(rows), rows.data_ptr(), out.data_ptr(), torch.get_num_threads()) != 0
        )
        return out.view(*x.shape[:-1], self.out_features)  # of no rows too

    def rows(self, index: Tensor) -> Tensor:
        """The weights [..., K] float32 of the outputs `index` [...]."""
        if index.device.type != "cpu":
            raise ModelError(f"packed weights are read by numbers on the CPU, not on {index.device}; move them there")
        wanted = index.reshape(-1).to(torch.int64).contiguous()
        out = torch.empty(len(wanted), self.in_features, device="cpu")
        lib, threads = loaded_library(), torch.get_num_threads()
        check(lib.dw_matrix_rows(self.handle, len(wanted), wanted.data_ptr(), out.data_ptr(), threads) != 0)
        return out.view(*index.shape, self.in_features)


class NativeEmbedding(nn.Module):
    """Row i of a packed matrix for index i, in float32; a tied head is the same matrix, once in memory."""

    def __init__(self, matrix: NativeMatrix) -> None:
        super().__init__()
        self.matrix = matrix

    def __len__(self) -> int:
        return self.matrix.out_features

    def forward(self, index: Tensor) -> Tensor:
        return self.matrix.rows(index)
