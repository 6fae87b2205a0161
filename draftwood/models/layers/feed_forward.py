"""The feed-forward of a layer (MLP), with a gate or without."""

from __future__ import annotations

from torch import Tensor

from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, KVStore
from draftwood.models.functions import ACTIVATIONS, activate
from draftwood.models.layers.part import Part
from draftwood.models.modules import Linear
from draftwood.models.partition import UNSPLIT, Parallel


class FeedForward(Part):
    """down(act(gate(x)) * up(x)), or down(act(up(x)))."""

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT) -> None:
        super().__init__(config, parallel)
        c = config
        if c.gated:
            self.gate_up = Linear(c.hidden_size, 2 * c.intermediate_size, c.mlp_bias)
        else:
            self.up = Linear(c.hidden_size, c.intermediate_size, c.mlp_bias)
        self.down = Linear(c.intermediate_size, c.hidden_size, c.mlp_bias)
        self.multiplier *= c.feed_multiplier
        self.activation, self.gated = ACTIVATIONS[c.hidden_act], c.gated

    def computed(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        made: Tensor
        if self.gated:
            gate, up = self.gate_up(x).chunk(2, -1)
            if self.config.gate_multiplier != 1:
                gate = gate * self.config.gate_multiplier
            made = self.down(activate(self.activation, gate) * up)
        else:
            made = self.down(activate(self.activation, self.up(x)))
        return made
