"""A Llama checkpoint's tensors for converters, one at a time, under Hugging Face's names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwood.eval.experiments.engines import Unavailable


@dataclass(frozen=True, slots=True)
class Shape:
    """What converters need of config.json."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int
    norm_eps: float
    rope_theta: float
    tied: bool

    @staticmethod
    def of(directory: Path) -> Shape:
        c = json.loads((directory / "config.json").read_text("utf-8"))
        rope = c.get("rope_parameters") or {}
        if c["model_type"] != "llama" or rope.get("rope_type", "default") != "default":
            raise Unavailable(f"{directory.name} is not a plain Llama model, which is all that is converted here")
        return Shape(
            c["num_hidden_layers"],
            c["hidden_size"],
            c["num_attention_heads"],
            c["num_key_value_heads"],
            c["head_dim"],
            c["intermediate_size"],
            c["vocab_size"],
            c["max_position_embeddings"],
            c["rms_norm_eps"],
            rope.get("rope_theta", c.get("rope_theta", 10000.0)),
            c.get("tie_word_embeddings", False),
        )


class Weights:
    """Tensors by name, as float32 arrays."""

    def __init__(self, directory: Path) -> None:
        from safetensors import safe_open

        self.shape = Shape.of(directory)
        self._files = [safe_open(file, framework="pt") for file in sorted(directory.glob("*.safetensors"))]
        self._where = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118  (not a mapping)

    def __getitem__(self, name: str) -> Any:
        if name == "lm_head.weight" and self.shape.tied:
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
    part.unlink(missing_ok=True)
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
