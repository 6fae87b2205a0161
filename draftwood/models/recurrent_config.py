"""The shape and the knobs of a decoder's recurrent layers."""

from __future__ import annotations

from dataclasses import dataclass

DELTA, SSM, CONV = "delta", "ssm", "conv"  # gated delta rule, state space (Mamba-2), gated short convolution


@dataclass(frozen=True, slots=True)
class RecurrentConfig:
    """One kind of recurrent layer. The state of each value head is a matrix [key_dim, value_dim].

    A state space's keys and queries are what its papers call B and C, one for each of its groups (`key_heads`), its
    values x. A short convolution has no heads.
    """

    kind: str
    kernel: int  # tokens that the convolution sees, its own included
    key_heads: int = 0
    key_dim: int = 0
    value_heads: int = 0
    value_dim: int = 0
    conv_bias: bool = False
    bias: bool = False  # of the matrix before
    out_bias: bool = False
    gated_norm: bool = True  # values are normalised, in `norm_groups` parts, beside being gated
    norm_groups: int = 1
    gate_first: bool = True  # the gate comes before that norm
    scales: tuple[float, ...] = ()  # of what the first product makes: gates, values, keys, queries, steps; empty: 1
    multiplier: float = 1.0  # of what the mixer adds to the rows
    step_limit: tuple[float, float] = (0.0, float("inf"))  # of a state space's time steps
    tiled: bool = False  # value head h has key head h % key_heads, not one for each run of neighbours

    @property
    def keys(self) -> int:
        """Components of all keys."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Components of all values."""
        return self.value_heads * self.value_dim

    def channels(self, hidden_size: int) -> int:
        """Components that the convolution runs over."""
        return hidden_size if self.kind == CONV else 2 * self.keys + self.values

    def inputs(self, hidden_size: int) -> int:
        """Values of a token that are folded into the state: the convolution's inputs, and what gates are made of."""
        gates = {DELTA: 2, SSM: 1, CONV: 0}[self.kind]
        return self.channels(hidden_size) + gates * self.value_heads

    def state(self, hidden_size: int) -> int:
        """Values of a state: the convolution's last inputs, and the heads' matrices."""
        return (self.kernel - 1) * self.channels(hidden_size) + self.value_heads * self.key_dim * self.value_dim
