"""Native kernels read the same states and probabilities as PyTorch."""

from __future__ import annotations

import pytest
import torch

from draftwood.engine.loading import EMBEDDED
from draftwood.models.checkpoints.checkpoint import load
from draftwood.train.target_states import PackedReader, PlainReader


def test_the_packed_target_says_what_the_plain_one_says() -> None:
    plain, packed = (load(EMBEDDED / "target", "float32", "cpu", packed=part) for part in (False, True))
    if not packed.by_program:
        pytest.skip("there are no native kernels")
    readers = PlainReader(plain, lambda: torch.autocast("cpu", enabled=False)), PackedReader(packed)
    generator = torch.Generator().manual_seed(1)
    last = plain.n_layers
    for shape in ((2, 9), (3, 40), (1, 5)):  # rows and lengths may grow and shrink
        tokens = torch.randint(plain.vocab_size, shape, generator=generator)
        for layers, answered in (((1, last), True), ((1,), False), ((last,), False), ((), True), ((), False)):
            (states, log_p), (mine, mine_p) = (read(tokens, layers, answered) for read in readers)
            assert set(mine) >= set(layers)
            for layer in layers:
                torch.testing.assert_close(mine[layer], states[layer], atol=1e-3, rtol=1e-3)
            assert (mine_p is not None) == (log_p is not None) == answered
            if answered:
                torch.testing.assert_close(mine_p, log_p, atol=1e-3, rtol=1e-3)
