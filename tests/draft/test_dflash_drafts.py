"""Drafting with blocks: plain decoding's text, and drafts from the text alone."""

import random
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from dflash_heads import config, says, write
from every_method import shortage
from greedy_reference import models, naive, prompt_of
from small_decoder import decoder

import draftwood
from draftwood import Engine
from draftwood.models.checkpoints import checkpoint
from draftwood.models.heads import dflash
from draftwood.models.heads.dflash_head import DFlashHead

METHODS: dict[str, dict[str, Any]] = {
    "chain": {"name": "dflash", "depth": "fixed"},
    "short": {"name": "dflash", "gamma": 2},
    "tree": {"name": "dflash", "width": 3, "nodes": 8, "least": 0.0},
    "best": {"name": "dflash", "width": 3, "drafts": "best"},
    "mixed": {"name": "dflash", "lookup": True},
}


@pytest.fixture(scope="session")
def head_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The head of a target, with random weights; its tensors beside it."""
    directory = tmp_path_factory.mktemp("dflash")
    tensors = write(directory, config())
    return lambda target: (dflash.load(directory, target), tensors)


@pytest.mark.parametrize("name", METHODS)
def test_greedy_text_is_plain_decodings(name: str, head_of: Any) -> None:
    target = models("float32")[0]
    engine = Engine(target, [head_of(target)[0]])
    prompts = [prompt_of(length) for length in (1, 7, 60)]
    options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 16}
    results = engine.batch(prompts, concurrency=3, method=METHODS[name], **options)
    assert [result.tokens for result in results] == [naive("float32", prompt)[:16] for prompt in prompts]
    assert all(result.metrics.drafted for result in results)


@pytest.mark.parametrize(
    "way", [*(pytest.param(way, marks=pytest.mark.slow) for way in ("alone", "batch")), "short", "prefixes"]
)
def test_every_chain_is_the_blocks_own(way: str, head_of: Any) -> None:
    """After accepted and rejected drafts, after requests were put back, and behind prefixes that others computed.

    Prompts are read in pieces.
    """
    target = decoder(3, torch.float64)
    head, tensors = head_of(target)
    engine = Engine(target, [head], reuse_prefixes=way == "prefixes")
    engine.scheduler.policy.chunk = 11
    shared = prompt_of(40)
    prompts = [[*shared, 1 + i] for i in range(4)] if way == "prefixes" else [prompt_of(2 + 50 * i) for i in range(4)]
    options: dict[str, Any] = {"method": METHODS["chain"], "sampling": {"temperature": 0}, "max_new_tokens": 10}
    if way == "short":
        with shortage(0.1, random.Random(3), engine):
            results = engine.batch(prompts, 4, **options)
        assert engine.scheduler.preempted > 3
    elif way == "batch":
        results = engine.batch(prompts, 3, **options)
    else:
        results = [engine.generate(prompt, **options) for prompt in prompts]
    accepted = 0
    for prompt, result in zip(prompts, results, strict=True):
        text = [*prompt, *result.tokens]
        for made in result.rounds:
            chain = made.forest_token[1:]
            wanted = says(config(), tensors, target, text[: made.position + 1]).argmax(-1).tolist()
            assert chain == wanted[: len(chain)]
        if way == "alone":  # one pass is enough for all layers, once the head has read the prompt in round 2
            assert all(made.draft_forwards == bool(made.drafted) for made in result.rounds[2:])
        accepted += result.metrics.accepted
    assert accepted > 0
    if way == "prefixes":
        assert all(result.metrics.reused_tokens == 40 for result in results[1:])
        assert engine.scheduler.prefixes.hits > 3 * 2 * 38  # on the head's side too


@pytest.mark.parametrize("name", ["tree", *(pytest.param(name, marks=pytest.mark.slow) for name in ("chain", "mixed"))])
def test_sampled_text_does_not_depend_on_the_batch(name: str, head_of: Any) -> None:
    target = decoder(3, torch.float64)
    engine = Engine(target, [head_of(target)[0]], end_tokens=frozenset({5}))
    requests = [{"prompt": prompt_of(1 + 9 * i), "seed": i} for i in range(5)]
    options: dict[str, Any] = {"method": METHODS[name], "sampling": {"temperature": 0.9}, "max_new_tokens": 16}
    alone = [engine.generate(**request, **options).tokens for request in requests]
    assert [result.tokens for result in engine.batch(requests, 3, **options)] == alone
    with shortage(0.1, random.Random(1), engine):
        assert [result.tokens for result in engine.batch(requests, 4, **options)] == alone


def test_trees_have_the_likeliest_paths(head_of: Any) -> None:
    """At temperature 0 the layers are the paths of largest product of the places' chances, worked out one by one."""
    target = decoder(3, torch.float64)
    head, tensors = head_of(target)
    engine, prompt = Engine(target, [head]), prompt_of(9)
    method = {"name": "dflash", "width": 3, "gamma": 3, "nodes": 8, "least": 0.02}
    made = engine.generate(prompt, method, {"temperature": 0}, max_new_tokens=8).rounds[1]
    prompt = [*prompt, made.forest_token[0]]
    chances = says(config(), tensors, target, prompt).softmax(-1).tolist()
    layer: dict[tuple[int, ...], float] = {(): 1.0}
    wanted: list[tuple[int, ...]] = []
    for place in range(3):
        found = {(*path, t): reach * chance for path, reach in layer.items() for t, chance in enumerate(chances[place])}
        ranked = sorted(found, key=lambda path: -found[path])  # type: ignore[has-type]
        chosen = [path for path in ranked[: min(3, 8 - len(wanted))] if found[path] >= 0.02]
        layer = {path: found[path] for path in chosen}
        wanted += chosen
    assert {tuple(made.path(node)[1:]) for node in range(1, len(made.forest_token))} == set(wanted)
    assert len(wanted) > 3 and made.draft_forwards == 1


