"""Checkpoints quantised by AWQ, GPTQ (AutoRound too), compressed-tensors or to FP8, read as if they were plain.

A quantised matrix is (code - zero) * scale, with a scale and a zero for every group of inputs. What the native kernels
can compute so is given to them as it is stored (`QuantisedSafetensors.stored`); everything can be dequantised.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwood.errors import ModelError
from draftwood.models.backend.native import FP8_FORMAT, FP8_INPUTS, StoredRows
from draftwood.models.checkpoints.safetensors_weights import Safetensors, sliced
from draftwood.models.quantise import GROUP_SIZE, Grouped
from draftwood.util.safe_parsing import short_repr

METHODS = ("awq", "gptq", "auto-round", "compressed-tensors", "fp8")
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a packed number each of 8 outputs is
WORD_BITS = 32
CODES = {  # suffix of a matrix's codes -> how they lie
    "awq": ("qweight",),
    "gptq": ("qweight",),
    "auto-round": ("qweight",),
    "compressed-tensors": ("weight_packed",),
    "fp8": (),
}
PARTS = (  # suffixes of what else belongs to a quantised matrix
    *("qzeros", "scales", "g_idx", "weight_scale", "weight_scale_inv", "weight_zero_point", "weight_shape"),
    *("weight_g_idx", "input_scale", "activation_scale"),
)

COMPRESSED_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized")
FLOAT8_TYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
FLOAT8_SCALES = ("weight_scale", "weight_scale_inv")
FLOAT8_BLOCK = (128, 128)
FP8_NOT_A_NUMBER = 0x7F  # but for its sign
PLAIN_NUMBERS = {"F32": 0, "F16": 1, "BF16": 30}  # of the types in GGUF


@dataclass(frozen=True, slots=True)
class Scheme:
    """A quantization_config: the method, the bits of a code, and the number that GPTQ's stored zeros lack."""

    method: str
    bits: int
    zero_offset: int = 0
    block: tuple[int, ...] = FLOAT8_BLOCK  # outputs and inputs that share a scale, where FP8 has one for blocks

    @staticmethod
    def of(settings: Any, place: Path) -> Scheme:
        """Raises ModelError, which names the setting, for what is not read."""
        method = settings.get("quant_method") if isinstance(settings, dict) else None
        if method not in METHODS:
            raise ModelError(
                f"{place}: weights quantised by {short_repr(method)} are not read ({', '.join(METHODS)} are); give the "
                "checkpoint that they came from, or a GGUF file of the model"
            )
        bits = settings.get("bits", settings.get("w_bit", 8 if method == "fp8" else 4))
        block = settings.get("weight_block_size") or FLOAT8_BLOCK
        if method == "compressed-tensors":
            bits, block = _compressed(settings, place)
        if settings.get("packing_format") or settings.get("version") in ("gemv", "gemv_fast", "marlin"):
            form = settings.get("packing_format") or settings["version"]
            if form not in ("auto_round:auto_gptq", "auto_round:gptq"):
                raise ModelError(
                    f"{place}: weights packed as {short_repr(form)} are not read; give a checkpoint of the version gemm"
                )
        if bits not in (4, 8) or (method == "awq" and bits != 4):
            raise ModelError(
                f"{place}: codes of {short_repr(bits)} bits are not read, but 4 and 8 are; give another checkpoint"
            )
        old = method in ("gptq", "auto-round") and settings.get("checkpoint_format", "gptq") != "gptq_v2"
        return Scheme(method, bits, int(old), tuple(block))


def _compressed(settings: dict[str, Any], place: Path) -> tuple[Any, Any]:
    """The bits of a code, and the outputs and inputs of a block, as compressed-tensors' settings have them."""
    form = settings.get("format")
    if form not in COMPRESSED_FORMATS and form != "marlin-24":
        raise ModelError(
            f"{place}: weights in the format {short_repr(form)} are not read ({', '.join(COMPRESSED_FORMATS)} "
            "are); give the checkpoint that they came from"
        )
    if form == "marlin-24" or settings.get("sparsity_config"):
        raise ModelError(f"{place}: sparse weights are not read; give the checkpoint that they came from")
    groups = settings.get("config_groups")
    weights = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, dict) else []
    bits = {each.get("num_bits") for each in weights}
    block = next((each["block_structure"] for each in weights if each.get("block_structure")), FLOAT8_BLOCK)
    return bits.pop() if len(bits) == 1 else sorted(map(str, bits)), block


