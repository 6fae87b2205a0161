"""The feed-forward of a layer (MLP), with a gate or without."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, KVStore
from draftwood.models.functions import ACTIVATIONS, above, activate, xielu
from draftwood.models.layers.part import Part
from draftwood.models.modules import Linear
from draftwood.models.partition import UNSPLIT, Parallel

XIELU_NAME = "xielu"  # of the activation with numbers of its own


class XIELU(nn.Module):
    """The activation with numbers of its own that Apertus learns; each is a tensor [1] of the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p, self.alpha_n = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.beta, self.eps = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def numbers(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The numbers of `functions.xielu`, [1] each, in float32 at least."""
        wide = torch.promote_types(self.beta.dtype, torch.float32)
        right, left, both, least = (x.to(wide) for x in (self.alpha_p, self.alpha_n, self.beta, self.eps))
        return F.softplus(right), both + F.softplus(left), both, least

    def forward(self, x: Tensor) -> Tensor:
        """[..., W] -> [..., W]."""
        return xielu(x, *(number.to(x.dtype) for number in self.numbers()))


class FeedForward(Part):
    """down(act(gate(x)) * up(x)), or down(act(up(x))); in some families with a norm before down."""

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT) -> None:
        super().__init__(config, parallel)
        c = config
        if c.gated:
            self.gate_up = Linear(c.hidden_size, 2 * c.intermediate_size, c.mlp_bias)
        else:
            self.up = Linear(c.hidden_size, c.intermediate_size, c.mlp_bias)
        self.down = Linear(c.intermediate_size, c.hidden_size, c.mlp_bias)
        self.multiplier *= c.feed_multiplier
        self.activation = XIELU() if c.hidden_act == XIELU_NAME else ACTIVATIONS[c.hidden_act]
        self.gated, self.inner_norm = c.gated, self._inner_norm(c.intermediate_size)

    def computed(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        if self.gated:
            gate, up = self.gate_up(x).chunk(2, -1)
            if self.config.gate_multiplier != 1:
                gate = gate * self.config.gate_multiplier
            if self.config.gate_cutoff is not None:
                gate = above(gate, self.config.gate_cutoff)
            inner = activate(self.activation, gate) * up
        else:
            inner = activate(self.activation, self.up(x))
        made: Tensor = self.down(self._normalised_inner(inner))
        return made
