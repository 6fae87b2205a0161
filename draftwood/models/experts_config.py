"""The knobs of a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExpertsConfig:
    """Feed-forwards of which each row takes some, chosen by a router.

    A row's scores are the softmax of the router's logits, or the sigmoid of each (`scoring`). Chosen are the `chosen`
    experts of the largest scores, or of scores plus a bias of the expert (`selection_bias`); with several `groups` they
    are of the `chosen_groups` with the largest sums of `group_top` scores. Weights are the scores, divided by their sum
    where they are `normalised`, times `scale`. A shared expert is added for every row, times the sigmoid of a gate of
    its own (`shared_gate`).

    With `weighs_inputs` (Llama 4) weights multiply what the experts read, and not what they make.

    With a `jitter` they are chosen by a sparse mixer (Liu et al. 2024, arXiv 2409.12136): one after the other is the
    one with the largest logit of those left, and its weight the softmax among those of which the logit is near.

    `beside_mlp` (Gemma 4): the shared expert is the layer's MLP; it, the router and the experts each have a norm before
    them, and the first and the last one behind them. Weights are then also times a learned number of each expert.
    """

    count: int
    chosen: int
    intermediate_size: int
    scoring: str = "softmax"  # or sigmoid
    normalised: bool = False
    groups: int = 1
    chosen_groups: int = 1
    group_top: int = 2
    jitter: float = 0.0
    scale: float = 1.0
    router_bias: bool = False
    selection_bias: bool = False
    gated: bool = True  # experts are down(act(gate(x)) * up(x)), else down(act(up(x)))
    bias: bool = False  # of the experts' matrices
    shared_size: int = 0  # hidden units of the shared expert; 0: there is none
    shared_gate: bool = False
    beside_mlp: bool = False
    weighs_inputs: bool = False
    latent_size: int = 0  # width of what the chosen experts read and make, by a product before and behind; 0: as rows
    limit: float | None = None  # gpt-oss: (up + 1) * gate * sigmoid(1.702 gate), with |up| and gate at most this
