"""Mixers that read the past through a state of fixed size: gated delta rule, state space (Mamba-2), short convolution.

Everything between the two matrices is computed in float32, or float64 where the model is. A token's step gets tensors
of one shape whatever the forward; see `draftwood.models.recurrent_fold`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.flat import AttentionMetadata, KVStore
from draftwood.models.functions import activate, rms_norm
from draftwood.models.layers.part import Part
from draftwood.models.modules import Linear
from draftwood.models.partition import UNSPLIT, Parallel
from draftwood.models.recurrent_config import CONV, DELTA, SSM
from draftwood.models.recurrent_fold import StateStore, WholeTexts


class Recurrence(Part):
    """Products, steps and gates of a recurrent mixer; `inputs` are what a step is given of a token."""

    mixes = True
    wide = frozenset(("conv", "conv_bias", "decay_log", "step_bias", "skip"))  # parameters that are float32 at least

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT) -> None:
        super().__init__(config, parallel)
        assert config.recurrent is not None
        c = self.recurrent = config.recurrent
        self.multiplier *= c.multiplier
        width = config.hidden_size
        self.channels, self.inputs, self.state = c.channels(width), c.inputs(width), c.state(width)
        self.into = Linear(width, 3 * width if c.kind == CONV else c.values + self.inputs, c.bias)
        self.conv = nn.Parameter(torch.zeros(self.channels, 1, c.kernel))  # the oldest token's factors first
        self.conv_bias = nn.Parameter(torch.zeros(self.channels)) if c.conv_bias else None
        self.out = Linear(width if c.kind == CONV else c.values, width, c.out_bias)
        if c.kind != CONV:
            self.decay_log = nn.Parameter(torch.zeros(c.value_heads))
            self.step_bias = nn.Parameter(torch.zeros(c.value_heads))
            if c.gated_norm:
                self.gated_norm = nn.Parameter(torch.ones(c.value_dim if c.kind == DELTA else c.values))
        if c.kind == SSM:
            self.skip = nn.Parameter(torch.ones(c.value_heads))

    def scale(self) -> Tensor | None:
        """Factors [outputs] of the first product's outputs; None: there are none."""
        c = self.recurrent
        if not c.scales:
            return None
        counts = torch.tensor([c.values, c.values, c.keys, c.keys, c.value_heads])
        return torch.tensor(c.scales).repeat_interleave(counts)

    def computed(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        made = self.into(x)
        wide = torch.promote_types(made.dtype, torch.float32)
        states = WholeTexts() if store is None else store.states
        assert states is not None
        made = made.to(wide)
        if self.recurrent.scales:
            made = made * self.scale().to(made)  # type: ignore[union-attr]
        out: Tensor = self.out(self._mixed(made, states).to(x.dtype))
        return out

    def _gates(self, made: Tensor) -> tuple[Tensor, Tensor]:
        """Gates silu(z) [B, N, values] and inputs [B, N, I] of what the first product has made."""
        gate, inputs = made.tensor_split([self.recurrent.values], -1)
        return activate(F.silu, gate.contiguous()), inputs.contiguous()

    def _mixed(self, made: Tensor, store: StateStore) -> Tensor:
        raise NotImplementedError

    def _normalised(self, x: Tensor, groups: int, weight: Tensor) -> Tensor:
        """x [B, N, W] over the root mean square of each of its groups, times weight [W], or [W / groups] of each."""
        parts = rms_norm(x.reshape(*x.shape[:2], groups, -1), None, None, self.eps)
        return (parts * weight.to(x.dtype).view(-1, parts.shape[-1])).flatten(2)

    def _convolved(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """The next window [B, (K - 1) C] and output [B, C] of the convolution behind a state."""
        c, channels = self.recurrent, self.channels
        window = (c.kernel - 1) * channels
        inputs = torch.cat((state[:, :window], token[:, :channels]), 1).view(len(token), c.kernel, channels)
        out = (inputs * self.conv.to(token.dtype)[:, 0].T).sum(1)
        if self.conv_bias is not None:
            out = out + self.conv_bias.to(token.dtype)
        return inputs[:, 1:].flatten(1), out

    def _memory(self, state: Tensor) -> Tensor:
        """The matrices [B, heads, key_dim, value_dim] of a state [B, S]."""
        c = self.recurrent
        return state[:, (c.kernel - 1) * self.channels :].view(len(state), c.value_heads, c.key_dim, c.value_dim)

    def _per_value_head(self, keys: Tensor) -> Tensor:
        """Keys [B, key_heads * key_dim], normalised where they are, of each value head [B, heads, key_dim]."""
        c = self.recurrent
        heads, each = keys.view(len(keys), c.key_heads, c.key_dim), c.value_heads // c.key_heads
        return heads.repeat(1, each, 1) if c.tiled else heads.repeat_interleave(each, 1)


class DeltaRule(Recurrence):
    """Gated delta rule (Yang et al. 2024), as in Qwen3-Next and Qwen3.5.

    The state decays; then what it answers to the key is moved towards the value.
    """

    def _mixed(self, made: Tensor, store: StateStore) -> Tensor:
        c = self.recurrent
        gate, inputs = self._gates(made)
        values = store.fold(self.step, inputs, self.state)
        return self._normalised(values, c.value_heads, self.gated_norm) * gate

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Fold a token [B, I] into a state [B, S]: the next state, and the values [B, heads * value_dim] it answers."""
        c = self.recurrent
        window, mixed = self._convolved(state, token)
        query, key, value = torch.split(F.silu(mixed), [c.keys, c.keys, c.values], 1)
        query, key = (unit(self._per_value_head(part)) for part in (query, key))
        beta, step = token[:, self.channels :].view(len(token), 2, c.value_heads).unbind(1)
        decay = (-self.decay_log.to(token.dtype).exp() * F.softplus(step + self.step_bias.to(token.dtype))).exp()
        memory = self._memory(state) * decay[..., None, None]
        answered = (memory * key[..., None]).sum(2)
        delta = (value.view_as(answered) - answered) * beta.sigmoid()[..., None]
        memory = memory + key[..., None] * delta[:, :, None]
        values = (memory * (query * c.key_dim**-0.5)[..., None]).sum(2)
        return torch.cat((window, memory.flatten(1)), 1), values.flatten(1)


class StateSpace(Recurrence):
    """Mamba-2 (Dao and Gu 2024), as in Granite 4, Falcon-H1 and Nemotron-H."""

    def _mixed(self, made: Tensor, store: StateStore) -> Tensor:
        c = self.recurrent
        gate, inputs = self._gates(made)
        values = store.fold(self.step, inputs, self.state)
        if not c.gated_norm:
            return values * gate
        if c.gate_first:
            return self._normalised(values * gate, c.norm_groups, self.gated_norm)
        return self._normalised(values, c.norm_groups, self.gated_norm) * gate

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Fold a token [B, I] into a state [B, S]: the next state, and the values [B, heads * value_dim] it answers."""
        c = self.recurrent
        window, mixed = self._convolved(state, token)
        value, key, query = torch.split(F.silu(mixed), [c.values, c.keys, c.keys], 1)
        value = value.view(len(token), c.value_heads, c.value_dim)
        size = F.softplus(token[:, self.channels :] + self.step_bias.to(token.dtype)).clamp(*c.step_limit)
        decay = (-self.decay_log.to(token.dtype).exp() * size).exp()
        added = self._per_value_head(key)[..., None] * (value * size[..., None])[:, :, None]
        memory = self._memory(state) * decay[..., None, None] + added
        values = (memory * self._per_value_head(query)[..., None]).sum(2)
        values = values + value * self.skip.to(token.dtype)[:, None]
        return torch.cat((window, memory.flatten(1)), 1), values.flatten(1)


class ShortConvolution(Recurrence):
    """Gated short convolution (LFM2): its state is the last tokens' inputs."""

    def _mixed(self, made: Tensor, store: StateStore) -> Tensor:
        before, behind, x = made.chunk(3, -1)
        return behind * store.fold(self._convolved, before * x, self.state)


def unit(x: Tensor) -> Tensor:
    """x [..., W] over its length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


RECURRENCES: dict[str, type[Recurrence]] = {DELTA: DeltaRule, SSM: StateSpace, CONV: ShortConvolution}
