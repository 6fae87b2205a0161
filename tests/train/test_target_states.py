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


def test_kept_states_are_those_that_are_read_again() -> None:
    packed = load(EMBEDDED / "target", "float32", "cpu")
    if not packed.by_program:
        pytest.skip("there are no native kernels")
    rows = torch.randint(packed.vocab_size, (4, 12), generator=torch.Generator().manual_seed(2))
    last, forwards = packed.n_layers, list[int]()
    row_bytes = 2 * 12 * packed.config.hidden_size * 4
    keeping, reading = PackedReader(packed, 3 * row_bytes), PackedReader(packed)
    packed.register_forward_pre_hook(lambda _, given: forwards.append(len(given[0].tokens)))
    seen = []
    for chosen in ([0, 1], [1, 2], [2, 0], [3, 3], [3, 0]):
        forwards.clear()
        (states, log_p) = keeping(rows[chosen], (1,), True)
        seen.append(sum(forwards))
        (again, again_p) = reading(rows[chosen], (1,), True)
        assert torch.equal(states[1], again[1]) and torch.equal(states[last], again[last])
        assert log_p is not None and again_p is not None and torch.equal(log_p, again_p)
    assert seen == [24, 12, 0, 24, 12]  # the fourth row finds no room
    assert keeping.room == 0
    forwards.clear()
    keeping(rows[:1], (), True)
    assert forwards == [12], "other layers are read anew"
