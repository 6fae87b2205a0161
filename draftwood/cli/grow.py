"""`draftwood grow`: a checkpoint of a larger shape that gives the same text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from draftwood.cli import flags
from draftwood.cli.progress import advancing
from draftwood.errors import ConfigurationError

SHAPE = "Shape"
COPIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def grow(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="embedded:target, embedded:draft, a checkpoint directory or a hub id.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUT",
            help="The directory to write. If only one is given, it is this one, and SRC is embedded:target.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(metavar="L", help="Layers.", rich_help_panel=SHAPE, show_default="as the source")
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(
            metavar="D", help="Width of the residual stream.", rich_help_panel=SHAPE, show_default="as the source"
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="LxD",
            help="Both at once: 12x768 (as GPT-2), 22x2048 (as TinyLlama), 32x4096 (as Llama 7B).",
            rich_help_panel=SHAPE,
            show_default=False,
        ),
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(
            metavar="H",
            help="Attention heads; their dimension stays.",
            rich_help_panel=SHAPE,
            show_default="as the width grows",
        ),
    ] = None,
    kv_heads: Annotated[
        int | None,
        typer.Option(
            metavar="H", help="Key/value heads.", rich_help_panel=SHAPE, show_default="in groups as the source's"
        ),
    ] = None,
    intermediate: Annotated[
        int | None,
        typer.Option(
            metavar="D", help="Hidden units of each MLP.", rich_help_panel=SHAPE, show_default="as the width grows"
        ),
    ] = None,
    keep_first: Annotated[
        int,
        typer.Option(metavar="N", help="Layers are added after the first N, for early exits.", rich_help_panel=SHAPE),
    ] = 2,
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="float32, bfloat16 or float64.")] = "float32",
    seed: Annotated[int, typer.Option(metavar="N", help="Of the noise.")] = 0,
    color: flags.Color = None,
    json: flags.Json = False,
) -> None:
    """Grow a model to a larger shape that gives the same text.

    What a model of that shape costs can then be measured with the real acceptance
    of a small one. The result is a normal checkpoint; config.json says grown_from.
    An exit layer, heads and a skip set beside the source's weights are grown alike.
    """
    if out is None:
        source, out = "embedded:target", Path(source)
    if like is not None:
        layers, width = _like(like, layers, width)
    from draftwood.explain.terminal import as_json, console
    from draftwood.models import checkpoint, skip
    from draftwood.models import exit as exits
    from draftwood.models import heads as medusa
    from draftwood.models.grow import Growth, Shape, write
    from draftwood.models.grow_exit import write_exit
    from draftwood.models.grow_heads import write_heads
    from draftwood.models.grow_skip import write_grown_skipped

    began = perf_counter()
    directory = _locate(source)
    raw = checkpoint.read_config(directory)
    model = checkpoint.load(directory, "float64" if dtype == "float64" else "float32", packed=False)
    c = model.config
    growth = Growth.plan(
        model,
        c.num_hidden_layers if layers is None else layers,
        c.hidden_size if width is None else width,
        heads,
        kv_heads,
        intermediate,
        keep_first,
        seed,
    )
    count = sum(shape.numel() for _, shape, _ in growth.parameters(model))
    with advancing("growing", count, color, percent=True) as advance:
        config = write(model, out, growth, raw, dtype, source, advance)
    if (directory / exits.BESIDE / exits.ABOUT).is_file():
        write_exit(exits.load(directory / exits.BESIDE, model, packed=False), model, growth, out, dtype)
    if (directory / medusa.BESIDE / medusa.ABOUT).is_file():
        write_heads(medusa.load(directory / medusa.BESIDE, model, packed=False), model, growth, out, dtype)
    if (directory / skip.BESIDE).is_file():
        write_grown_skipped(skip.load_skipped(directory / skip.BESIDE, model), model, growth, out, dtype)
    for name in COPIED:
        if (directory / name).is_file():
            (out / name).write_bytes((directory / name).read_bytes())
    for template in directory.glob("*.jinja"):
        (out / template.name).write_bytes(template.read_bytes())
    before = {"parameters": config["grown_from"]["parameters"], **_as_dict(Shape.of(c))}
    after = {"parameters": count, **_as_dict(Shape.of(growth.config))}
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    document = {
        "source": source,
        "out": str(out),
        "dtype": dtype,
        "before": before,
        "after": after,
        "bytes": size,
        "seconds": perf_counter() - began,
    }
    if json:
        print(as_json(document))
    else:
        _show(document, console(color).print)


def _as_dict(shape: Any) -> dict[str, int]:
    return {name: getattr(shape, name) for name in ("layers", "width", "heads", "kv_heads", "intermediate")}


def _like(like: str, layers: int | None, width: int | None) -> tuple[int, int]:
    """Layers and width of 22x2048."""
    found = re.fullmatch(r"(\d{1,6})[x×](\d{1,6})", like, re.ASCII)
    if found is None:
        raise ConfigurationError(f"--like takes layers x width, such as 22x2048, not {like!r}")
    if layers is not None or width is not None:
        raise ConfigurationError("give --like or --layers and --width, not both")
    return int(found[1]), int(found[2])


def _locate(source: str) -> Path:
    from draftwood.errors import did_you_mean
    from draftwood.loading import EMBEDDED
    from draftwood.models import checkpoint

    if not source.startswith("embedded:"):
        return checkpoint.locate(source)
    known = ["embedded:target", "embedded:draft"]
    if source not in known:
        raise ConfigurationError(f"there is no model {source!r}" + did_you_mean(source, known))
    return checkpoint.locate(EMBEDDED / source.partition(":")[2])


def _show(document: dict[str, Any], show: Callable[..., Any]) -> None:
    from draftwood.explain.terminal import simple_table

    made = simple_table()
    made.add_column("")
    for name in ("parameters", "layers", "width", "heads", "kv heads", "hidden"):
        made.add_column(name, justify="right", no_wrap=True)
    for when in ("before", "after"):
        shape = document[when]
        names = ("parameters", "layers", "width", "heads", "kv_heads", "intermediate")
        made.add_row(when, *(f"{shape[name]:,}" if name == "parameters" else str(shape[name]) for name in names))
    show(made)
    show(
        f"{document['out']}: {document['bytes']:,} bytes, {document['dtype']}, {document['seconds']:.1f} s",
        markup=False,
        soft_wrap=True,
    )
