"""A Llama checkpoint's tensors for converters, one at a time, under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.engines import Unavailable
from draftwood.models.checkpoints.checkpoint import read_config
from draftwood.models.checkpoints.families import FAMILIES
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.rotary import UNSCALED


def shape_of(directory: Path) -> DecoderConfig:
    """What converters need of config.json; raises Unavailable for what is no plain Llama model."""
    raw = read_config(directory)
    if raw["model_type"] == "llama":
        shape = FAMILIES["llama"].config(raw)
        if shape.rope_scaling == UNSCALED:
            return shape
    raise Unavailable(f"{directory.name} is not a plain Llama model, which is all that is converted here")


class Weights:
    """Tensors by name, as float32 arrays."""

    def __init__(self, directory: Path) -> None:
        from safetensors import safe_open

        self.shape = shape_of(directory)
        files = [safe_open(file, framework="pt") for file in sorted(directory.glob("*.safetensors"))]
        self._where = {name: file for file in files for name in file.keys()}  # noqa: SIM118  (not a mapping)

    def __getitem__(self, name: str) -> Any:
        if name == "lm_head.weight" and self.shape.tie_word_embeddings:
            name = "model.embed_tokens.weight"
        return self._where[name].get_tensor(name).float().numpy()


@contextmanager
def fresh(path: Path) -> Iterator[Path | None]:
    """A temporary name to write `path` under, or None where it is there; it gets its name when the body succeeds."""
    if path.exists():
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name("part-" + path.name)  # the ending stays: writers look at it
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
