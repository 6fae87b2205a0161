"""Files next to the embedded target for drafting with itself: heads and a skip set, small and worth having."""

import functools
from itertools import islice
from pathlib import Path

import pytest

import draftwood
from draftwood import Engine, GenerationResult
from draftwood.corpus import DOMAINS, documents
from draftwood.engine.loading import EMBEDDED
from draftwood.models.checkpoints.artifact import companion
from draftwood.models.heads.medusa import find
from draftwood.models.heads.skip import skipping

METHODS = {"eagle": {"name": "eagle", "gamma": 4, "depth": "fixed"}}  # by default as far as it pays on this machine
PROMPTS = [item.prompt for domain in DOMAINS for item in islice(documents(domain, "held-out", 5), 1)]


@functools.cache
def engine() -> Engine:
    return draftwood.load()


@functools.cache
def written(name: str, temperature: float, seed: int = 0) -> list[GenerationResult]:
    return engine().batch(
        PROMPTS,
        len(PROMPTS),
        method=METHODS.get(name, name),
        sampling={"temperature": temperature},
        max_new_tokens=32,
        seed=seed,
    )


def tau(results: list[GenerationResult]) -> float:
    """Tokens per target forward, without the first round, in which heads draft nothing."""
    rounds = sum(result.metrics.rounds - 1 for result in results)
    return sum(len(result.tokens) - len(result.rounds[0].tokens) for result in results) / rounds


@pytest.mark.parametrize(
    ("name", "greedy", "sampled"), [("medusa", 1.7, 1.6), ("self-spec", 1.9, 1.9), ("eagle", 2.1, 2.0)]
)
def test_drafts_are_worth_having(name: str, greedy: float, sampled: float) -> None:
    """Greedy text is plain greedy text; tokens per target forward are well above one."""
    plain = written("autoregressive", 0)
    drafted = written(name, 0)
    assert [result.tokens for result in drafted] == [result.tokens for result in plain]
    assert tau(drafted) > greedy
    assert tau(written(name, 1)) > sampled


def test_they_belong_to_the_target_and_are_small() -> None:
    home = EMBEDDED / "target"
    heads, view = find(engine().target, None), skipping(engine().target, None)
    assert heads.count == 4 and not heads.shared
    assert len(heads.ranks) == 4 and heads.ranks[0][0] > heads.ranks[3][0] > 0.2
    assert view.skipped.attention and view.skipped.mlp
    assert companion(home, "skip").stat().st_size < 2_000
    assert companion(home, "heads").stat().st_size < 4_000_000
    assert companion(home, "eagle").stat().st_size < 3_000_000
    package = Path(draftwood.__file__).parent
    whole = sum(path.stat().st_size for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert whole < 32_000_000