def test_no_block_reaches_beyond_the_context() -> None:
    target = decoder(3, torch.float64, context=40)
    engine = Engine(target, [DFlashHead.of(target, 1, 8).double()])
    plain = engine.generate(prompt_of(20), "autoregressive", {"temperature": 0}, max_new_tokens=20)
    found = engine.generate(prompt_of(20), METHODS["chain"], {"temperature": 0}, max_new_tokens=20)
    assert found.tokens == plain.tokens and found.metrics.drafted


def test_an_engine_with_a_block_uses_it(head_of: Any, tmp_path: Path) -> None:
    place = tiny_models.write(tmp_path / "target", 1)
    dflash.save(DFlashHead.of(checkpoint.load(place, packed=False), 2, 6), place / "dflash", torch.float32)
    engine = draftwood.load(place)
    assert engine.default_method.name == "dflash"
    first = engine.generate("ab", max_new_tokens=6, sampling={"temperature": 0})
    engine = draftwood.load(place, draft=place / "dflash")
    assert engine.default_method.name == "dflash"
    assert engine.generate("ab", max_new_tokens=6, sampling={"temperature": 0}).tokens == first.tokens
    target = decoder(3)
    engine = Engine(target, [head_of(target)[0]])
    beams = {"name": "speculative-beam-search", "drafter": "dflash", "width": 2, "depth": "fixed"}
    plain = engine.generate([1, 2, 3], {"name": "beam-search", "width": 2}, max_new_tokens=8)
    assert engine.generate([1, 2, 3], beams, max_new_tokens=8).tokens == plain.tokens


def test_a_sequential_head_goes_on_from_each_draft(tmp_path: Path) -> None:
    """DSpark, in a chain at temperature 0 and in sampled trees, alone and in batches."""
    raw = config(speculators_model_type="dspark", markov_rank=4, sample_from_anchor=False)
    target, tensors = decoder(3, torch.float64), write(tmp_path, raw)
    engine = Engine(target, [dflash.load(tmp_path, target)])
    result = engine.generate(prompt_of(9), METHODS["chain"], {"temperature": 0}, max_new_tokens=10)
    text = [*prompt_of(9), *result.tokens]
    for made in result.rounds:
        chain = made.forest_token[1:]
        drafts = [*chain, 0, 0, 0][:3]
        wanted = says(raw, tensors, target, text[: made.position + 1], drafts).argmax(-1).tolist()
        assert chain == wanted[: len(chain)]
    plain = engine.generate(prompt_of(9), "autoregressive", {"temperature": 0}, max_new_tokens=10)
    assert result.tokens == plain.tokens and result.metrics.drafted
    requests = [{"prompt": prompt_of(1 + 9 * i), "seed": i} for i in range(4)]
    options: dict[str, Any] = {"method": METHODS["tree"], "sampling": {"temperature": 0.9}, "max_new_tokens": 8}
    alone = [engine.generate(**request, **options).tokens for request in requests]
    assert [found.tokens for found in engine.batch(requests, 3, **options)] == alone
    beams = {"name": "speculative-beam-search", "drafter": "dflash", "width": 2, "depth": "fixed"}
    searched = engine.generate(prompt_of(9), beams, max_new_tokens=8)
    expected = engine.generate(prompt_of(9), {"name": "beam-search", "width": 2}, max_new_tokens=8)
    assert searched.tokens == expected.tokens and searched.metrics.drafted
