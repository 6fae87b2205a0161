"""The estimate of joules: what forwards read and rows compute."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.papers.energy import PRICES, estimated, operations
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig


def test_an_estimate_is_what_forwards_read_and_rows_compute() -> None:
    config = DecoderConfig(50, 32, 48, 3, 4, 2, 16)
    target, draft = Decoder(config), Decoder(DecoderConfig(50, 16, 24, 1, 2, 1, 8))
    made = {"rounds": {"rounds": 4, "draft_forwards": 4, "target_rows": 11.0, "draft_rows": 5.0}}
    size, own = target.weight_bytes, draft.weight_bytes
    each = operations(config, 0, 1, 1) / size
    byte, operation = PRICES["cpu"]
    wanted = byte * (4 * size + 4 * own) + operation * each * (11 * size + 5 * own)
    assert estimated(made, target, [draft]) == pytest.approx(wanted)
    exit = SimpleNamespace(weight_bytes=100, layers=1)  # reads the target's first layer, too
    wanted = byte * (4 * size + 4 * (100 + size / 3)) + operation * each * (11 * size + 5 * 100)
    assert estimated(made, target, [exit]) == pytest.approx(wanted)  # type: ignore[list-item]
    assert estimated(made, SimpleNamespace(device="cpu"), [draft]) is None  # type: ignore[arg-type]


def test_operations_of_a_forward_are_those_that_pytorch_counts() -> None:
    c = DecoderConfig(50, 32, 48, 3, 4, 2, 16)
    rows = 9
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        Decoder(c).eval().train_forward(torch.zeros(1, rows, dtype=torch.long))
    masked = c.num_hidden_layers * 4 * (rows * (rows - 1) // 2) * c.num_attention_heads * c.head_dim
    assert operations(c, 0, rows, rows) + masked == counted.get_total_flops()
    assert operations(c, rows, 1, 1) == operations(c, 0, rows + 1, rows + 1) - operations(c, 0, rows, rows)
