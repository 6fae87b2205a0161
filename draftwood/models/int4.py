"""The matrices of a decoder's layers in four bits: made with calibration text, kept next to the checkpoint.

They are made one after another while the calibration text runs through the model. A matrix sees the outputs of those
before it as already quantised, and the second moments of its inputs tell which errors matter. The head is quantised to
int8 instead: with four bits, greedy decoding agrees with the exact model at five percent fewer places
(docs/results.md).
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.checkpoints import artifact, checkpoint, gguf_parts
from draftwood.models.checkpoints.artifact import Artifact
from draftwood.models.checkpoints.files import file_fingerprint
from draftwood.models.checkpoints.safetensors_weights import weight_files
from draftwood.models.decoder import Decoder
from draftwood.models.modules import ExactLinear
from draftwood.models.quantise import GROUP_SIZE, Grouped, quantise

KIND = "int4"
FORMAT = 2  # of the files, and of how weights are chosen

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Matrices(Mapping[str, Grouped]):
    """Quantised matrices by the names of the decoder's modules, such as layers.0.mixer.qkv; two codes a byte."""

    tensors: dict[str, Tensor] = field(default_factory=dict)  # NAME.codes, NAME.scale, NAME.shift
    columns: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Grouped:
        packed, scale, shift = (self.tensors[f"{name}.{part}"] for part in ("codes", "scale", "shift"))
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1)[:, : self.columns[name]]
        return Grouped(codes.contiguous(), scale, shift)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def add(self, name: str, matrix: Grouped) -> None:
        self.columns[name] = count = matrix.codes.shape[1]
        codes = F.pad(matrix.codes, (0, count % 2))
        self.tensors[f"{name}.codes"] = codes[:, ::2] | codes[:, 1::2] << 4
        assert matrix.shift is not None
        self.tensors.update({f"{name}.scale": matrix.scale, f"{name}.shift": matrix.shift})


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """Text to calibrate with.

    `name` tells texts apart in saved files. `rows` makes the tokens [R, T] for a model of a context length, T being at
    most that; they are made when they are needed, or None: all inputs of a matrix count alike.
    """

    name: str
    rows: Callable[[int], Tensor | None]


NO_TEXT = CalibrationText("none", lambda context: None)


@torch.no_grad()
def quantised(decoder: Decoder, rows: Tensor | None, advance: Callable[[float], None] = lambda share: None) -> Matrices:
    """Quantise all matrices of a decoder's layers; the decoder, loaded with packed=False, does not change.

    `rows` [R, T] are tokens to calibrate with; None: all inputs count alike. `advance` is called with 0 at the start,
    then after each layer with its share of the weights. ModelError for tokens that the model does not have.
    """
    decoder.must_be_plain("quantised")
    if rows is not None and not 0 <= int(rows.min()) <= int(rows.max()) < decoder.vocab_size:
        raise ModelError(
            f"the calibration text has tokens outside of the model's vocabulary of {decoder.vocab_size}; "
            "give text, or tokens of this model"
        )
    layers: Any = decoder.layers
    total = sum(part.numel() for part in layers.parameters() if part.dim() > 1)
    made = Matrices()
    texts = None if rows is None else decoder.texts(rows, torch.float32)
    x = None if texts is None else texts.x
    advance(0)
    for i, layer in enumerate(layers):
        layers[i] = block = copy.deepcopy(layer).float()
        known = {name: part for name, part in block.named_modules() if isinstance(part, nn.Linear)}
        matrices = {name: part for name, part in known.items() if not isinstance(part, ExactLinear)}
        try:
            for name, linear in matrices.items():
                if x is None:
                    _replace(made, f"layers.{i}.{name}", linear, ())
                else:  # as soon as its inputs are known
                    linear.register_forward_pre_hook(partial(_replace, made, f"layers.{i}.{name}"))
            x = None if x is None else decoder.train_layers(x, i, i + 1, texts)
            for name, linear in matrices.items():
                if f"layers.{i}.{name}" not in made.columns:  # an expert that no row of the text chose
                    _replace(made, f"layers.{i}.{name}", linear, ())
        finally:
            layers[i] = layer
        advance(sum(part.numel() for part in layer.parameters() if part.dim() > 1) / total)
    return made


