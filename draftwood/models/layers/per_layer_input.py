"""Per-layer embeddings (Gemma 3n and 4): what each layer gets of a token beside the rows, and the part that adds it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, KVStore
from draftwood.models.functions import ACTIVATIONS, NORMS, activate
from draftwood.models.layers.part import Part, norm_parameters
from draftwood.models.modules import Embedding, Linear
from draftwood.models.partition import UNSPLIT, Parallel


class PerLayerEmbeddings(nn.Module):
    """The inputs of all layers for tokens: (table[token] * W ** 0.5 + norm(project(x) * D ** -0.5)) * 2 ** -0.5.

    x is the token's embedding, W the width of an input; they depend on nothing but the token.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.width, self.normalise = config.hidden_size_per_layer_input, NORMS[config.norm]
        self.eps = config.rms_norm_eps
        wide = config.num_hidden_layers * self.width
        self.words = config.vocab_size_per_layer_input or config.vocab_size
        self.table: Any = Embedding(self.words, wide)  # or a NativeEmbedding
        self.project = Linear(config.hidden_size, wide, bias=False)
        self.norm, self.norm_bias = norm_parameters(config, self.width)

    def forward(self, tokens: Tensor, x: Tensor) -> Tensor:
        """Inputs [..., layers, W] of tokens [...] with embeddings x [..., D]."""
        known: Tensor = self.table(torch.where(tokens < self.words, tokens, 0))
        known = known * torch.tensor(self.width**0.5, dtype=x.dtype)  # rounded, as it was when the models were trained
        made: Tensor = self.project(x) * x.shape[-1] ** -0.5
        known, made = (part.view(*tokens.shape, -1, self.width) for part in (known, made))
        return (known + self.normalise(made, self.norm, self.norm_bias, self.eps)) * 2**-0.5


class PerLayerInput(Part):
    """x + norm(project(act(gate(x)) * input)) with the input of layer `number`."""

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT, number: int = 0) -> None:
        super().__init__(replace(config, pre_norm=False, post_norm=True), parallel)
        width = config.hidden_size_per_layer_input
        self.number, self.activation = number, ACTIVATIONS[config.hidden_act]
        self.gate = Linear(config.hidden_size, width, bias=False)
        self.project = Linear(width, config.hidden_size, bias=False)

    def ends(self) -> bool:
        return True

    def computed(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        assert meta.per_layer_inputs is not None
        given = meta.per_layer_inputs[..., self.number, :].to(x.dtype)
        made: Tensor = self.project(activate(self.activation, self.gate(x)) * given)
        return made
