"""A checkpoint grown to a larger shape, with what was learned for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from draftwood.errors import ModelError
from draftwood.models.checkpoints import artifact, checkpoint
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.checkpoints.checkpoint import DTYPES
from draftwood.models.decoder import Decoder
from draftwood.models.grow import Growth, Shape, check_new, write
from draftwood.models.heads import eagle, skip
from draftwood.models.heads import exit as exits
from draftwood.models.heads import medusa as medusa
from draftwood.models.heads.eagle_head import EagleHead
from draftwood.models.heads.exit import ExitLayer
from draftwood.models.heads.medusa import Heads
from draftwood.models.heads.skip import Skipped
from draftwood.models.replicas import Copies, maker

LEARNED = ("exit", "heads", "eagle", "skip")  # what may lie beside a target: it grows with it
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

    Exit layer, heads, EAGLE head and skip set are grown alike; tokenizer and templates are copied. `name` is written
    down as what it was grown from; `advance` is told of the share of the weights that was written since it was told
    last. Raises ConfigurationError for shapes that cannot be grown to, and ModelError where the disk is full; then
    nothing is left.
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
    except (SafetensorError, OSError, ModelError) as error:
        if not isinstance(error, NotADirectoryError):
            for path in out.iterdir() if existed else [out]:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        if isinstance(error, ModelError):  # says it already
            raise
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{out} cannot be written ({reason}); make room or name another place") from error
    return {
        "before": {"parameters": config["grown_from"]["parameters"], **_sizes(Shape.of(c))},
        "after": {"parameters": total, **_sizes(Shape.of(growth.config))},
    }


def _write_companions(source: Path, out: Path, model: Decoder, growth: Growth, dtype: str) -> None:
    """Grow exit layer, heads, EAGLE head and skip set, copy tokenizer and templates."""
    write_learned(source, model, growth, out, dtype)
    for path in (*(source / each for each in COPIED), *source.glob("*.jinja")):
        if path.is_file():
            (out / path.name).write_bytes(path.read_bytes())


def _sizes(shape: Shape) -> dict[str, int]:
    return {name: getattr(shape, name) for name in SHAPE}


def write_learned(source: Path, model: Decoder, growth: Growth, out: Path, dtype: str) -> None:
    """Grow what was learned for `model` in `source`, and write it into `out`."""
    kind, about = DTYPES[dtype], {"grown_from": fingerprint(model)}
    found = {name for name in LEARNED if artifact.companion(source, name).is_file()}
    whose = grown_fingerprint(model, growth, kind) if found else ""
    if "exit" in found:
        write_exit(source / "exit", model, growth, out / "exit", dtype, whose)
    if "heads" in found:
        known = medusa.load(source / "heads", model, packed=False)
        medusa.save(grow_heads(known, growth, kind), out / "heads", whose, kind, known.ranks, **about)
    if "eagle" in found:
        head = eagle.load(source / "eagle", model, packed=False)
        reads = [grown_layers(layer, growth) for layer in head.reads]
        eagle.save(grow_eagle(head, growth, kind), out / "eagle", whose, reads, kind, **about)
    if "skip" in found:
        skipped = skip.load(artifact.companion(source, "skip"), model)
        skip.save(artifact.companion(out, "skip"), grow_skipped(skipped, growth), whose, **about)


def write_exit(source: Path, model: Decoder, growth: Growth, out: Path, dtype: str, whose: str = "") -> None:
    """Grow the exit layer of one directory into another; `whose` is the grown target's fingerprint, if known."""
    kind, layer = DTYPES[dtype], exits.load(source, model, packed=False)
    whose = whose or grown_fingerprint(model, growth, kind)
    weights, layers = grow_exit(layer, growth, kind), grown_layers(layer.layers, growth)
    exits.save(weights, out, whose, layers, kind, grown_from=fingerprint(model))


def grown_fingerprint(model: Decoder, growth: Growth, dtype: torch.dtype) -> str:
    """The fingerprint of `model`, grown, without growing all of it."""
    with torch.device("meta"):
        grown = Decoder(growth.config)
    for name, _, make in growth.parameters(model):  # what a fingerprint is made of
        if name == "norm":
            grown.norm = nn.Parameter(make(dtype))
        elif name == "embed.weight":
            grown.embed.weight = nn.Parameter(make(dtype))
    return fingerprint(grown)


def grown_layers(layers: int, growth: Growth) -> int:
    """The layer of the grown target that stands for `layers`: added ones lie behind the first that are kept."""
    added = growth.config.num_hidden_layers - growth.before.num_hidden_layers
    return layers if layers <= growth.keep_first else layers + added


def grow_exit(exit: ExitLayer, growth: Growth, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of the grown exit, by name; its noise is another than the target's."""
    copies = Copies.of(growth.before, growth.config)
    return {name: maker(copies, name, weight, False, growth.seed + 1)(dtype) for name, weight in exit.weights().items()}


def grow_heads(heads: Heads, growth: Growth, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of the grown heads, by name; the noise of each is its own."""
    copies = Copies.of(growth.before, growth.config)
    grown = {}
    for name, weight in heads.weights().items():
        part, k, which = name.split(".")
        role = f"layers.{k}.lift.{which}" if part == "lift" else "head.weight"
        grown[name] = maker(copies, role, weight, False, growth.seed + 2 + int(k))(dtype)
    return grown


def grow_eagle(head: EagleHead, growth: Growth, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of the grown EAGLE head, by name: fc reads several states, the first layer two."""
    count = head.decoder.config.vocab_size
    copies = Copies.of(replace(growth.before, vocab_size=count), replace(growth.config, vocab_size=count))
    grown = {}
    for name, weight in head.weights().items():
        role = "layers.0.lift.weight" if name == "fc.weight" else name.removeprefix("decoder.")
        states = len(head.reads) if name == "fc.weight" else 2 if name.endswith("layers.0.qkv.weight") else 1
        grown[name] = weight if name == "words" else maker(copies, role, weight, False, growth.seed + 20, states)(dtype)
    return grown


def grow_skipped(skipped: Skipped, growth: Growth) -> Skipped:
    """The same sublayers of the grown target, and evenly spaced ones of the added layers in the same proportion.

    Added layers say nothing, so skipping all of them would be free, which is so of no real model.
    """
    layers = growth.before.num_hidden_layers
    added, first = growth.config.num_hidden_layers - layers, min(growth.keep_first, layers)

    def grown(known: tuple[int, ...]) -> tuple[int, ...]:
        moved = [layer if layer < first else layer + added for layer in known]
        count = round(added * len(known) / layers)
        return (*moved, *(first + int((place + 0.5) * added / count) for place in range(count)))

    return Skipped(grown(skipped.attention), grown(skipped.mlp))
