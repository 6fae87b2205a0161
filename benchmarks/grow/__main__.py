"""`python -m benchmarks.grow`: a checkpoint of a larger shape that computes the same function."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.command import started
from benchmarks.grow.checkpoint import grow_checkpoint
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ConfigurationError
from draftwood.models.checkpoints import checkpoint

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Size = Annotated[int | None, typer.Option(help="Default: as the width grows.")]


@app.command()
def grow(
    out: Annotated[Path, typer.Argument(help="Directory to write.")],
    source: Annotated[str, typer.Option(help="Or embedded:draft, a directory, a hub id.")] = "embedded:target",
    like: Annotated[str, typer.Option(help="Layers x width: 12x768 as GPT-2, 22x2048 as TinyLlama.")] = "",
    layers: Size = None,
    width: Size = None,
    heads: Size = None,
    kv_heads: Size = None,
    intermediate: Size = None,
    keep_first: Annotated[int, typer.Option(help="Layers are added after these, for early exits.")] = 2,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float64.")] = "float32",
    seed: Annotated[int, typer.Option(help="Of the added weights.")] = 0,
) -> None:
    """Enlarge a model's shape without changing its output.

    The cost of a model of that shape can then be measured with the acceptance of a small one. The result is a normal
    checkpoint; its config.json has grown_from. What was learned for the source (an exit, heads) is enlarged too.
    """
    if like:
        numbers = like.split("x")
        if len(numbers) != 2 or not all(map(str.isdecimal, numbers)) or layers or width:
            raise ConfigurationError("--like takes layers x width, such as 22x2048, instead of --layers and --width")
        layers, width = map(int, numbers)
    role = source.removeprefix("embedded:")
    place = checkpoint.locate(EMBEDDED / role if role != source else source)
    shape = {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads, "intermediate": intermediate}
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("growing", total=1.0)
        options = {**shape, "keep_first": keep_first, "seed": seed}
        sizes = grow_checkpoint(place, out, source, options, dtype, lambda share: bar.advance(task, share))
    for when, size in sizes.items():
        print(f"{when}: " + ", ".join(f"{name} {number:,}" for name, number in size.items()))


if __name__ == "__main__":
    sys.exit(started(app, "benchmarks.grow"))
