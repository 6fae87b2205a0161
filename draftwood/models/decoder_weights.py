"""The weights of a decoder: its layers, tables and norms, and which of them a layer's positions and window need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from draftwood.errors import ModelError
from draftwood.models.alibi import Alibi
from draftwood.models.decoder_config import DecoderConfig, QueryGrowth
from draftwood.models.layers.altup import AltUpLayer, AltUpStreams
from draftwood.models.layers.experts import Experts
from draftwood.models.layers.layer import Layer, PartReads
from draftwood.models.layers.part import norm_parameters
from draftwood.models.layers.per_layer_input import PerLayerEmbeddings
from draftwood.models.modules import Embedding, Linear, bytes_of
from draftwood.models.partition import UNSPLIT, Parallel
from draftwood.models.recurrent_states import RecurrentShape
from draftwood.models.rotary import Rotary


class AttentionKind(NamedTuple):
    """The properties of attention on which masks and rotary tables depend; layers with the same ones share these."""

    window: int
    heads: int
    kv_heads: int
    rotary: Rotary | None
    alibi: Alibi | None = None
    growth: QueryGrowth | None = None
    chunked: bool = False

    @property
    def by_position(self) -> bool:
        """True if masks depend on the positions of keys."""
        return bool(self.window) or self.alibi is not None


class DecoderWeights(nn.Module):
    """The modules of a decoder. With `parallel` they are one process's part of the model.

    `lent`: the planes, of each layer of another model, in whose cache all layers read keys and values.
    """

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT, lent: Sequence[int] = ()) -> None:
        super().__init__()
        self.config, self.parallel = config, parallel
        self.local = parallel.local(config)  # the shape of what is held here
        self.vocab_size = config.vocab_size
        self.context = config.max_position_embeddings
        self.n_layers = config.num_hidden_layers
        self.own_bits = False  # whether matrices are computed in the bits of a GGUF file
        self.home: Path | None = None  # the directory that it was loaded from
        self.source: Path | None = None  # that directory, or the file in it
        self.draft_quantize: str | None = None  # how heads that draft for it are held, see matrix.held_alike
        rows = (config.vocab_size, self.context + (config.position_offset or 0)) if parallel.drives else (0, 0)
        self.embed: Any = Embedding(rows[0], config.hidden_size)  # or a NativeEmbedding
        self.position = None if config.position_offset is None else Embedding(rows[1], config.hidden_size)
        each = [self.local.layer(number) for number in range(self.n_layers)]
        kind = AltUpLayer if config.altup else Layer
        self.layers = nn.ModuleList(kind(layer, parallel, number) for number, layer in enumerate(each))
        self.streams = AltUpStreams(config, config.altup) if config.altup else None
        embeds = config.hidden_size_per_layer_input > 0
        self.per_layer_embeddings = PerLayerEmbeddings(config) if embeds else None
        self.norm, self.norm_bias = norm_parameters(config, config.hidden_size)
        self.embed_norm: nn.Parameter | None = None
        self.embed_norm_bias: nn.Parameter | None = None
        if config.embedding_norm:
            self.embed_norm, self.embed_norm_bias = norm_parameters(config, config.hidden_size)
        self.head: Any = Linear(config.hidden_size, self.local.vocab_size, bias=config.head_bias)
        if config.tie_word_embeddings and parallel.size == 1:
            self.head.weight = self.embed.weight
        rotaries: dict[Any, Rotary] = {}
        kinds = [
            AttentionKind(
                *(c.window, c.num_attention_heads, c.num_key_value_heads, _rotary(c, rotaries)),
                *(c.alibi, c.query_growth, c.chunked),
            )
            for c in ([c for c in each if c.attends] or each[:1])
        ]
        self.attention_kinds = sorted(set(kinds), key=kinds.index)
        attending = iter(kinds)
        # of each layer; without attention any
        self.kinds = [self.attention_kinds.index(next(attending)) if c.attends else 0 for c in each]
        # of each layer: the plane of a cache with its keys, -1 without attention; the next one has values
        self.first_planes: list[int] = []
        self.borrows = bool(lent)
        for layer in each:
            own = 2 * len({plane for plane in self.first_planes if plane >= 0})
            if not layer.attends:
                self.first_planes.append(-1)
            else:
                planes = lent or self.first_planes
                self.first_planes.append(own if layer.kv_layer is None else planes[layer.kv_layer])
        self.recurrent_shapes = [
            RecurrentShape(number, c.recurrent.inputs(c.hidden_size), c.recurrent.state(c.hidden_size))
            for number, c in enumerate(each)
            if c.recurrent is not None
        ]

    def parts(self) -> list[list[PartReads]]:
        """The parts of each layer that add to the rows, in order."""
        return [layer.parts for layer in self.layers]  # type: ignore[misc]

    def limit_context(self, context: int | None) -> None:
        """Take at most so many tokens; None: as many as the model was made for.

        Rotary scalings that depend on the context follow (`rotary.LongRope`). Learned files still fit.
        """
        self.context = min(self.context, context or self.context)
        for kind in self.attention_kinds:
            if kind.rotary is not None:
                kind.rotary.context = self.context

    def must_be_plain(self, purpose: str) -> None:
        """Raise ModelError where matrices are packed, quantised or in part, which cannot be undone."""
        if self.parallel.size > 1:
            raise ModelError(f"a model that is split among processes cannot be {purpose}; leave out tensor_parallel")
        inner = (module for parts in self.parts() for part, _ in parts for module in part.modules())
        matrices = [self.head, *(module for module in inner if hasattr(module, "in_features"))]
        if not all(isinstance(module, nn.Linear) for module in matrices):
            raise ModelError(f"a model whose matrices are packed cannot be {purpose}; load it with packed=False")

    def must_have_single_rows(self, purpose: str) -> None:
        """Raise ModelError where rows between layers are several vectors, which nothing else reads."""
        if self.streams is not None:
            raise ModelError(
                f"a model whose rows are several vectors (AltUp, Gemma 3n) cannot be {purpose}; use lookup, Medusa or "
                "another model as the draft"
            )

    @property
    def device(self) -> torch.device:
        return self.norm.device

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.dtype

    @property
    def kinds_of_weights(self) -> list[str]:
        """The types that the matrices of the layers and the head are stored in, the one with the most bytes first."""
        sizes: Counter[str] = Counter()
        for module in self.modules():
            if getattr(module, "out_features", None) is not None:
                kind = getattr(module, "kind", None) or str(self.dtype).removeprefix("torch.")
                sizes[kind] += bytes_of(module)
        return list(dict.fromkeys(kind for kinds, _ in sizes.most_common() for kind in kinds.split(", ")))

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a forward of many rows reads: all but the tables of embeddings."""
        own = sum(part.nbytes for part in self.parameters(recurse=False))
        tables = [self.embed, self.position, getattr(self.per_layer_embeddings, "table", None)]
        apart = {self, *tables, *(part for table in tables if table is not None for part in table.children())}
        apart.discard(self.head)
        return own + sum(bytes_of(module, recurse=False) for module in self.modules() if module not in apart)

    @property
    def routed(self) -> tuple[int, float]:
        """Bytes of experts among `weight_bytes`, and the share of them that one row reads; 0 where there are none."""
        sizes = [
            (sum(bytes_of(module, recurse=False) for module in part.experts.modules()), part.how)
            for part in self.modules()
            if isinstance(part, Experts)
        ]
        total = sum(size for size, _ in sizes)
        return total, sum(size * how.chosen / how.count for size, how in sizes) / total if total else 0.0


def _rotary(config: DecoderConfig, made: dict[Any, Rotary]) -> Rotary | None:
    """The rotary positions of a layer, made once for all that have the same; None where nothing is rotated."""
    if not config.rotated:
        return None
    settings = config.rope_theta, config.rotated, config.max_position_embeddings, config.rope_scaling
    return made.setdefault(settings, Rotary(*settings))
