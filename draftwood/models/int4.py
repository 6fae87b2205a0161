"""The matrices of a decoder's layers in four bits: made with calibration text, kept next to the checkpoint.

They are made layer by layer. The inputs of a layer are the outputs of the quantised layers before it, and the second
moments of the inputs tell which errors matter. The head is quantised to int8 instead: with four bits, greedy decoding
agrees with the exact model at five percent fewer places (docs/results.md).
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.corpus import mixed
from draftwood.errors import ModelError
from draftwood.models.checkpoints import artifact, checkpoint, gguf_parts
from draftwood.models.checkpoints.artifact import Artifact
from draftwood.models.checkpoints.safetensors_weights import weight_files
from draftwood.models.decoder import Decoder
from draftwood.models.quantise import GROUP_SIZE, Grouped, quantise
from draftwood.models.text.tokenizer import Tokenizer

KIND = "int4"
FORMAT = 1  # of the files, and of how weights are chosen
CALIBRATION_ROWS, CALIBRATION_LENGTH = 16, 256  # of calibration text, in tokens
FINGERPRINT_PIECES, PIECE_BYTES = 1024, 16384  # pieces of a file that a fingerprint is made of, and their bytes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Matrices(Mapping[str, Grouped]):
    """Quantised matrices by the names of the decoder's modules, such as layers.0.qkv; stored with two codes a byte."""

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


@torch.no_grad()
def quantised(decoder: Decoder, rows: Tensor | None, advance: Callable[[float], None] = lambda share: None) -> Matrices:
    """Quantise all matrices of a decoder's layers; the decoder, loaded with packed=False, does not change.

    `rows` [R, T] are tokens to calibrate with; None: all inputs count alike. `advance` is called with the share of the
    weights that was quantised since its last call.
    """
    decoder.must_be_plain("quantised")
    layers: Any = decoder.layers
    total = sum(part.numel() for part in layers.parameters() if part.dim() > 1)
    made = Matrices()
    x = None if rows is None else decoder.embedded(rows, torch.arange(rows.shape[1])[None]).float()
    for i, layer in enumerate(layers):
        block = copy.deepcopy(layer).float()
        layers[i] = block
        try:
            moments = {} if x is None else input_moments(block, partial(decoder.train_layers, x, i, i + 1))
            for name, linear in block.named_children():
                matrix = quantise(linear.weight, moments.get(name))
                linear.weight.copy_(matrix.weight())
                made.add(f"layers.{i}.{name}", matrix)
                advance(linear.weight.numel() / total)
            x = None if x is None else decoder.train_layers(x, i, i + 1)
        finally:
            layers[i] = layer
    return made


def input_moments(block: nn.Module, run: Callable[[], Any]) -> dict[str, Tensor]:
    """Second moments [K, K] of the inputs of each linear layer of a block while `run` runs it, by name."""
    moments: dict[str, Tensor] = {}

    def note(name: str, module: nn.Module, inputs: tuple[Tensor]) -> None:
        x = inputs[0].flatten(0, -2)
        moments[name] = x.T @ x / len(x)

    hooks = [child.register_forward_pre_hook(partial(note, name)) for name, child in block.named_children()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return moments


def calibration(tokenizer: Tokenizer, context: int) -> Tensor:
    """Tokens [R, T] of the embedded corpus to calibrate with: prose, questions, SQL, sums, Python."""
    wanted, length = CALIBRATION_ROWS * CALIBRATION_LENGTH, min(CALIBRATION_LENGTH, context)
    tokens: list[int] = []
    for document in mixed("train"):
        tokens += tokenizer.encode(document.text)
        if len(tokens) >= wanted:
            break
    return torch.tensor(tokens[: wanted - wanted % length]).view(-1, length)


def save(path: Path, matrices: Matrices, model: str) -> None:
    """Write the matrices of the model with fingerprint `model`, atomically; ModelError where that fails."""
    settings = {"format": FORMAT, "columns": matrices.columns}
    about = {"group": GROUP_SIZE, "calibration": f"{CALIBRATION_ROWS}x{CALIBRATION_LENGTH} tokens of the corpus"}
    Artifact(KIND, {"model": model}, settings, matrices.tensors, about).save(path)


def load(path: Path, model: str) -> Matrices:
    """Load saved matrices; ModelError where they are missing, damaged, of another format or of another model."""
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
    return Matrices(dict(file.tensors), dict(columns or {}))


def fingerprint(home: Path) -> str:
    """16 hexadecimal digits of the weights of a checkpoint: names, sizes and 1024 evenly spaced pieces of each file."""
    digest = hashlib.sha256()
    for path in gguf_parts.opened(home).parts if home.is_file() else weight_files(home):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for start in range(0, size, max(PIECE_BYTES, size // FINGERPRINT_PIECES)):
                file.seek(start)
                digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()[:16]


def cached(home: Path, tokenizer: Tokenizer | None, advance: Callable[[float], None] = lambda share: None) -> Matrices:
    """The matrices of a checkpoint (a directory or a GGUF file), from the file saved before, or made and saved now.

    The file is next to the weights, or in the user's cache where that directory cannot be written. A file that is
    damaged or of other weights is made again, with a warning.
    """
    whose = fingerprint(home)
    beside_weights = (
        home.parent / KIND / f"{home.stem}.safetensors" if home.is_file() else artifact.companion(home, KIND)
    )
    places = beside_weights, Path.home() / ".cache" / "draftwood" / KIND / f"{whose}.safetensors"
    for path in places:
        if path.is_file():
            try:
                return load(path, whose)
            except ModelError as error:
                log.warning("%s", error)
    decoder = checkpoint.load(home, "auto", packed=False)
    rows = None if tokenizer is None else calibration(tokenizer, decoder.context)
    made = quantised(decoder, rows, advance)
    for path in places:
        try:
            save(path, made, whose)
            break
        except ModelError as error:
            log.info("%s", error)
    return made
