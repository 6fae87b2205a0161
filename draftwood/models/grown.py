"""A checkpoint grown to a larger shape, with everything that lies beside its weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from draftwood.errors import ModelError
from draftwood.models import checkpoint, skip
from draftwood.models import exit as exits
from draftwood.models import heads as medusa
from draftwood.models.decoder import Decoder
from draftwood.models.grow import Growth, Shape, check_new, write
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
    it was grown from; `advance` is told of the share of the weights that was written since it was told last. Raises
    ConfigurationError for shapes that cannot be grown to, and ModelError where the disk is full; then nothing is left.
    """
    check_new(out)
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
    existed = out.exists()
    try:
        config = write(model, out, growth, raw, dtype, name, lambda count: advance(count / total))
        _write_companions(source, out, model, growth, dtype)
    except (SafetensorError, OSError) as error:
        if not isinstance(error, NotADirectoryError):
            for path in out.iterdir() if existed else [out]:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{out} cannot be written ({reason}); make room or name another place") from error
    return {
        "before": {"parameters": config["grown_from"]["parameters"], **_sizes(Shape.of(c))},
        "after": {"parameters": total, **_sizes(Shape.of(growth.config))},
    }


def _write_companions(source: Path, out: Path, model: Decoder, growth: Growth, dtype: str) -> None:
    """Grow exit layer, heads and skip set, copy tokenizer and templates."""
    if (source / exits.BESIDE / exits.ABOUT).is_file():
        write_exit(exits.load(source / exits.BESIDE, model, packed=False), model, growth, out, dtype)
    if (source / medusa.BESIDE / medusa.ABOUT).is_file():
        write_heads(medusa.load(source / medusa.BESIDE, model, packed=False), model, growth, out, dtype)
    if (source / skip.BESIDE).is_file():
        write_grown_skipped(skip.load_skipped(source / skip.BESIDE, model), model, growth, out, dtype)
    for path in (*(source / each for each in COPIED), *source.glob("*.jinja")):
        if path.is_file():
            (out / path.name).write_bytes(path.read_bytes())


def _sizes(shape: Shape) -> dict[str, int]:
    return {name: getattr(shape, name) for name in SHAPE}
