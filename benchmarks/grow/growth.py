"""Function-preserving growth: the same next-token distributions from a decoder of a larger shape.

So wall-clock speed-ups can be measured with real acceptance behaviour and the compute of a published model's shape. For
the Llama family; replicas.py makes the single weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.grow.replicas import Copies, maker
from draftwood.errors import ConfigurationError, ModelError, did_you_mean
from draftwood.models.checkpoints import saving
from draftwood.models.checkpoints.checkpoint import DTYPES
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig

SHAPE = {  # name of a size -> key of config.json
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
}


def shape_of(config: DecoderConfig) -> dict[str, int]:
    """The sizes that growth changes."""
    return {name: getattr(config, key) for name, key in SHAPE.items()}


@dataclass(frozen=True, slots=True)
class Growth:
    """A shape that was found possible, and where the added layers and the noise come from."""

    before: DecoderConfig
    config: DecoderConfig  # of the grown decoder
    keep_first: int
    seed: int

    @staticmethod
    def plan(
        model: Decoder,
        layers: int | None = None,
        width: int | None = None,
        heads: int | None = None,
        kv_heads: int | None = None,
        intermediate: int | None = None,
        keep_first: int = 2,
        seed: int = 0,
    ) -> Growth:
        """Fill in the sizes that are left open, and check them.

        Widening is exact up to rounding where `width` is a multiple of the model's; added layers and left-over
        channels move logits by about 1e-7. Heads keep their dimension; heads, key/value heads and hidden units grow as
        the width does. Added layers come after the first `keep_first`, which early exits may use. Raises
        ConfigurationError for an impossible shape, ModelError for a model outside the Llama family.
        """
        c = model.config
        saving.config_json(c)  # refuses models outside the Llama family
        model.must_be_plain("grown")
        layers = c.num_hidden_layers if layers is None else layers
        width = c.hidden_size if width is None else width
        if layers < c.num_hidden_layers:
            raise ConfigurationError(f"the model has {c.num_hidden_layers} layers, so it cannot grow to {layers}")
        if width < c.hidden_size:
            raise ConfigurationError(f"the model is {c.hidden_size} wide, so it cannot grow to width {width}")
        if keep_first < 0:
            raise ConfigurationError(f"keep_first is {keep_first}, but must be at least 0")
        group = c.num_attention_heads // c.num_key_value_heads
        if kv_heads is None:
            in_groups = c.num_key_value_heads * width // c.hidden_size
            kv_heads = in_groups if heads is None else math.gcd(heads, in_groups)
            if heads is not None and kv_heads < c.num_key_value_heads:
                kv_heads = heads
        heads = group * kv_heads if heads is None else heads
        intermediate = c.intermediate_size * width // c.hidden_size if intermediate is None else intermediate
        if kv_heads < c.num_key_value_heads or heads < c.num_attention_heads or heads % kv_heads:
            raise ConfigurationError(
                f"{heads} heads over {kv_heads} key/value heads cannot hold the model's {c.num_attention_heads} over "
                f"{c.num_key_value_heads}; give no fewer of each, the first a multiple of the second"
            )
        if intermediate < c.intermediate_size:
            raise ConfigurationError(
                f"the model has {c.intermediate_size} hidden units in each MLP, so it cannot grow to {intermediate}"
            )
        for source in range(c.num_key_value_heads):
            readers = heads // kv_heads * len(range(source, kv_heads, c.num_key_value_heads))
            if readers < group:
                raise ConfigurationError(
                    f"{heads} heads over {kv_heads} key/value heads leave {readers} that read key/value head {source}, "
                    f"but the model has {group}; give more heads, or fewer key/value heads"
                )
        copied = width - width % c.hidden_size
        config = replace(
            c,
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            intermediate_size=intermediate,
            rms_norm_eps=c.rms_norm_eps * copied / width,  # the silent channels thin out the mean square
            tie_word_embeddings=False,
        )
        return Growth(c, config, min(keep_first, c.num_hidden_layers), seed)

    @property
    def added(self) -> int:
        """How many layers are added."""
        return self.config.num_hidden_layers - self.before.num_hidden_layers

    def parameters(self, model: Decoder) -> Iterator[tuple[str, torch.Size, Callable[[torch.dtype], Tensor]]]:
        """Name, shape and maker of every parameter of the grown decoder, in the order of its layers."""
        with torch.device("meta"):
            grown = Decoder(self.config)
        shapes = {name: parameter.shape for name, parameter in grown.named_parameters()}
        sources = dict(model.named_parameters()) | {"head.weight": model.head.weight}
        copies = Copies.of(self.before, self.config)
        for name, shape in sorted(shapes.items(), key=lambda item: _order(item[0])):
            known, fresh = name, False
            if name.startswith("layers."):
                _, index, rest = name.split(".", 2)
                layer = int(index)
                fresh = self.keep_first <= layer < self.keep_first + self.added
                model_layer = max(0, self.keep_first - 1) if fresh else layer - self.added * (layer >= self.keep_first)
                known = f"layers.{model_layer}.{rest}"
            yield name, shape, maker(copies, name, sources[known].detach(), fresh, self.seed)


def _order(name: str) -> tuple[int, int]:
    """Embeddings, layers, norm, head."""
    if name.startswith("layers."):
        return 1, int(name.split(".")[1])
    return {"embed.weight": (0, 0), "norm": (2, 0)}.get(name, (3, 0))


def write(
    model: Decoder,
    directory: Path,
    growth: Growth,
    raw: dict[str, Any],
    dtype: str = "float32",
    source: str = "",
    advance: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Grow `model` parameter by parameter into a new checkpoint directory.

    `raw` is the source's config.json, whose other keys are kept; the new one says what was grown (`grown_from`) and
    is returned. `advance` hears how many weights were made.
    """
    if dtype not in ("float32", "bfloat16", "float64"):
        hint = "; its range ends above the silent weights" if dtype == "float16" else did_you_mean(dtype, DTYPES)
        raise ConfigurationError(f"dtype {dtype!r} is not for grown models{hint}")
    if raw.get("model_type") != "llama":
        raise ModelError(f"only the Llama family can be grown, not {raw.get('model_type')!r}")
    origin: dict[str, Any] = {
        "source": source,
        **shape_of(growth.before),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "keep_first": growth.keep_first,
        "seed": growth.seed,
    }
    if "grown_from" in raw:
        origin["grown_from"] = raw["grown_from"]
    kept = {key: value for key, value in raw.items() if key not in ("torch_dtype", "grown_from", "pretraining_tp")}
    config = kept | saving.config_json(growth.config) | {"dtype": dtype, "grown_from": origin}
    saving.write(directory, growth.parameters(model), growth.config, DTYPES[dtype], config, advance)
    return config
