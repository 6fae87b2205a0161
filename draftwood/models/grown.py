"""A checkpoint grown to a larger shape, with everything that lies beside its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftwood.models import checkpoint, skip
from draftwood.models import exit as exits
from draftwood.models import heads as medusa
from draftwood.models.grow import Growth, Shape, write
from draftwood.models.grow_exit import write_exit
from draftwood.models.grow_heads import write_heads
from draftwood.models.grow_skip import write_grown_skipped

COPIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
SHAPE = {  # name of a size -> key of config.json
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
}


def grow_checkpoint(
    source: Path,
    out: Path,
    name: str,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    intermediate: int | None = None,
    keep_first: int = 2,
    dtype: str = "float32",
    seed: int = 0,
    advance: Callable[[float], None] = lambda share: None,
) -> dict[str, Any]:
    """Write the grown form of the checkpoint `source` into `out`; sizes before and after.

    Exit layer, heads and skip set are grown alike; tokenizer and templates are copied. `name` is written down as what
    it was grown from; `advance` is told of the share of the weights that was
    written since it was told last. Raises ModelError for shapes
    that cannot be grown to.
    """
    raw = checkpoint.read_config(source)
    model = checkpoint.load(source, "float64" if dtype == "float64" else "float32", packed=False)
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
    total = sum(shape.numel() for _, shape, _ in growth.parameters(model))
    config = write(model, out, growth, raw, dtype, name, lambda count: advance(count / total))
    if (source / exits.BESIDE / exits.ABOUT).is_file():
        write_exit(exits.load(source / exits.BESIDE, model, packed=False), model, growth, out, dtype)
    if (source / medusa.BESIDE / medusa.ABOUT).is_file():
        write_heads(medusa.load(source / medusa.BESIDE, model, packed=False), model, growth, out, dtype)
    if (source / skip.BESIDE).is_file():
        write_grown_skipped(skip.load_skipped(source / skip.BESIDE, model), model, growth, out, dtype)
    for path in (*(source / each for each in COPIED), *source.glob("*.jinja")):
        if path.is_file():
            (out / path.name).write_bytes(path.read_bytes())
    return {
        "before": {"parameters": config["grown_from"]["parameters"], **_sizes(Shape.of(c))},
        "after": {"parameters": total, **_sizes(Shape.of(growth.config))},
    }


def _sizes(shape: Shape) -> dict[str, int]:
    return {name: getattr(shape, name) for name in SHAPE}
