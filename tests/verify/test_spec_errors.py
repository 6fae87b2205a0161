"""Errors in the papers that a literal copy would inherit: for each, the printed form fails and ours holds.

One test per entry of the specification's list that concerns what exists so far.
"""

import pytest
import torch
from enumeration import emitted
from torch import Tensor

from draftwood.verify import tree


def random_law(vocab: int, seed: int) -> Tensor:
    weights = torch.empty(vocab, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(seed))
    return weights / weights.sum()


def variation(p: Tensor, q: Tensor, draws: int, replacement: bool) -> float:
    """Total variation between p and what is emitted."""
    return 0.5 * float((emitted(p, [(q, draws, replacement)]) - p).abs().sum())


def printed(p: float, q: float) -> float:
    """min(1, q/p'), as DSBD §3.1 and line 16 of its Algorithm 1 have it."""
    return 1.0 if q >= p else q / p


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("draws", [1, 2, 3])
def test_9_1_acceptance_ratio_of_dsbd(draws: int, replacement: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio must be p'/q, which the paper's proof and Eq. 4 use. As printed, likely drafts are taken too often."""
    cases = [(random_law(4, seed), random_law(4, 50 + seed)) for seed in range(8)]
    assert max(variation(p, q, draws, replacement) for p, q in cases) < 1e-12
    monkeypatch.setattr(tree, "acceptance", printed)
    biased = [variation(p, q, draws, replacement) for p, q in cases]
    assert min(biased) > 0.05
    assert sum(biased) / len(biased) > 0.2


def test_9_1_printed_ratio_accepts_impossible_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that the target excludes is accepted for sure by q/p', never by p'/q."""
    p = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)
    q = torch.tensor([0.8, 0.1, 0.1], dtype=torch.float64)
    assert emitted(p, [(q, 2, True)])[0] == 0
    monkeypatch.setattr(tree, "acceptance", printed)
    assert emitted(p, [(q, 2, True)])[0] > 0.8