class QuantisedSafetensors(Safetensors):
    """The tensors of a quantised checkpoint: a quantised matrix is found under the name that a plain one would have."""

    def __init__(self, directory: Path, stack: ExitStack, scheme: Scheme) -> None:
        super().__init__(directory, stack)
        self.scheme = scheme

    def names(self) -> list[str]:
        names = dict.fromkeys(self._plain(name) for name in super().names())
        return [name for name in names if name is not None]

    def _plain(self, name: str) -> str | None:
        """The name of the plain matrix that a tensor holds the codes of; None for its scales and the like."""
        prefix, _, last = name.rpartition(".")
        if last in CODES[self.scheme.method]:
            return f"{prefix}.weight"
        belongs = last in PARTS and any(self._is_stored(f"{prefix}.{one}") for one in self._forms)
        return None if belongs else name

    @property
    def _forms(self) -> tuple[str, ...]:
        return (*CODES[self.scheme.method], "weight")

    def _codes(self, name: str) -> str | None:
        """The name of the codes of a matrix; None where it is plain."""
        prefix = name.removesuffix(".weight")
        for suffix in CODES[self.scheme.method]:
            if prefix != name and self._is_stored(f"{prefix}.{suffix}"):
                return f"{prefix}.{suffix}"
        short = prefix != name and any(self._is_stored(f"{prefix}.{s}") for s in FLOAT8_SCALES)
        return name if short and self._is_stored(name) else None

    def has(self, name: str) -> bool:
        return self._is_stored(name) or self._codes(name) is not None

    def dtype(self) -> str:
        for name in self._place:
            if name.endswith(("scales", "weight_scale", "norm.weight")):
                return str(self.view_stored(name).dtype).removeprefix("torch.")
        return "float16"

    def _is_stored(self, name: str) -> bool:
        return sliced(name)[0] in self._place

    def view_stored(self, name: str) -> Tensor:
        return super().view(name)

    def shape(self, name: str) -> tuple[list[int], Path]:
        codes = self._codes(name)
        if codes is None:
            return super().shape(name)
        handle, path = self._place[codes]
        first, second = handle.get_slice(codes).get_shape()
        each = WORD_BITS // self.scheme.bits
        if codes.endswith("qweight"):
            return ([second * each, first] if self.scheme.method == "awq" else [second, first * each]), path
        if codes.endswith("weight_packed"):
            told = codes.replace("_packed", "_shape")
            return [first, int(self.view_stored(told)[1]) if self._is_stored(told) else second * each], path
        return [first, second], path

    def view(self, name: str) -> Tensor:
        """A plain tensor, or a quantised matrix dequantised to float32."""
        if self._codes(name) is None:
            return super().view(name)
        parts = self._parts(name)
        if parts is None:
            return self._float8(name)
        codes, scale, zero, group = parts
        inputs = codes.shape[1]
        return (codes.float() - spread(zero, group, inputs)) * spread(scale.float(), group, inputs)

    def stored(self, name: str) -> Grouped | StoredRows | None:
        """A matrix as it is stored; None for what the native kernels do not compute so."""
        if self._codes(name) is None:
            return self._stored_rows(name)
        parts = self._parts(name)
        if parts is None:
            return self._stored_float8(name)
        codes, scale, zero, group = parts
        order = None
        if isinstance(group, Tensor):  # each input names its group: inputs of a group are put side by side
            order, group = group.argsort(stable=True), _even_size(group, scale.shape[1])
            codes = codes[:, order]
        narrow = scale.dtype in (torch.float16, torch.bfloat16) and bool(scale.isfinite().all())
        if not group or group % GROUP_SIZE or not narrow:
            return None
        count = -(-codes.shape[1] // GROUP_SIZE)
        scale, zero = (part.repeat_interleave(group // GROUP_SIZE, 1)[:, :count].contiguous() for part in (scale, zero))
        if self.scheme.bits == 4:
            return Grouped(codes, scale, zero=zero.to(torch.uint8), order=order)
        return Grouped((codes.int() - 128).to(torch.int8), scale, order=order) if bool((zero == 128).all()) else None

    def _stored_rows(self, name: str) -> StoredRows | None:
        weight = self.view_stored(name).contiguous()
        kind = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}.get(weight.dtype)
        if kind is None:
            return None
        return StoredRows(kind, PLAIN_NUMBERS[kind], weight.shape[1], weight.view(torch.uint8).numpy())

    def _parts(self, name: str) -> tuple[Tensor, Tensor, Tensor, int | Tensor] | None:
        """Codes [N, K] uint8, scales and zeros [N, K / group], and `group`: the inputs of one, or the group of each.

        None where weights are floats of 8 bits. Raises ModelError where the parts do not fit each other.
        """
        prefix, codes_name = name.removesuffix(".weight"), self._codes(name)
        assert codes_name is not None
        stored, bits = self.view_stored(codes_name), self.scheme.bits
        if stored.dtype in FLOAT8_TYPES:
            return None
        rows, inputs = self.shape(name)[0]
        optional = {part: self.view_stored(f"{prefix}.{part}") for part in PARTS if self._is_stored(f"{prefix}.{part}")}
        try:
            if stored.dtype not in (torch.int32, torch.int8):
                raise ValueError(f"its codes are {str(stored.dtype).removeprefix('torch.')}")
            if codes_name.endswith("qweight"):
                awq = self.scheme.method == "awq"
                codes = unpacked(stored, bits, AWQ_PLACES).T if awq else unpacked(stored.T, bits)
                scale = optional["scales"].T.contiguous()
                zero = unpacked(optional["qzeros"], bits, AWQ_PLACES if awq else None).T + self.scheme.zero_offset
            else:
                codes = unpacked(stored, bits)[:, :inputs] if stored.dtype == torch.int32 else stored.int() + 128
                scale, middle = optional["weight_scale"], 1 << bits - 1
                scale = scale.view(-1, 1) if scale.dim() < 2 else scale
                scale = scale.expand(rows, -1) if len(scale) == 1 else scale
                zero = torch.full(scale.shape, middle)
                if (packed := optional.get("weight_zero_point")) is not None:
                    narrow = packed.dtype == torch.int32 and packed.shape != scale.shape
                    zero = unpacked(packed.T, bits).T[:rows] if narrow else packed.int() + middle
            group: int | Tensor = -(-inputs // scale.shape[1])
            order = optional.get("g_idx", optional.get("weight_g_idx"))
            if order is not None and not torch.equal(order, (torch.arange(inputs) // group).to(order.dtype)):
                group = order.long()
            if [*codes.shape] != [rows, inputs] or zero.shape != scale.shape or len(scale) != rows:
                raise ValueError(f"codes {list(codes.shape)}, scales {list(scale.shape)}, zeros {list(zero.shape)}")
        except (KeyError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"{self.shape(name)[1]}: the parts of quantised matrix {prefix} do not fit each other ({error}); fetch "
                "the checkpoint again, or correct quantization_config"
            ) from error
        return codes.to(torch.uint8).contiguous(), scale, zero, group

    def _float8(self, name: str) -> Tensor:
        """A matrix of FP8 numbers [N, K] dequantised to float32."""
        weight, (scale, size) = self.view_stored(name), self._float8_scales(name)
        return weight.float() * spread(scale, size, weight.shape[1])

    def _float8_scales(self, name: str) -> tuple[Tensor, int]:
        """Scales [N, K / size] float32 of a matrix of FP8 numbers, and the inputs of one.

        They are stored for the whole matrix, for each output, or for each block of outputs and inputs. Raises
        ModelError where they do not fit the matrix.
        """
        (rows, inputs), path = self.shape(name)
        prefix = name.removesuffix(".weight")
        scale_name = next(f"{prefix}.{one}" for one in FLOAT8_SCALES if self._is_stored(f"{prefix}.{one}"))
        scale = self.view_stored(scale_name).float()
        if scale.numel() == 1 or [*scale.shape] in ([rows], [rows, 1]):
            return scale.reshape(-1, 1).expand(rows, 1), inputs
        height, size = self.scheme.block
        if [*scale.shape] != [-(-rows // height), -(-inputs // size)]:
            raise ModelError(
                f"{path}: the parts of quantised matrix {prefix} do not fit each other (scales {list(scale.shape)} of "
                f"[{rows}, {inputs}] in blocks of {height} and {size}); fetch the checkpoint again, or correct "
                "quantization_config"
            )
        return scale.repeat_interleave(height, 0)[:rows], size

    def _stored_float8(self, name: str) -> StoredRows | None:
        """A matrix of FP8 numbers as the kernels read it: blocks of 128 inputs behind their scale."""
        weight, (scale, size) = self.view_stored(name), self._float8_scales(name)
        rows, inputs = weight.shape
        codes = weight.view(torch.uint8)
        known = weight.dtype == torch.float8_e4m3fn and not bool((codes & 0x7F == FP8_NOT_A_NUMBER).any())
        if not known or (size % FP8_INPUTS and size != inputs):
            return None
        count = -(-inputs // FP8_INPUTS)
        scale = scale.repeat_interleave(-(-size // FP8_INPUTS), 1)[:, :count, None].contiguous()
        blocks = F.pad(codes, (0, count * FP8_INPUTS - inputs)).view(rows, count, FP8_INPUTS)
        data = torch.cat((scale.view(torch.uint8), blocks), -1).flatten(1)
        return StoredRows("FP8", FP8_FORMAT, inputs, data.numpy())


def unpacked(words: Tensor, bits: int, places: tuple[int, ...] | None = None) -> Tensor:
    """Codes [N, M * 32 / bits] of words [N, M] int32, the first in the low bits; `places` of the codes in a word."""
    count = WORD_BITS // bits
    shifts = torch.tensor([bits * place for place in (places or range(count))], dtype=torch.int32)
    return (words[:, :, None] >> shifts & ((1 << bits) - 1)).flatten(1)


def _even_size(group: Tensor, count: int) -> int:
    """The inputs of a group where all but the last of `count` groups have as many; else 0."""
    sizes = torch.bincount(group, minlength=count)
    even = bool((sizes[:-1] == sizes[0]).all()) and 0 < int(sizes[-1]) <= int(sizes[0])
    return int(sizes[0]) if even else 0


def spread(values: Tensor, group: int | Tensor, inputs: int) -> Tensor:
    """Values [N, groups] -> [N, inputs]: `group` is the size of a group of inputs, or the group of each input."""
    return values[:, group] if isinstance(group, Tensor) else values.repeat_interleave(group, 1)[:, :inputs]
