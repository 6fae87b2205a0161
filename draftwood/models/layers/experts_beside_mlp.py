"""A mixture of experts beside a layer's MLP, each with norms of its own (Gemma 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, KVStore
from draftwood.models.layers.experts import Experts
from draftwood.models.partition import UNSPLIT, Parallel


class ExpertsBesideMlp(Experts):
    """norm(mlp(norm(x))) + norm(experts(norm(x))), of rows x that are not normalised; the MLP is `shared`."""

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT) -> None:
        super().__init__(config, parallel)
        self.router_norm, _ = self._norm(True)  # with the router's scale
        self.experts_norm, _ = self._norm(True)
        self.experts_post_norm, _ = self._norm(True)
        self.shared_post_norm, _ = self._norm(True)
        self.expert_scale = nn.Parameter(torch.ones(self.how.count))

    @property
    def router_scale(self) -> float:
        """The factor of the router's normalised rows."""
        scale: float = self.config.hidden_size**-0.5
        return scale

    def enter(self, x: Tensor, meta: AttentionMetadata) -> Tensor:
        return x

    def computed(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        assert self.shared is not None
        rows = x.reshape(-1, x.shape[-1])
        chosen, weights = self.route(self._normed(rows, self.router_norm) * self.router_scale)
        weights = weights * self.expert_scale.to(weights.dtype)[chosen]
        mixed = self._mixed(self._normed(rows, self.experts_norm), chosen, weights)
        dense = self.shared(self._normed(rows, self.norm)[None])[0]
        made = self._normed(dense, self.shared_post_norm) + self._normed(mixed, self.experts_post_norm)
        return made.view(x.shape)

    def _normed(self, rows: Tensor, weight: Tensor | None) -> Tensor:
        assert weight is not None
        return self.normalise(rows, weight, None, self.eps)
