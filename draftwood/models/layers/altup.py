"""Alternating updates (AltUp): rows of several vectors side by side, of which a layer computes with one (Gemma 3n).

On a CPU a row's result has the same bits whatever other rows there are: sums over few vectors are taken one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftwood.models.altup_config import AltUpConfig
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, KVStore
from draftwood.models.functions import NORMS, mean_square, tanh
from draftwood.models.layers.layer import Layer
from draftwood.models.layers.part import norm_parameters
from draftwood.models.modules import ExactLinear, Linear
from draftwood.models.partition import UNSPLIT, Parallel

LEAST_SQUARE = 1e-5  # of the mean square that vectors are divided by the root of


class AltUpStreams(nn.Module):
    """From a token's embedding to a row of vectors, and from the last layer's row back to one."""

    def __init__(self, config: DecoderConfig, altup: AltUpConfig) -> None:
        super().__init__()
        self.width = width = config.hidden_size
        self.into = nn.ModuleList(Linear(width, width, bias=False) for _ in range(altup.inputs - 1))
        self.back = nn.ModuleList(Linear(width, width, bias=False) for _ in range(altup.inputs - 1))

    def expand(self, x: Tensor) -> Tensor:
        """Embeddings [..., D] -> rows [..., S D]."""
        return torch.cat((x, *(as_large(into(x), x) for into in self.into)), -1)

    def merge(self, x: Tensor) -> Tensor:
        """Rows [..., S D] -> [..., D]."""
        first, *rest = torch.split(x, self.width, -1)
        total = first
        for back, one in zip(self.back, rest, strict=True):
            total = total + as_large(back(one), first)
        return total / (1 + len(rest))


def as_large(x: Tensor, other: Tensor) -> Tensor:
    """x [..., D] with the root mean square of another."""
    return x * mean_square(other).sqrt() / mean_square(x).clamp(min=LEAST_SQUARE).sqrt()


class Laurel(nn.Module):
    """x + norm(right(left(x)))."""

    def __init__(self, config: DecoderConfig, rank: int) -> None:
        super().__init__()
        self.left = Linear(config.hidden_size, rank, bias=False)
        self.right = Linear(rank, config.hidden_size, bias=False)
        self.normalise, self.eps = NORMS[config.norm], config.rms_norm_eps
        self.norm, self.norm_bias = norm_parameters(config, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.normalise(self.right(self.left(x)), self.norm, self.norm_bias, self.eps)


class AltUp(nn.Module):
    """Predicts what each vector of a row is behind a layer, and corrects it by what the layer has computed."""

    def __init__(self, config: DecoderConfig, altup: AltUpConfig) -> None:
        super().__init__()
        self.inputs, self.active, width = altup.inputs, altup.active, config.hidden_size
        self.predictions = ExactLinear(altup.inputs, altup.inputs**2, bias=False)
        self.corrections = ExactLinear(altup.inputs, altup.inputs, bias=False)
        self.router = ExactLinear(width, altup.inputs, bias=False)
        self.normalise, self.eps = NORMS[config.norm], config.rms_norm_eps
        self.router_norm, self.router_norm_bias = norm_parameters(config, width)
        self.scale = nn.Parameter(torch.ones(width)) if altup.scaled else None

    def _modalities(self, x: Tensor) -> Tensor:
        """Inputs of the coefficients [B, N, S], from vectors x [B, N, D]; in float32 at least."""
        rows = self.normalise(x, self.router_norm, self.router_norm_bias, self.eps) * x.shape[-1] ** -1.0
        return tanh(self.router(rows.to(torch.promote_types(x.dtype, torch.float32))))

    def predict(self, x: Tensor) -> Tensor:
        """Rows [B, N, S, D] -> predictions [B, N, S, D]."""
        factors: Tensor = self.predictions(self._modalities(x[..., self.active, :])).to(x.dtype)
        factors, made = factors.view(*factors.shape[:-1], self.inputs, self.inputs), x
        for number in range(self.inputs):
            made = made + x[..., number : number + 1, :] * factors[..., number : number + 1]
        return made

    def correct(self, predicted: Tensor, computed: Tensor) -> Tensor:
        """Predictions [B, N, S, D] by the one that was computed [B, N, D] -> rows [B, N, S, D]."""
        factors: Tensor = self.corrections(self._modalities(computed)).to(computed.dtype) + 1
        change = computed - predicted[..., self.active, :]
        return predicted + change[..., None, :] * factors[..., None]


class AltUpLayer(Layer):
    """A layer of rows of several vectors: attention beside a low-rank residual, then the feed-forward, then inputs."""

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT, number: int = 0) -> None:
        super().__init__(config, parallel, number)
        assert config.altup is not None
        self.altup, self.laurel = AltUp(config, config.altup), Laurel(config, config.altup.laurel_rank)

    def forward(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        """x [B, N, S D] -> [B, N, S D]."""
        mixer, feed, given = self.mixer, self.feed, self.per_layer_input
        assert mixer is not None and feed is not None and given is not None and given.post_norm is not None
        predicted = self.altup.predict(x.view(*x.shape[:-1], self.altup.inputs, -1))
        active = predicted[..., self.altup.active, :]
        beside = self.laurel(mixer.enter(active, meta))
        mixed = (mixer(active, meta, store) + beside) * 0.5**0.5
        rows = self.altup.correct(predicted, feed(mixed, meta, store))
        read = rows[..., self.altup.active, :]
        if self.altup.scale is not None:
            read = read * self.altup.scale
        added = given.normalise(given.computed(read, meta, store), given.post_norm, given.post_norm_bias, given.eps)
        return torch.cat((rows[..., :1, :], rows[..., 1:, :] + added[..., None, :]), -2).flatten(-2)
