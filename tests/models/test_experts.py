"""Mixtures of experts: rows do not depend on what others choose, in any backend and type; quantised experts; laws.

tests/models/checkpoints/test_families.py compares families with transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import draftwood
from draftwood import Engine
from draftwood.models import int4
from draftwood.models.checkpoints import checkpoint
from draftwood.models.layers.experts import Expert, Experts
from tests.helpers.enumeration import EnumeratedRandomness
from tests.helpers.family_models import PROMPT, write
from tests.helpers.native_library import chain, check_wanted_rows, needs_native

FAMILIES = ["qwen3_moe_mixed", "qwen2_moe", "glm4_moe", "gpt_oss", "gemma4_experts"]


@pytest.mark.some(10)
@pytest.mark.parametrize("backend", [pytest.param("native", marks=needs_native), "pytorch"])
@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"quantize": "int8"}], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_have_the_same_bits_alone(name: str, options: dict[str, Any], backend: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    model = checkpoint.load(tmp_path, **{"dtype": "float32", **options}, backend=backend)
    whole, cache = chain(model, PROMPT)[0], model.new_cache()
    cache.lend(len(PROMPT))
    single = [chain(model, [token], place, cache)[0][0] for place, token in enumerate(PROMPT)]
    assert torch.equal(torch.stack(single), whole)


@needs_native
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_that_nobody_wants_are_left_out(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    check_wanted_rows(checkpoint.load(tmp_path, "float32", backend="native"), PROMPT)


@needs_native
@pytest.mark.parametrize("name", FAMILIES)
def test_many_rows_and_threads(name: str, tmp_path: Path) -> None:
    """More rows than experts, in one thread and in two: the bits of pairs of rows."""
    write(tmp_path, name, max_position_embeddings=256)
    model, tokens = checkpoint.load(tmp_path, "float32", backend="native"), [(7 * i + 3) % 90 for i in range(150)]
    whole, before = chain(model, tokens)[0], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert torch.equal(chain(model, tokens)[0], whole)
    finally:
        torch.set_num_threads(before)
    cache = model.new_cache()
    cache.lend(len(tokens))
    pairs = [chain(model, tokens[at : at + 2], at, cache)[0] for at in range(0, len(tokens), 2)]
    assert torch.equal(torch.cat(pairs), whole)


@needs_native
@pytest.mark.parametrize("rows", [9, 25])
def test_all_experts_of_few_rows_have_room(rows: int, tmp_path: Path) -> None:
    """Tiles take sixteen rows where nine are: each expert needs room for them."""
    write(tmp_path, "qwen3_moe_mixed", num_experts=16, num_experts_per_tok=16)
    model, tokens = checkpoint.load(tmp_path, quantize="int8", backend="native"), [7 * i % 90 for i in range(rows)]
    whole, cache = chain(model, tokens)[0], model.new_cache()
    cache.lend(rows)
    single = [chain(model, [token], place, cache)[0][0] for place, token in enumerate(tokens)]
    assert torch.equal(torch.stack(single), whole)


def test_experts_that_are_mixed_up_change_the_logits(tmp_path: Path) -> None:
    write(tmp_path, "qwen3_moe")
    model = checkpoint.load(tmp_path, "float64", packed=False)
    before = chain(model, PROMPT)[0]
    experts: Any = model.layers[1].feed.experts
    assert isinstance(experts[0], Expert)
    experts[0], experts[1] = experts[1], experts[0]
    assert (chain(model, PROMPT)[0] - before).abs().max() > 1e-2


@needs_native
def test_int4_quantises_experts_that_the_text_does_not_reach(tmp_path: Path) -> None:
    """All matrices but the routers; those of an expert that nothing reached are rounded as they are."""
    write(tmp_path, "qwen3_moe")
    plain = checkpoint.load(tmp_path, packed=False)
    mixture = plain.layers[0].feed
    assert isinstance(mixture, Experts)
    with torch.no_grad():
        mixture.router.weight.zero_()[:2] = 1.0  # all rows take the first two, or the last two: one of two is unused
    made = int4.quantised(plain, torch.tensor([PROMPT]))
    assert len(made) == 3 * (2 + 2 * 6) and not any("router" in name for name in made)
    model = checkpoint.load(tmp_path, quantize="int4", backend="native", grouped=made)
    assert chain(model, PROMPT)[0].isfinite().all()


def test_the_law_of_speculation_on_a_mixture(tmp_path: Path) -> None:
    """Greedy texts of trees and chains are those of plain decoding; sampled ones have its distribution."""
    write(tmp_path / "target", "qwen3_moe")
    write(tmp_path / "draft", "qwen3_moe", seed=1)
    target = checkpoint.load(tmp_path / "target")
    draft = checkpoint.load(tmp_path / "draft")
    engine = draftwood.load(target, draft=draft)
    options: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}
    plain = engine.generate(PROMPT, "autoregressive", temperature=0, **options).tokens
    for method in ("speculative", "mcsd", "specinfer"):
        assert engine.generate(PROMPT, method, temperature=0, **options).tokens == plain
    law = torch.softmax(chain(target, PROMPT)[0][-1].double(), -1)
    drawn = torch.zeros(len(law), dtype=torch.float64)
    for seed in range(400):
        drawn[
            engine.generate(PROMPT, "mcsd", temperature=1, seed=seed, max_new_tokens=1, ignore_eos=True).tokens[0]
        ] += 1
    likely = law > 5 / 400
    spread = ((drawn[likely] - 400 * law[likely]) ** 2 / (400 * law[likely])).sum()
    assert spread < 2.5 * int(likely.sum()) + 10


def law_of_texts(model: Any, prompt: list[int], length: int) -> dict[tuple[int, ...], float]:
    """The chance of each text of a model, each prefix read on its own."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        law = {
            (*text, token): chance * p
            for text, chance in law.items()
            for token, p in enumerate(chain(model, [*prompt, *text])[0][-1].double().softmax(-1).tolist())
        }
    return law


