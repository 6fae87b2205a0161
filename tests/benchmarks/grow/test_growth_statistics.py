"""A grown pair drafts and accepts as the small one does, in every type; int8 and bfloat16 change the model a little."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch

import draftwood
from benchmarks.grow.growth import Growth, write
from draftwood.corpus import DOMAINS, documents
from draftwood.engine.loading import EMBEDDED
from draftwood.models.checkpoints import checkpoint
from draftwood.models.text.tokenizer import Tokenizer

TYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantize": "int8"},
}


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded pair at twice its width."""
    out = tmp_path_factory.mktemp("grown")
    for role, layers, width in (("target", 12, 384), ("draft", 2, 256)):
        model = checkpoint.load(EMBEDDED / role, packed=False)
        write(model, out / role, Growth.plan(model, layers, width), checkpoint.read_config(EMBEDDED / role))
        (out / role / "tokenizer.json").write_bytes((EMBEDDED / role / "tokenizer.json").read_bytes())
    return out


def accepted(engine: draftwood.Engine, count: int, temperature: float) -> list[float]:
    """Share of drafts accepted, prompt by prompt, of chains of one depth: other controllers ask what passes cost."""
    shares, method = [], {"name": "speculative", "gamma": 4, "depth": "fixed"}
    for domain in DOMAINS:
        for seed, item in enumerate(islice(documents(domain, "held-out", seed=3), count)):
            result = engine.generate(
                item.prompt, method, {"temperature": temperature}, max_new_tokens=48, seed=seed, ignore_eos=True
            )
            shares.append(result.metrics.acceptance_rate)
    return shares


def differs(ours: list[float], theirs: list[float]) -> float:
    """Mean paired difference in its standard errors."""
    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    return abs(fmean(gaps)) / (stdev(gaps) / math.sqrt(len(gaps)) + 0.002)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", TYPES)
def test_a_grown_pair_accepts_as_the_small_one_over_many_prompts(grown: Path, kind: str, temperature: float) -> None:
    """With a control: the draft as its own target is told apart."""
    small, large = draftwood.load(**TYPES[kind]), draftwood.load(grown / "target", grown / "draft", **TYPES[kind])
    ours, theirs = (accepted(engine, 8, temperature) for engine in (large, small))
    assert differs(ours, theirs) < 3
    if temperature == 0 and kind == "float32":
        assert ours == theirs
    other = draftwood.load(EMBEDDED / "draft", EMBEDDED / "draft", **TYPES[kind])
    assert differs(accepted(other, 8, temperature), theirs) > 6


def perplexity(decoder: Any, per_domain: int) -> float:
    """Teacher-forced, through the matrices as they are held."""
    total, count = 0.0, 0
    tokenizer = Tokenizer.load(EMBEDDED / "target")
    for domain in DOMAINS:
        for item in islice(documents(domain, "held-out", seed=4), per_domain):
            tokens = torch.tensor([tokenizer.encode(item.text)[: decoder.context]])
            with torch.inference_mode():
                logits = decoder.train_forward(tokens)[0, :-1].float()
            total += float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum"))
            count += tokens.shape[1] - 1
    return math.exp(total / count)


@pytest.mark.slow
def test_shorter_types_cost_little_perplexity() -> None:
    found = {}
    for kind, how in TYPES.items():
        found[kind] = perplexity(checkpoint.load(EMBEDDED / "target", **how), 3)
    assert 0 < abs(found["bfloat16"] / found["float32"] - 1) < 0.005
    assert 0 < abs(found["int8"] / found["float32"] - 1) < 0.01


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_speculation_in_int8_is_exact_to_the_int8_model(temperature: float) -> None:
    """Whose text is not always the float32 model's."""
    engine, exact = draftwood.load(quantize="int8"), draftwood.load()
    options: dict[str, Any] = {"sampling": {"temperature": temperature}, "max_new_tokens": 24, "ignore_eos": True}
    same = []
    for seed, domain in enumerate(DOMAINS):
        prompt = next(iter(documents(domain, "held-out", seed=8))).prompt
        plain, chain = (
            engine.generate(prompt, {"name": name, "verify": "coupled"}, seed=seed, **options)
            for name in ("autoregressive", "speculative")
        )
        assert chain.tokens == plain.tokens and chain.logprobs == plain.logprobs
        other = exact.generate(prompt, {"name": "autoregressive", "verify": "coupled"}, seed=seed, **options)
        same.append(other.logprobs == plain.logprobs)
    assert not any(same)
