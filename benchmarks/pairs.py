"""The model pairs that every speed benchmark uses, grown once and kept.

"embedded" is the pair that draftwood ships. The others are grown from it (draftwood grow): the same greedy text and
acceptance, at the cost per token of published models' shapes. The layers' shapes are those of Llama 160M and of
TinyLlama 1.1B, but heads stay 32 wide, so there are twice as many of half the size, and the vocabulary stays at 2048
tokens, so embeddings and head are smaller than theirs.

Run: python benchmarks/pairs.py [NAME ...]
Directory: DRAFTWOOD_PAIRS, by default ~/.cache/draftwood/pairs
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwood.cli.grow import grow
from draftwood.loading import EMBEDDED

SHAPE = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
}


def _shape(layers: int, width: int, heads: int, kv_heads: int, intermediate: int) -> dict[str, int]:
    return {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads, "intermediate": intermediate}


RECIPES: dict[str, dict[str, dict[str, int]]] = {
    "embedded": {},
    "grown-12x768": {"target": _shape(12, 768, 24, 24, 3072), "draft": _shape(2, 256, 8, 4, 704)},
    "grown-22x2048": {"target": _shape(22, 2048, 64, 8, 5632), "draft": _shape(4, 512, 16, 8, 1408)},
}
NAMES = tuple(RECIPES)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two checkpoint directories, and a place for what peers make of them."""

    name: str
    target: Path
    draft: Path
    made: Path  # converted models go here

    def describe(self) -> dict[str, Any]:
        """For result files: shapes and sizes."""
        return {"name": self.name, "target": _describe(self.target), "draft": _describe(self.draft)}


def home() -> Path:
    """Where pairs are kept."""
    return Path(os.environ.get("DRAFTWOOD_PAIRS") or Path.home() / ".cache" / "draftwood" / "pairs").expanduser()


def pair(name: str) -> Pair:
    """A pair, grown first where it is not there yet."""
    if name not in RECIPES:
        raise SystemExit(f"there is no pair {name!r}; there are {', '.join(NAMES)}")
    place = home() / name
    if not RECIPES[name]:
        return Pair(name, Path(str(EMBEDDED / "target")), Path(str(EMBEDDED / "draft")), place)
    for role, shape in RECIPES[name].items():
        make(role, shape, place / role)
    return Pair(name, place / "target", place / "draft", place)


def make(role: str, shape: dict[str, int], out: Path) -> None:
    """Grow the embedded `role` in a directory beside `out`, and give it its name when it is whole."""
    if is_made(out, shape):
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f"{out.name}.part-*"):
        if not _alive(int(left.name.rpartition("-")[2])):
            shutil.rmtree(left)
    part = out.with_name(f"{out.name}.part-{os.getpid()}")
    try:
        grow(f"embedded:{role}", part, **shape)
        if out.exists() and not is_made(out, shape):
            shutil.rmtree(out)  # of an earlier recipe
        with suppress(OSError):  # another process was first: its files are the same
            part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def is_made(directory: Path, shape: dict[str, int]) -> bool:
    """Whether a directory holds the whole model of this shape. Its name alone says that it was finished."""
    try:
        config = json.loads((directory / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return "grown_from" in config and all(config[SHAPE[name]] == value for name, value in shape.items())


def parameters(directory: Path) -> int:
    """How many weights a checkpoint's files hold, from their headers."""
    count = 0
    for file in directory.glob("*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__":
                size = 1
                for length in entry["shape"]:
                    size *= length
                count += size
    return count


def _describe(directory: Path) -> dict[str, Any]:
    config = json.loads((directory / "config.json").read_text("utf-8"))
    shape = {name: config[key] for name, key in SHAPE.items()}
    return {
        "parameters": parameters(directory),
        **shape,
        "head_dim": config["head_dim"],
        "vocabulary": config["vocab_size"],
        "grown": "grown_from" in config,
    }


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    for name in parser.parse_args().names or NAMES:
        made = pair(name)
        for role in ("target", "draft"):
            print(f"{name}: {getattr(made, role)}: {parameters(getattr(made, role)):,} weights")


if __name__ == "__main__":
    main()
