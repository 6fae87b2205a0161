"""The model pairs of the experiments, grown once and kept.

"embedded" is the pair that draftwood ships. The others are grown from it (benchmarks/grow): the same greedy text and
acceptance at the cost per token of published models' shapes, those of Llama 160M and TinyLlama 1.1B. Heads stay 32
wide and the vocabulary stays at 2048 tokens. They lie in DRAFTWOOD_PAIRS, by default ~/.cache/draftwood/pairs.
Real models are GGUF files without a draft, which `python -m recipes.real_models` fetches; one of them is grown, too,
with the EAGLE head that was trained for it beside it. Mixtures of experts are files of random weights, without a draft,
too (recipes/random_models.py).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.grow.checkpoint import grow_checkpoint
from benchmarks.grow.growth import SHAPE
from benchmarks.grow.unpacked import unpack
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ConfigurationError, ModelError, did_you_mean
from draftwood.models.checkpoints.checkpoint import read_config
from draftwood.util.safe_parsing import read_text
from recipes import random_models
from recipes.real_models import GEMMA, SMOLLM2
from recipes.real_models import directory as real_models

Shape = dict[str, int]
ORIGIN = "grown-from.sha256"  # beside a grown model: of the files that it was grown from


def _shape(layers: int, width: int, heads: int, kv_heads: int, intermediate: int) -> Shape:
    return {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads, "intermediate": intermediate}


PAIRS: dict[str, dict[str, Shape]] = {
    "embedded": {},
    "grown-12x768": {"target": _shape(12, 768, 24, 24, 3072), "draft": _shape(2, 256, 8, 4, 704)},
    "grown-22x2048": {"target": _shape(22, 2048, 64, 8, 5632), "draft": _shape(4, 512, 16, 8, 1408)},
}
REAL = {"smollm2": SMOLLM2, "gemma3-270m": GEMMA}
GROWN_REAL = {  # 1.7 and 7.2 billion weights, in bfloat16
    "smollm2-30x2048": ("smollm2", _shape(30, 2048, 32, 8, 6144)),
    "smollm2-32x4096": ("smollm2", _shape(32, 4096, 64, 16, 14336)),
}
TRAINED = Path(__file__).parent / "trained"  # for real models, by their names
RANDOM = {  # files of random weights: their shape, and the type of their matrices
    f"{name}-{kind.lower()}": (shape, kind)
    for name, shape in (("a3b-4-layers", random_models.Mixture()), ("qwen3.5-4b-8-layers", random_models.Hybrid()))
    for kind in ("Q4_0", "Q4_K")
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two checkpoints, of which a real model has only the target, and a directory for what is made of them."""

    name: str
    target: Path
    draft: Path | None
    made: Path


def home() -> Path:
    """The directory in which pairs are kept."""
    return Path(os.environ.get("DRAFTWOOD_PAIRS") or Path.home() / ".cache" / "draftwood" / "pairs").expanduser()


def pair(name: str) -> Pair:
    """A pair by its name, grown first where it is not there yet; raises ConfigurationError where there is none."""
    place = home() / name
    if name in REAL:
        target = real_models() / REAL[name].file
        if not target.is_file():
            raise ConfigurationError(f"{target} is not there; `python -m recipes.real_models` fetches it")
        return Pair(name, target, None, place)
    if name in GROWN_REAL:
        real, shape = GROWN_REAL[name]
        source = pair(real).target, REAL[real].sha256, TRAINED / real
        return Pair(name, make_real(*source, shape, place / "target"), None, place)
    if name in RANDOM:
        model, kind = RANDOM[name]
        return Pair(name, random_models.write(place / f"{name}.gguf", kind, model), None, place)
    if name not in PAIRS:
        raise ConfigurationError(
            f"there is no pair {name!r}" + did_you_mean(name, [*PAIRS, *REAL, *GROWN_REAL, *RANDOM])
        )
    if not PAIRS[name]:
        return Pair(name, EMBEDDED / "target", EMBEDDED / "draft", place)
    for role, shape in PAIRS[name].items():
        make(role, shape, place / role)
    return Pair(name, place / "target", place / "draft", place)


def make(role: str, shape: Shape, out: Path) -> None:
    """Grow the embedded `role`, unless that was done."""
    source = EMBEDDED / role
    grow_once(digest(source), shape, out, lambda part: grow_checkpoint(source, part, f"embedded:{role}", shape))


def make_real(file: Path, origin: str, trained: Path, shape: Shape, out: Path) -> Path:
    """Grow the model of a GGUF file whose digest is `origin`, and what was `trained` for it, unless that was done."""

    def grow(part: Path) -> None:
        plain = part.with_name("plain")
        unpack(file, plain)
        for learned in (each for each in trained.iterdir() if each.is_dir()):
            shutil.copytree(learned, plain / learned.name)
        grow_checkpoint(plain, part, file.name, shape, "bfloat16")

    grow_once(f"{origin} {digest(trained)}", shape, out, grow)
    return out


def grow_once(origin: str, shape: Shape, out: Path, grow: Callable[[Path], object]) -> None:
    """Have `grow` write a directory, unless `out` is it already; it gets its name when it is whole."""
    if is_grown(origin, shape, out):
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.part-", dir=out.parent) as place:
        part = Path(place) / out.name
        grow(part)
        if out.exists() and not is_grown(origin, shape, out):
            shutil.rmtree(out)  # of an earlier recipe
        (part / ORIGIN).write_text(origin, "utf-8")
        with suppress(OSError):  # another process was first: its files are the same
            part.rename(out)


def is_made(role: str, shape: Shape, directory: Path) -> bool:
    """True if a directory holds the whole model of this shape, with all that lies beside the embedded one."""
    return is_grown(digest(EMBEDDED / role), shape, directory)


def is_grown(origin: str, shape: Shape, directory: Path) -> bool:
    """True if a directory holds the whole model of this shape, grown from what has this digest.

    Its name alone says that it was finished.
    """
    try:
        config, noted = read_config(directory), read_text(directory / ORIGIN)
    except (ModelError, OSError):
        return False
    return noted == origin and all(config[SHAPE[name]] == value for name, value in shape.items())


def digest(directory: Path) -> str:
    """SHA-256 of all models below a directory, and of what was learned for them."""
    found = sha256()
    for path in sorted(directory.rglob("*.safetensors")):
        found.update(f"{path.relative_to(directory)}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def describe(chosen: Pair) -> dict[str, Any]:
    """The name and the shapes of the models, as they head result files; of a real one the name of its file."""
    found: dict[str, Any] = {"pair": chosen.name}
    for role, place in (("target", chosen.target), ("draft", chosen.draft)):
        if place is not None and place.is_file():
            found[role] = {"file": place.name}
        elif place is not None:
            config = read_config(place)
            found[role] = {name: config[key] for name, key in SHAPE.items()} | {"grown": "grown_from" in config}
    return found