TREE: dict[str, Any] = {"name": "mcsd", "tree": [2, 1]}


@pytest.fixture
def tiny(tmp_path: Path) -> Engine:
    """A mixture of three words, and another that drafts for it, in float64."""
    for name, seed in (("target", 0), ("draft", 1)):
        write(tmp_path / name, "qwen3_moe", seed, vocab_size=3, num_hidden_layers=1)
    target, draft = (checkpoint.load(tmp_path / name, "float64", packed=False) for name in ("target", "draft"))
    return Engine(target, [draft])


@pytest.mark.some(1)
@pytest.mark.parametrize("method", [{"name": "speculative", "gamma": 2}, TREE], ids=str)
def test_the_law_of_a_tiny_mixture_is_exact(method: dict[str, Any], tiny: Engine, monkeypatch: Any) -> None:
    """Every random choice enumerated: texts have the chances of plain decoding."""
    law = EnumeratedRandomness(monkeypatch).law_of_texts(tiny, [1, 2], method, 3)
    plain = law_of_texts(tiny.target, [1, 2], 3)
    assert max(plain.values()) < 0.9 and law.keys() == plain.keys()
    assert all(abs(law[text] - chance) < 1e-9 for text, chance in plain.items())


def test_a_row_with_the_experts_of_another_is_caught(tiny: Engine, monkeypatch: Any) -> None:
    plain, route = law_of_texts(tiny.target, [1, 2], 3), Experts.route

    def mixed_up(self: Experts, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen, weights = route(self, rows)
        return chosen.roll(1, 0), weights

    monkeypatch.setattr(Experts, "route", mixed_up)
    law = EnumeratedRandomness(monkeypatch).law_of_texts(tiny, [1, 2], TREE, 3)
    assert max(abs(law[text] - chance) for text, chance in plain.items()) > 1e-3
