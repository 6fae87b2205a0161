"""Joules of a run where the machine has no counter: an estimate from bytes of weights and operations, named so."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from draftwood.models.base import CausalModel
from draftwood.models.decoder_config import DecoderConfig
from draftwood.util.jsonl import Record

ESTIMATE = "estimate"  # in place of a counter's name


class Price(NamedTuple):
    """Joules of a byte that is read from memory and of a single-precision operation, besides the idle machine's."""

    byte: float
    operation: float


# Fitted to measurements of a Core i7-950 and a GTX 580: Choi, Bedard, Fowler and Vuduc, A roofline model of energy
# (IPDPS 2013). Newer machines need several times less of both; what methods need of one another's changes far less.
PRICES = {"cpu": Price(795e-12, 371e-12), "cuda": Price(513e-12, 99.7e-12)}


def operations(config: DecoderConfig, first: int, rows: int, wanted: int) -> int:
    """Products and sums of a forward of rows at positions from `first` on, with the logits of the `wanted` rows."""
    c = config
    heads, kv_heads = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    matrices = c.hidden_size * (2 * heads + 2 * kv_heads + (2 + c.gated) * c.intermediate_size)
    seen = rows * first + rows * (rows + 1) // 2
    layers = c.num_hidden_layers * (rows * matrices + 2 * seen * heads)
    return 2 * (layers + wanted * c.hidden_size * c.vocab_size)


def estimated(record: Record, target: CausalModel, drafts: Sequence[CausalModel]) -> float | None:
    """Joules of a run: each forward reads its model's weights once, each row computes with all of them.

    Keys and values, caches that hold weights and the idle machine are left out. None where the target's shape is not
    known.
    """
    config, size = getattr(target, "config", None), getattr(target, "weight_bytes", 0)
    if not isinstance(config, DecoderConfig) or not size:
        return None
    own = [getattr(draft, "weight_bytes", 0) for draft in drafts]
    depths = [depth if isinstance(depth := getattr(draft, "layers", 0), int) else 0 for draft in drafts]
    shared = [size * depth / target.n_layers for depth in depths]  # of the target, below an exit
    draft, below = (fmean(each) if each else 0.0 for each in (own, shared))
    sums = record["rounds"]
    read = size * sums["rounds"] + (draft + below) * sums["draft_forwards"]
    rows = size * sums["target_rows"] + draft * sums["draft_rows"]  # an exit's rows of the target are the target's
    price = PRICES["cuda" if target.device.type == "cuda" else "cpu"]
    return float(price.byte * read + price.operation * rows * operations(config, 0, 1, 1) / size)
