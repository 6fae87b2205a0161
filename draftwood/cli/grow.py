"""`draftwood grow`: a checkpoint of a larger shape that computes the same function."""

from __future__ import annotations

import re
from pathlib import Path
from time import perf_counter
from typing import Literal

from draftwood.cli.groups import OutputOptions, ThreadOptions
from draftwood.cli.options import flag
from draftwood.cli.running import progress
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.explain.terminal import simple_table

PANEL = "Shape"
EMBEDDED_MODELS = ("embedded:target", "embedded:draft")


def grow(
    *,
    source: str = flag(
        ..., "embedded:target, embedded:draft, a checkpoint directory or a hub id.", "SRC", argument=True
    ),
    out: Path | None = flag(
        None,
        "Directory to write. A single argument is OUT, and SRC is then embedded:target.",
        "OUT",
        argument=True,
    ),
    layers: int | None = flag(None, "Layers.", panel=PANEL, usual="as the source"),
    width: int | None = flag(None, "Width of the residual stream.", panel=PANEL, usual="as the source"),
    like: str | None = flag(
        None, "Both at once: 12x768 (as GPT-2), 22x2048 (as TinyLlama), 32x4096 (as Llama 7B).", "LxD", panel=PANEL
    ),
    heads: int | None = flag(None, "Attention heads; their dimension stays.", panel=PANEL, usual="as the width grows"),
    kv_heads: int | None = flag(None, "Key/value heads.", panel=PANEL, usual="in groups as the source's"),
    intermediate: int | None = flag(None, "Hidden units of each MLP.", panel=PANEL, usual="as the width grows"),
    keep_first: int = flag(2, "Add layers after the first N, for early exits.", panel=PANEL, ge=0),
    dtype: Literal["float32", "bfloat16", "float64"] = flag(
        "float32", "float32, bfloat16 or float64; the added weights are too small for float16.", "TYPE", panel=PANEL
    ),
    seed: int = flag(0, "Seed of the added weights.", panel=PANEL),
    threads: ThreadOptions,
    output: OutputOptions,
) -> None:
    """Enlarge a model's shape without changing its output.

    The cost of a model of that shape can then be measured with the acceptance of a
    small one. The result is a normal checkpoint; its config.json has grown_from.
    An exit layer, heads, an EAGLE head and a skip set next to the source's weights
    are enlarged too.
    """
    if out is None:
        source, out = EMBEDDED_MODELS[0], Path(source)
    if like is not None:
        layers, width = _like(like, layers, width)
    from draftwood.models.grown import SHAPE, grow_checkpoint

    began = perf_counter()
    with progress(output.color, "growing", 1.0, percent=True) as update:
        sizes = grow_checkpoint(
            _locate(source),
            out,
            source,
            layers,
            width,
            heads,
            kv_heads,
            intermediate,
            keep_first,
            dtype,
            seed,
            lambda share: update(advance=share),
        )
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    written = {"source": source, "out": str(out), "dtype": dtype}
    document = {**written, **sizes, "bytes": size, "seconds": perf_counter() - began}
    shapes = [
        (when, f"{sizes[when]['parameters']:,}", *(str(sizes[when][name]) for name in SHAPE))
        for when in ("before", "after")
    ]
    headings = ("parameters", "layers", "width", "heads", "kv heads", "hidden")
    output.give(
        document,
        simple_table("", *(f">{name}" for name in headings), rows=shapes),
        f"{out}: {size:,} bytes, {dtype}, {document['seconds']:.1f} s",
    )


def _like(like: str, layers: int | None, width: int | None) -> tuple[int, int]:
    """Layers and width of 22x2048."""
    found = re.fullmatch(r"(\d{1,6})[x×](\d{1,6})", like, re.ASCII)
    if found is None:
        raise ConfigurationError(f"--like takes layers x width, such as 22x2048, not {like!r}")
    if layers is not None or width is not None:
        raise ConfigurationError("give --like or --layers and --width, not both")
    return int(found[1]), int(found[2])


def _locate(source: str) -> Path:
    from draftwood.engine.loading import EMBEDDED
    from draftwood.models.checkpoints import checkpoint

    if not source.startswith("embedded:"):
        return checkpoint.locate(source)
    if source not in EMBEDDED_MODELS:
        raise ConfigurationError(f"there is no model {source!r}" + did_you_mean(source, EMBEDDED_MODELS))
    return checkpoint.locate(EMBEDDED / source.partition(":")[2])
