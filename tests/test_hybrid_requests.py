"""Requests on a hybrid, a model with recurrent layers: one text alone, in batches, put back, with prefixes reused."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from enumeration import EnumeratedRandomness
from every_method import FAMILIES, settle, shortage

from draftwood import Engine, GenerationResult
from draftwood.models.backend.matrix import holder, pack
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig, per_layer
from draftwood.models.heads.dflash_head import DFlashHead
from draftwood.models.heads.eagle_head import EagleHead
from draftwood.models.heads.exit import ExitLayer
from draftwood.models.heads.medusa import Heads
from draftwood.models.recurrent_config import CONV, DELTA, SSM, RecurrentConfig

VOCAB = 19
KINDS = [
    RecurrentConfig(DELTA, 4, key_heads=1, key_dim=8, value_heads=2, value_dim=8),
    RecurrentConfig(SSM, 4, key_heads=1, key_dim=8, value_heads=2, value_dim=8),
    RecurrentConfig(CONV, 3),
    None,
]
LAYERS = per_layer(recurrent=KINDS, attends=[False, True, False, True])
SAMPLINGS = ({"temperature": 0}, {"temperature": 0.9})
METHODS = {name: method for name, method in FAMILIES.items() if name != "self"}


def hybrid(seed: int, vocabulary: int = VOCAB) -> Decoder:
    torch.manual_seed(seed)
    model = Decoder(DecoderConfig(vocabulary, 24, 40, 4, 4, 2, 6, 1024, layers=LAYERS))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval().requires_grad_(False)


TARGET, DRAFT = hybrid(1), hybrid(2)
EXIT, HEADS, EAGLE, BLOCK = (
    ExitLayer.of(TARGET, 1),
    Heads.of(TARGET, 3),
    EagleHead.of(TARGET),
    DFlashHead.of(TARGET, 2, 5),
)
for model in (TARGET, DRAFT, EXIT, EAGLE, BLOCK):
    pack(model.eval(), holder(torch.float32, torch.device("cpu"), None))


def engine(**options: Any) -> Engine:
    made = Engine(TARGET, [DRAFT], **options)
    made.set_draft_models("eesd", [EXIT])
    made.set_draft_models("medusa", [HEADS])
    made.set_draft_models("eagle", [EAGLE])
    made.set_draft_models("dflash", [BLOCK])
    return made


def entries() -> list[dict[str, Any]]:
    rng = random.Random(0)
    common = [rng.randrange(VOCAB) for _ in range(40)]
    made = []
    for i, (name, method) in enumerate(METHODS.items()):
        prompt = [*common[: rng.choice([0, 40])], *(rng.randrange(VOCAB) for _ in range(rng.choice([1, 30])))]
        sampling = {"temperature": 1.0} if name == "search" else SAMPLINGS[i % 2]
        made.append({"prompt": prompt, "method": method, "sampling": sampling, "seed": i, "max_new_tokens": 12})
    return made


def same(found: GenerationResult, expected: GenerationResult) -> None:
    assert found.tokens == expected.tokens and found.finish_reason == expected.finish_reason
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert [beam.tokens for beam in found.beams] == [beam.tokens for beam in expected.beams]


@pytest.fixture(scope="module")
def alone() -> list[GenerationResult]:
    ours = engine(reuse_prefixes=False)
    return [ours.generate(**entry) for entry in entries()]


def test_greedy_text_is_that_of_whole_passes(alone: list[GenerationResult]) -> None:
    checked = 0
    for entry, result in zip(entries(), alone, strict=True):
        if entry["sampling"] == {"temperature": 0} and not result.beams:
            whole = TARGET.train_forward(torch.tensor([[*entry["prompt"], *result.tokens]]))[0]
            assert result.tokens == whole[len(entry["prompt"]) - 1 : -1].argmax(-1).tolist()
            checked += 1
    assert checked > 3


@pytest.mark.parametrize("reuse", [False, True], ids=["fresh", "reused"])
def test_in_a_batch_after_being_put_back(alone: list[GenerationResult], reuse: bool) -> None:
    ours = engine(reuse_prefixes=reuse)
    with shortage(0.15, random.Random(1), ours):
        for _ in range(2):
            for result, expected in zip(ours.batch(entries(), 6), alone, strict=True):
                same(result, expected)
    assert ours.scheduler.preempted > 3
    assert (ours.prefix_hit_rate > 0) is reuse
    settle(ours)


def test_a_budget_that_puts_requests_back(alone: list[GenerationResult]) -> None:
    ours = engine(kv_cache_bytes=400_000)
    for result, expected in zip(ours.batch(entries(), 6), alone, strict=True):
        same(result, expected)
    assert ours.builder.budget.used <= 400_000
    assert 0 < ours.memory["used"] <= ours.memory["held"] == ours.builder.budget.used
    settle(ours)


@pytest.mark.parametrize("name", ["plain", "chain", "tree", "exit", "dsbd"])
def test_a_second_turn_goes_on_behind_the_first(name: str) -> None:
    rng = random.Random(2)
    first = [rng.randrange(VOCAB) for _ in range(50)]
    options: dict[str, Any] = {"method": METHODS[name], "max_new_tokens": 20, "seed": 4}
    ours = engine()
    reply = ours.generate(first, **options).tokens
    second = [*first, *reply, *(rng.randrange(VOCAB) for _ in range(10))]
    again = ours.generate(second, **options)
    same(again, engine(reuse_prefixes=False).generate(second, **options))
    assert again.metrics.reused_tokens >= len(first) - 3
    settle(ours)


def test_cancelled_requests_leave_nothing() -> None:
    ours = engine()
    for name in ("chain", "tree", "dsbd"):
        rounds = ours.stream([1, 2, 3] * 9, method=METHODS[name], max_new_tokens=40)
        next(rounds)
        next(rounds)
        rounds.close()
    settle(ours)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "speculative", "gamma": 2},
        {"name": "mcsd", "tree": [2]},
        pytest.param({"name": "mcsd", "tree": [2, 1]}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_laws_are_exact(method: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every random choice enumerated, against the products of a whole pass's probabilities."""
    target, draft = (hybrid(seed, 3).double() for seed in (3, 4))
    law = EnumeratedRandomness(monkeypatch).law_of_texts(Engine(target, [draft]), [1, 2, 0], method, 3)
    assert len(law) == 27
    for text, chance in law.items():
        rows = target.train_forward(torch.tensor([[1, 2, 0, *text]]))[0, 2:-1].softmax(-1)
        assert chance == pytest.approx(float(rows[range(3), list(text)].prod()), abs=1e-9)
