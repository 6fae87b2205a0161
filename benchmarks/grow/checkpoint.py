"""A checkpoint grown to a larger shape, with what was learned for it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from benchmarks.grow.growth import Growth, shape_of, write
from benchmarks.grow.replicas import Axis, Copies, maker
from draftwood.errors import ConfigurationError, ModelError
from draftwood.models.checkpoints import artifact, checkpoint
from draftwood.models.checkpoints.artifact import fingerprint
from draftwood.models.checkpoints.checkpoint import DTYPES
from draftwood.models.decoder import Decoder
from draftwood.models.heads import eagle, medusa, skip
from draftwood.models.heads import exit as exits
from draftwood.models.heads.eagle_head import EagleHead
from draftwood.models.heads.exit import ExitLayer
from draftwood.models.heads.medusa import Heads
from draftwood.models.heads.skip import Skipped

COPIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "*.jinja")


def grow_checkpoint(
    source: Path,
    out: Path,
    name: str,
    shape: Mapping[str, int | None],
    dtype: str = "float32",
    advance: Callable[[float], None] = lambda share: None,
) -> dict[str, Any]:
    """Write the grown form of the checkpoint `source` into `out`; returns the sizes before and after.

    `shape` are the options of `Growth.plan`. Exit layer, heads (Medusa's, EAGLE's) and skip set are grown alike,
    tokenizer and templates are copied. `name` is noted as what it was grown from; `advance` hears of each share of the
    weights written. `out` gets its name when it is whole. Raises ConfigurationError for shapes that cannot be grown to,
    and ModelError where the files cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} is there already and not an empty directory; give a new one")
    raw = checkpoint.read_config(source)
    model = checkpoint.load(source, "float64" if dtype == "float64" else "float32", packed=False)
    growth = Growth.plan(model, **{key: value for key, value in shape.items() if value is not None})
    total = sum(size.numel() for _, size, _ in growth.parameters(model))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{out.name}.part-", dir=out.parent) as place:
            part = Path(place) / out.name
            config = write(model, part, growth, raw, dtype, name, lambda count: advance(count / total))
            write_learned(source, model, growth, part, dtype)
            for path in (path for pattern in COPIED for path in source.glob(pattern)):
                shutil.copyfile(path, part / path.name)
            part.replace(out)
    except (SafetensorError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{out} cannot be written ({reason}); make room or name another place") from error
    before = {"parameters": config["grown_from"]["parameters"], **shape_of(model.config)}
    return {"before": before, "after": {"parameters": total, **shape_of(growth.config)}}


def write_learned(source: Path, model: Decoder, growth: Growth, out: Path, dtype: str) -> None:
    """Grow what was learned for `model`, which lies in `source`: exit, heads, skip set; write it into `out`."""
    kind, about = DTYPES[dtype], {"grown_from": fingerprint(model)}
    there = {name for name in ("exit", "heads", "eagle", "skip") if artifact.companion(source, name).is_file()}
    whose = grown_fingerprint(model, growth, kind) if there else ""
    if "exit" in there:
        layer = exits.load(source / "exit", model, packed=False)
        weights, layers = grow_exit(layer, growth, kind), grown_layers(layer.layers, growth)
        exits.save(weights, out / "exit", whose, layers, kind, **about)
    if "heads" in there:
        known = medusa.load(source / "heads", model, packed=False)
        medusa.save(grow_heads(known, growth, kind), out / "heads", whose, kind, known.ranks, **about)
    if "eagle" in there:
        head = eagle.load(source / "eagle", model, packed=False)
        reads = [grown_layers(layer, growth) for layer in head.reads]
        eagle.save(grow_eagle(head, growth, kind), out / "eagle", whose, reads, kind, **about)
    if "skip" in there:
        skipped = skip.load(artifact.companion(source, "skip"), model)
        skip.save(artifact.companion(out, "skip"), grow_skipped(skipped, growth), whose, **about)


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
    return layers if layers <= growth.keep_first else layers + growth.added


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
        role = f"layers.{k}.heads.lift.{which}" if part == "lift" else "head.weight"
        grown[name] = maker(copies, role, weight, False, growth.seed + 2 + int(k))(dtype)
    return grown


def grow_eagle(head: EagleHead, growth: Growth, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of the grown head, by name: it reads states side by side, and embeddings beside a state."""
    known, copies = head.weights(), Copies.of(growth.before, growth.config)
    copies = replace(copies, vocab=Axis.of(list(range(len(known["decoder.head.weight"])))))
    read = {"fc.weight": len(head.reads), "layers.0.mixer.qkv.weight": 2}  # how many times the channels
    grown = {"words": known.pop("words")} if "words" in known else {}
    for name, weight in known.items():
        role = name.removeprefix("decoder.")
        reading = replace(copies, read=copies.channels.beside(read[role])) if role in read else copies
        grown[name] = maker(reading, role, weight, False, growth.seed + 1)(dtype)
    return grown


def grow_skipped(skipped: Skipped, growth: Growth) -> Skipped:
    """The same sublayers of the grown target, and evenly spaced ones of the added layers in the same proportion.

    Added layers say nothing, so skipping all of them would be free, which is so of no real model.
    """
    added, first = growth.added, growth.keep_first

    def grown(known: tuple[int, ...]) -> tuple[int, ...]:
        moved = [layer if layer < first else layer + added for layer in known]
        count = round(added * len(known) / growth.before.num_hidden_layers)
        return (*moved, *(first + int((place + 0.5) * added / count) for place in range(count)))

    return Skipped(grown(skipped.attention), grown(skipped.mlp))
