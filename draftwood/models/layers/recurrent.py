"""Mixers that read the past through a state of fixed size: gated delta rule, state space (Mamba-2), short convolution.

Everything between the two matrices is computed in float32, or float64 where the model is. A token's step gets tensors
of one shape whatever the forward; see `draftwood.models.recurrent_fold`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.models.modules import Linear
from draftwood.models.recurrent_config import CONV, DELTA, SSM, RecurrentConfig
from draftwood.models.recurrent_fold import StateStore


class Recurrence(nn.Module):
    """A recurrent mixer without norms and residual sum: rows [B, N, D] -> [B, N, D]."""

    def __init__(self, config: RecurrentConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        c = self.config = config
        self.eps, self.width, self.state = eps, hidden_size, c.state(hidden_size)
        channels = c.channels(hidden_size)
        self.channels, self.inputs = channels, c.inputs(hidden_size)
        made = 3 * hidden_size if c.kind == CONV else self.inputs + c.values
        self.into = Linear(hidden_size, made, c.bias)
        self.conv = nn.Parameter(torch.zeros(channels, c.kernel))  # the oldest token's factors first
        self.conv_bias = nn.Parameter(torch.zeros(channels)) if c.conv_bias else None
        self.out = Linear(hidden_size if c.kind == CONV else c.values, hidden_size, c.out_bias)
        if c.kind != CONV:
            self.decay_log = nn.Parameter(torch.zeros(c.value_heads))
            self.step_bias = nn.Parameter(torch.zeros(c.value_heads))
            if c.gated_norm:
                self.gated_norm = nn.Parameter(torch.ones(c.value_dim if c.kind == DELTA else c.values))
        if c.kind == SSM:
            self.skip = nn.Parameter(torch.ones(c.value_heads))

    def forward(self, x: Tensor, store: StateStore) -> Tensor:
        """`store` keeps the states."""
        made = self.into(x)
        wide = torch.promote_types(made.dtype, torch.float32)
        out: Tensor = self.out(self._mixed(made.to(wide), store).to(x.dtype))
        return out

    def _mixed(self, made: Tensor, store: StateStore) -> Tensor:
        raise NotImplementedError

    def _convolved(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """The next window [B, (K - 1) C] and output [B, C] of the convolution behind a state."""
        c, channels = self.config, self.channels
        window = (c.kernel - 1) * channels
        inputs = torch.cat((state[:, :window], token[:, :channels]), 1).view(len(token), c.kernel, channels)
        out = (inputs * self.conv.to(token.dtype).T).sum(1)
        if self.conv_bias is not None:
            out = out + self.conv_bias.to(token.dtype)
        return inputs[:, 1:].flatten(1), out

    def _memory(self, state: Tensor) -> Tensor:
        """The matrices [B, heads, key_dim, value_dim] of a state [B, S]."""
        c = self.config
        return state[:, (c.kernel - 1) * self.channels :].view(len(state), c.value_heads, c.key_dim, c.value_dim)

    def _per_value_head(self, keys: Tensor) -> Tensor:
        """Keys [B, key_heads * key_dim], normalised where they are, of each value head [B, heads, key_dim]."""
        c = self.config
        return keys.view(len(keys), c.key_heads, c.key_dim).repeat_interleave(c.value_heads // c.key_heads, 1)


class DeltaRule(Recurrence):
    """Gated delta rule (Yang et al. 2024), as in Qwen3-Next and Qwen3.5.

    The state decays; then what it answers to the key is moved towards the value.
    """

    def _mixed(self, made: Tensor, store: StateStore) -> Tensor:
        c = self.config
        inputs, gate = made[..., : self.inputs], made[..., self.inputs :]
        values = store.fold(self.step, inputs.contiguous(), self.state)
        normed = normalised(values.view(*values.shape[:2], c.value_heads, c.value_dim), self.gated_norm, self.eps)
        return normed.flatten(2) * F.silu(gate)

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Fold a token [B, I] into a state [B, S]: the next state, and the values [B, heads * value_dim] it answers."""
        c = self.config
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
        c = self.config
        inputs, gate = made[..., : self.inputs], F.silu(made[..., self.inputs :])
        values = store.fold(self.step, inputs.contiguous(), self.state)
        if not c.gated_norm:
            return values * gate
        entered = values * gate if c.gate_first else values
        parts = entered.view(*values.shape[:2], c.norm_groups, -1)
        normed = normalised(parts, self.gated_norm.view(c.norm_groups, -1), self.eps).flatten(2)
        return normed if c.gate_first else normed * gate

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Fold a token [B, I] into a state [B, S]: the next state, and the values [B, heads * value_dim] it answers."""
        c = self.config
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


def normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., W] over its root mean square, times weight [..., W]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.to(x.dtype)


RECURRENCES: dict[str, type[Recurrence]] = {DELTA: DeltaRule, SSM: StateSpace, CONV: ShortConvolution}
