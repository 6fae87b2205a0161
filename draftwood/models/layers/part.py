"""Half of a layer: rows plus what it computes of them, with norms before and, in some families, behind it.

Knobs that are off cost no operation: what a part does is chosen when it is built.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, KVStore
from draftwood.models.functions import NORMS
from draftwood.models.partition import UNSPLIT, Parallel


def norm_parameters(config: DecoderConfig, width: int) -> tuple[nn.Parameter, nn.Parameter | None]:
    """Weight and bias of a norm over `width` components that multiplies by 1; the bias is None where it has none."""
    weight = torch.zeros(width) if config.norm.endswith("_offset") else torch.ones(width)
    biased = config.norm in ("layer", "layer_offset")
    return nn.Parameter(weight), nn.Parameter(torch.zeros(width)) if biased else None


class Part(nn.Module):
    """x + post_norm(computed(norm(x))) of rows x [B, N, D], where a family has both norms."""

    mixes = False  # whether rows read other positions

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT) -> None:
        super().__init__()
        self.config, self.parallel, self.eps = config, parallel, config.rms_norm_eps
        self.normalise = NORMS[config.norm]
        self.norm, self.norm_bias = self._norm(config.pre_norm)
        self.post_norm, self.post_norm_bias = self._norm(config.post_norm)
        self.multiplier = config.residual_multiplier
        self.inner_norm: nn.Parameter | None = None  # of parts with a second product
        self.scalar = nn.Parameter(torch.ones(1)) if config.scalar and self.ends() else None

    def ends(self) -> bool:
        """True if it is the last part of its layer."""
        return not self.mixes and not self.config.hidden_size_per_layer_input

    def _norm(self, there: bool) -> tuple[nn.Parameter | None, nn.Parameter | None]:
        return norm_parameters(self.config, self.config.hidden_size) if there else (None, None)

    def _inner_norm(self, width: int) -> nn.Parameter | None:
        """The norm of what the second product reads [width], where a family has one."""
        return norm_parameters(self.config, width)[0] if self.config.inner_norm else None

    def _normalised_inner(self, x: Tensor) -> Tensor:
        return x if self.inner_norm is None else self.normalise(x, self.inner_norm, None, self.eps)

    def forward(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None, reads: Tensor | None = None) -> Tensor:
        """The rows x with what is computed of `reads`, x itself where that is None."""
        entered = self.enter(x if reads is None else reads, meta)
        out = self.parallel.sum(self.computed(entered, meta, store))
        if self.post_norm is not None:
            out = self.normalise(out, self.post_norm, self.post_norm_bias, self.eps)
        x = x + out if self.multiplier == 1 else torch.add(x, out, alpha=self.multiplier)
        return x if self.scalar is None else x * self.scalar

    def enter(self, x: Tensor, meta: AttentionMetadata) -> Tensor:
        """The input [B, N, W] of the part's first product: the normalised rows."""
        return x if self.norm is None else self.normalise(x, self.norm, self.norm_bias, self.eps)

    def computed(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        """The part's output for normalised rows: [B, N, W] -> [B, N, D]."""
        raise NotImplementedError
