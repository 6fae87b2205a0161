"""One layer of a decoder: a mixer, or two side by side, then a feed-forward, each a `Part` that adds to the rows.

In some families a layer is only one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from torch import Tensor, nn

from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, KVStore
from draftwood.models.layers.attention import Attention
from draftwood.models.layers.experts import Experts
from draftwood.models.layers.experts_beside_mlp import ExpertsBesideMlp
from draftwood.models.layers.feed_forward import FeedForward
from draftwood.models.layers.latent_attention import LatentAttention
from draftwood.models.layers.part import Part
from draftwood.models.layers.per_layer_input import PerLayerInput
from draftwood.models.layers.recurrent import RECURRENCES
from draftwood.models.partition import UNSPLIT, Parallel

PartReads: TypeAlias = tuple[Part, bool]  # a part, and whether it reads what the one before has read, and not its sum


class Layer(nn.Module):
    """A mixer and a feed-forward; behind them the input of layer `number`, where there are per-layer embeddings.

    With `parallel` it is the part of a layer that one of several processes computes: `config` has the number of its
    heads and hidden units.
    """

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT, number: int = 0) -> None:
        super().__init__()
        recurrent = RECURRENCES[config.recurrent.kind](config, parallel) if config.recurrent else None
        attention = Attention if config.latent is None else LatentAttention
        self.mixer: Part | None = attention(config, parallel) if config.attends else recurrent
        self.beside = recurrent if config.attends else None  # a recurrent mixer that reads what attention has read
        mixture = ExpertsBesideMlp if config.experts and config.experts.beside_mlp else Experts
        feed = FeedForward if config.experts is None else mixture
        self.feed: Part | None = feed(config, parallel) if config.feeds else None
        embeds = config.hidden_size_per_layer_input > 0
        self.per_layer_input = PerLayerInput(config, parallel, number) if embeds else None
        self.joined = config.joined

    @property
    def parts(self) -> list[PartReads]:
        """The parts that add to the rows, in order."""
        own, given = (self.feed, self.joined), (self.per_layer_input, False)
        parts = ((self.mixer, False), (self.beside, True), own, given)
        return [(part, joined) for part, joined in parts if part is not None]

    def forward(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        """x [B, N, D] -> [B, N, D]. B is 1 with a `store` of keys and values; else rows of x see one another."""
        return through(self.parts, x, meta, store)


class Sublayers(nn.Module):
    """Some parts of other layers, in order, that take the place of one layer; without any, rows pass unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[PartReads] = []  # not registered, because another model owns them

    def forward(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        """The same as `Layer.forward`, of these parts."""
        return through(self.parts, x, meta, store)


def through(parts: Iterable[PartReads], x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
    """Rows x [B, N, D] behind some parts."""
    before = x
    for part, joined in parts:
        before, x = x, part(x, meta, store, before if joined else None)
    return x
