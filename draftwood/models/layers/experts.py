"""A mixture of experts in place of a layer's feed-forward.

A row's sum runs over its experts in the order of their numbers, whatever the other rows choose.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.experts_config import ExpertsConfig
from draftwood.models.flat import AttentionMetadata, KVStore
from draftwood.models.functions import ACTIVATIONS, activate, sigmoid
from draftwood.models.layers.part import Part
from draftwood.models.modules import ExactLinear, Linear
from draftwood.models.partition import UNSPLIT, Parallel

SLOPE = 1.702  # of gpt-oss's gates


class Expert(nn.Module):
    """down(act(gate(x)) * up(x)), or without gates down(act(up(x)))."""

    def __init__(self, config: DecoderConfig, inner: int, bias: bool = False, limit: float | None = None) -> None:
        super().__init__()
        assert config.experts is not None
        width, self.gated = config.hidden_size, config.experts.gated
        if self.gated:
            self.gate_up = Linear(width, 2 * inner, bias)
        else:
            self.up = Linear(width, inner, bias)
        self.down = Linear(inner, width, bias)
        self.activation, self.limit = ACTIVATIONS[config.hidden_act], limit

    def forward(self, x: Tensor) -> Tensor:
        """Rows [1, N, D] -> [1, N, D]."""
        made: Tensor
        if not self.gated:
            made = self.down(activate(self.activation, self.up(x)))
            return made
        gate, up = self.gate_up(x).chunk(2, -1)
        if self.limit is None:
            inner = activate(self.activation, gate) * up
        else:
            gate = gate.clamp(max=self.limit)
            inner = gate * sigmoid(SLOPE * gate) * (up.clamp(-self.limit, self.limit) + 1)
        made = self.down(inner)
        return made

    @property
    def first(self) -> nn.Module:
        """The first product."""
        return self.gate_up if self.gated else self.up


class Experts(Part):
    """The sum of what the experts that the router chooses make of a row, by their weights."""

    def __init__(self, config: DecoderConfig, parallel: Parallel = UNSPLIT) -> None:
        super().__init__(config, parallel)
        assert config.experts is not None
        e, width = config.experts, config.hidden_size
        self.how: ExpertsConfig = e
        self.router = ExactLinear(width, e.count, e.router_bias)
        self.selection_bias = nn.Parameter(torch.zeros(e.count)) if e.selection_bias else None
        inside = replace(config, hidden_size=e.latent_size or width)
        self.to_latent = Linear(width, e.latent_size, config.mlp_bias) if e.latent_size else None
        self.from_latent = Linear(e.latent_size, width, config.mlp_bias) if e.latent_size else None
        self.experts = nn.ModuleList(Expert(inside, e.intermediate_size, e.bias, e.limit) for _ in range(e.count))
        self.shared = Expert(config, e.shared_size) if e.shared_size else None
        self.shared_gate = ExactLinear(width, 1, bias=False) if e.shared_gate else None

    def computed(self, x: Tensor, meta: AttentionMetadata, store: KVStore | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        chosen, weights = self.route(rows)
        out = self._mixed(rows if self.to_latent is None else self.to_latent(rows), chosen, weights)
        if self.from_latent is not None:
            out = self.from_latent(out)
        if self.shared is not None:
            made = self.shared(rows[None])[0]
            if self.shared_gate is not None:
                made = made * sigmoid(self.shared_gate(_precise(rows))).to(made.dtype)
            out = out + made
        return out.view(x.shape)

    def _mixed(self, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The sum [N, D] of what the chosen experts [N, k] make of rows [N, D], by weights [N, k]."""
        out = torch.zeros_like(rows)
        for number in sorted(set(chosen.flatten().tolist())):
            where, place = (chosen == number).nonzero(as_tuple=True)
            own, weight = rows[where], weights[where, place, None]
            if self.how.weighs_inputs:
                made = self.experts[number]((own * weight).to(own.dtype)[None])[0]
            else:
                made = self.experts[number](own[None])[0] * weight
            out = out.index_add(0, where, made.to(out.dtype))
        return out

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen experts [N, k] of rows [N, D], and their weights [N, k]."""
        e = self.how
        logits = self.router(_precise(rows))
        if e.jitter:
            chosen, weights = _sparse_mixer(logits, e.chosen, e.jitter)
            return chosen, weights * e.scale
        scores = logits.softmax(-1) if e.scoring == "softmax" else sigmoid(logits)
        judged = scores if self.selection_bias is None else scores + self.selection_bias
        if e.groups > 1:
            grouped = judged.view(len(rows), e.groups, -1)
            best = (
                grouped.topk(min(e.group_top, grouped.shape[-1]), -1).values.sum(-1).topk(e.chosen_groups, -1).indices
            )
            left_out = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(1, best, False)
            judged = grouped.masked_fill(left_out[..., None], -torch.inf).flatten(1)
        chosen = judged.topk(e.chosen, -1).indices
        weights = scores.gather(1, chosen)
        if e.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return chosen, weights * e.scale


def _sparse_mixer(logits: Tensor, count: int, jitter: float) -> tuple[Tensor, Tensor]:
    """The experts [N, count] of router logits [N, E], the best first, and their weights [N, count]."""
    left, chosen, weights = logits, [], []
    for _ in range(count):
        top, best = left.max(-1, keepdim=True)
        far = (top - logits) / torch.maximum(logits.abs(), top) > 2 * jitter
        chosen.append(best)
        weights.append(left.masked_fill(far, -torch.inf).softmax(-1).gather(1, best))
        left = left.scatter(1, best, -torch.inf)
    return torch.cat(chosen, 1), torch.cat(weights, 1)


def _precise(x: Tensor) -> Tensor:
    """In the type that experts are chosen in: float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