def _replace(made: Matrices, name: str, linear: Any, inputs: tuple[Tensor, ...]) -> None:
    """Quantise the weight of a linear layer for its inputs [..., K], if any; the layer computes with the result."""
    moments = None
    if inputs:
        x = inputs[0].flatten(0, -2)
        moments = x.T @ x / len(x)
    matrix = quantise(linear.weight, moments)
    linear.weight.copy_(matrix.weight())
    made.add(name, matrix)


def save(path: Path, matrices: Matrices, model: str, calibration: str) -> None:
    """Write matrices in one move; ModelError where that fails.

    `model` is the fingerprint of the model, `calibration` the name of the text that they were calibrated with.
    """
    settings = {"format": FORMAT, "columns": matrices.columns, "calibration": calibration}
    Artifact(KIND, {"model": model}, settings, matrices.tensors, {"group": GROUP_SIZE}).save(path)


def load(path: Path, model: str, calibration: str) -> Matrices | None:
    """Load saved matrices; None where they were calibrated with another text than that of the name `calibration`.

    ModelError where they are missing, damaged, of another format or of another model.
    """
    file = artifact.load(path, KIND, model=model)
    if file.settings.get("format") != FORMAT:
        raise artifact.damaged(path, KIND, "it has another format")
    columns = file.settings.get("columns")
    try:
        for name, count in dict(columns or {}).items():
            parts = [file.tensors[f"{name}.{part}"] for part in ("codes", "scale", "shift")]
            rows, groups = len(parts[0]), -(-count // GROUP_SIZE)
            if [part.shape for part in parts] != [(rows, -(-count // 2)), (rows, groups), (rows, groups)]:
                raise ValueError(f"{name} has another shape")
            if [part.dtype for part in parts] != [torch.uint8, torch.float16, torch.float16]:
                raise ValueError(f"{name} has another dtype")
    except (LookupError, TypeError, ValueError) as error:
        raise artifact.damaged(path, KIND, error) from error
    if file.settings.get("calibration") != calibration:
        return None
    return Matrices(dict(file.tensors), dict(columns or {}))


def fingerprint(home: Path) -> str:
    """The fingerprint of the files that hold a checkpoint's weights."""
    return file_fingerprint(gguf_parts.opened(home).parts if home.is_file() else weight_files(home))


def cached(home: Path, text: CalibrationText, advance: Callable[[float], None] = lambda share: None) -> Matrices:
    """The matrices of a checkpoint (a directory or a GGUF file), from the file saved before, or made and saved now.

    The file is next to the weights, or in the user's cache where that directory cannot be written. A file that is
    damaged or of other weights is made again, with a warning; so is one that was calibrated with another text.
    `advance` is as in `quantised`.
    """
    whose = fingerprint(home)
    if (kept := saved(home, text, whose)) is not None:
        return kept
    rows = text.rows(checkpoint.described(home)[2].max_position_embeddings)
    made = quantised(checkpoint.load(home, "auto", packed=False), rows, advance)
    for path in _places(home, whose):
        try:
            save(path, made, whose, text.name)
            break
        except ModelError as error:
            log.info("%s", error)
    return made


def saved(home: Path, text: CalibrationText, whose: str | None = None) -> Matrices | None:
    """The matrices that were saved for a checkpoint of the fingerprint `whose`; None where there are none of a text."""
    whose = fingerprint(home) if whose is None else whose
    for path in _places(home, whose):
        if path.is_file():
            try:
                if (kept := load(path, whose, text.name)) is not None:
                    return kept
                log.info("%s was calibrated with another text than %s", path, text.name)
            except ModelError as error:
                log.warning("%s", error)
    return None


def _places(home: Path, whose: str) -> tuple[Path, Path]:
    """Where the file of a checkpoint may be: next to its weights, and in the user's cache."""
    if home.is_file():
        beside_weights = home.parent / KIND / f"{home.stem}.safetensors"
    else:
        beside_weights = artifact.companion(home, KIND)
    return beside_weights, Path.home() / ".cache" / "draftwood" / KIND / f"{whose}.safetensors"
