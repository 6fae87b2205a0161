"""Width of a layer: Eq. 2-7 against brute force over all accept/reject paths; Theorem 3.2."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from draftwood.errors import ConfigurationError
from draftwood.verify.tree import residual
from draftwood.verify.width import ResidualChain, WidthRule, acceptance_counts, dynamic_width


def random_laws(size: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.empty(2, size, dtype=torch.float64).exponential_(generator=generator) ** 1.5
    weights[:, torch.randperm(size, generator=generator)[: seed % 3]] *= torch.tensor([[0.0], [1.0]]).double()
    return tuple(weights / weights.sum(-1, keepdim=True))  # type: ignore[return-value]


def brute_counts(p: Tensor, q: Tensor, m: int) -> list[float]:
    """P(m, 0..m) summed over all 2^m accept/reject paths, p' renormalised step by step."""
    counts = [0.0] * (m + 1)
    for path in itertools.product((True, False), repeat=m):
        rest, chance = p, 1.0
        for accepted in path:
            alpha = float(torch.minimum(rest, q).sum())
            chance *= alpha if accepted else 1 - alpha
            rest = p if accepted else residual(rest, q, 0)
        counts[sum(path)] += chance
    return counts


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("m", [0, 1, 2, 4, 6])
def test_counts_equal_brute_force(m: int, seed: int) -> None:
    p, q = random_laws(5, seed)
    counts = acceptance_counts(ResidualChain(p, q).alphas(m))
    wanted = brute_counts(p, q, m)
    assert counts == pytest.approx(wanted, abs=1e-12)
    assert math.fsum(counts) == pytest.approx(1, abs=1e-12)
    for t in (0.05, 0.3, 0.5, 0.7, 0.9, 0.99):
        brute = max(k for k in range(m + 1) if 1 - math.fsum(wanted[:k]) >= t)
        assert dynamic_width(counts, t) == brute
        rule = WidthRule(threshold=t, minimum=2)
        assert rule.width(ResidualChain(p, q), m, 9, True)[0] == max(2, brute)


@pytest.mark.parametrize("seed", range(8))
def test_chain_equals_repeated_residuals(seed: int) -> None:
    p, q = random_laws(6, seed)
    chain, rest = ResidualChain(p, q), p
    for rejections in range(6):
        assert torch.allclose(chain.residual(rejections), rest, atol=1e-12, rtol=0)
        for x in range(6):
            assert abs(chain.value(float(p[x]), float(q[x]), rejections) - float(rest[x])) < 1e-12
        rest = residual(rest, q, 0)


def test_equal_laws_accept_everything() -> None:
    p, _ = random_laws(5, 3)
    chain = ResidualChain(p, p.clone())
    assert chain.alphas(4) == [1.0] * 4
    assert torch.equal(chain.residual(2), p)
    assert dynamic_width(acceptance_counts([1.0] * 4), 1.0) == 4


def test_disjoint_laws_accept_nothing() -> None:
    p, q = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    assert ResidualChain(p, q).alphas(3) == [0.0] * 3
    assert dynamic_width(acceptance_counts([0.0] * 3), 0.1) == 0


def test_threshold_zero_stops_at_the_number_of_draws() -> None:
    assert dynamic_width(acceptance_counts([0.0, 0.0]), 0.0) == 2


def test_sum_must_start_at_zero() -> None:
    """Spec §9.3: Eq. 5 from k = 1 ignores the chance that nothing is accepted and asks for too much."""
    p, q = random_laws(5, 1)
    counts = brute_counts(p, q, 4)
    from_one = max(k for k in range(1, 5) if 1 - math.fsum(counts[1:k]) >= 0.9)
    assert from_one > dynamic_width(counts, 0.9)


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"fixed": 0}, "width"),
        ({"threshold": 1.1}, "threshold"),
        ({"minimum": 0}, "minimum"),
        ({"draws": "x"}, "draws"),
    ],
)
def test_bad_rules_are_refused(bad: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        WidthRule(**bad)  # type: ignore[arg-type]
