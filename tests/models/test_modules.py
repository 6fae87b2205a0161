"""Modules with weights begin as PyTorch's where they have memory, and draw no numbers where they are only sketched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from draftwood.models.checkpoints import checkpoint
from draftwood.models.heads import medusa
from draftwood.models.modules import Embedding, Linear


@pytest.mark.parametrize(("ours", "theirs"), [(Linear, nn.Linear), (Embedding, nn.Embedding)])
def test_with_memory_they_begin_as_pytorchs(ours: type[nn.Module], theirs: type[nn.Module]) -> None:
    torch.manual_seed(3)
    made = ours(5, 7)
    torch.manual_seed(3)
    for one, other in zip(made.parameters(), theirs(5, 7).parameters(), strict=True):
        assert torch.equal(one, other)


def test_loading_draws_no_random_numbers(target: Path, tmp_path: Path) -> None:
    model = checkpoint.load(target, packed=False)
    made = medusa.Heads.of(model, 2)
    medusa.save(made.weights(), tmp_path, made.target)
    before = torch.get_rng_state()
    checkpoint.load(target)
    medusa.load(tmp_path, model)
    assert torch.equal(torch.get_rng_state(), before)
