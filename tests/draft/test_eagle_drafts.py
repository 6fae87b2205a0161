"""Drafting with an EAGLE head: plain decoding's text, and drafts from the text alone."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_heads import config, says, write
from every_method import shortage
from greedy_reference import models, naive, prompt_of
from small_decoder import decoder

from draftwood import ConfigurationError, Engine
from draftwood.core.records import Round
from draftwood.models.heads import eagle
from draftwood.models.heads.eagle_head import EagleHead

METHODS: dict[str, dict[str, Any]] = {
    "chain": {"name": "eagle", "gamma": 4},
    "no-drafts": {"name": "eagle", "gamma": 0},
    "tree": {"name": "eagle", "width": 3, "gamma": 3, "nodes": 8, "least": 0.0},
    "confident": {"name": "eagle", "width": 4, "gamma": 4, "least": 0.1},
    "best": {"name": "eagle", "width": 3, "gamma": 3, "drafts": "best"},
    "mixed": {"name": "eagle", "gamma": 4, "lookup": True},
}
CONTROLLERS = ["confidence:0.2", "entropy:2.5", "beta-ts", "speedup-ts:cost=0.3", "auto"]


@pytest.fixture(scope="session")
def head_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The head of a target, with random weights; its tensors beside it."""
    directory = tmp_path_factory.mktemp("eagle")
    tensors = write(directory, config())
    return lambda target: (eagle.load(directory, target), tensors)


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", METHODS)
def test_greedy_text_is_plain_decodings(name: str, dtype: str, head_of: Any) -> None:
    target = models(dtype)[0]
    engine = Engine(target, [head_of(target)[0]])
    prompts = [prompt_of(length) for length in (1, 2, 7, 240)]
    for verify in ("coupled", "traversal"):
        options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 32}
        method = {**METHODS[name], "verify": verify}
        results = engine.batch(prompts, concurrency=3, method=method, **options)
        assert [result.tokens for result in results] == [naive(dtype, prompt)[:32] for prompt in prompts]
        if name != "no-drafts":
            assert not any(result.rounds[0].drafted for result in results)  # which brings the prompt's states
            assert all(result.rounds[1].drafted for result in results)


def drafted(head: Any, target: Any, text: list[int], made: Round) -> None:
    """The chain of a round is what the head says after the text so far, all of its verified tokens read anew."""
    raw, tensors = config(), head
    before, chain = text[: made.position + 1], made.forest_token[1:]
    for place, token in enumerate(chain):
        logits = says(raw, tensors, target, before, chain[:place])
        assert int(logits.argmax()) == token


@pytest.mark.some(2)
@pytest.mark.parametrize("way", ["alone", "batch", "short", "prefixes"])
def test_every_chain_is_the_heads_own(way: str, head_of: Any) -> None:
    """After accepted and rejected drafts, after requests were put back, and behind prefixes that others computed."""
    target = decoder(3, torch.float64)
    head, tensors = head_of(target)
    engine = Engine(target, [head], reuse_prefixes=way == "prefixes")
    shared = prompt_of(40)
    prompts = [[*shared, 1 + i] for i in range(4)] if way == "prefixes" else [prompt_of(2 + 5 * i) for i in range(4)]
    options: dict[str, Any] = {"method": METHODS["chain"], "sampling": {"temperature": 0}, "max_new_tokens": 16}
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
        for made in result.rounds:
            drafted(tensors, target, [*prompt, *result.tokens], made)
        accepted += result.metrics.accepted
    assert accepted > 0
    if way == "prefixes":
        assert all(result.metrics.reused_tokens == 40 for result in results[1:])
        assert engine.scheduler.prefixes.hits > 3 * 2 * 38  # on the head's side too


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["chain", "tree", "best", "mixed"])
def test_sampled_text_does_not_depend_on_the_batch(name: str, head_of: Any) -> None:
    target = decoder(3, torch.float64)
    engine = Engine(target, [head_of(target)[0]], end_tokens=frozenset({5}))
    requests = [{"prompt": prompt_of(1 + 9 * i), "seed": i} for i in range(5)]
    options: dict[str, Any] = {"method": METHODS[name], "sampling": {"temperature": 0.9}, "max_new_tokens": 16}
    alone = [engine.generate(**request, **options).tokens for request in requests]
    assert [result.tokens for result in engine.batch(requests, 3, **options)] == alone
    with shortage(0.1, random.Random(1), engine):
        assert [result.tokens for result in engine.batch(requests, 4, **options)] == alone


@pytest.mark.some(2)
@pytest.mark.parametrize("depth", CONTROLLERS)
def test_every_controller_leaves_the_text_as_it_is(depth: str, head_of: Any) -> None:
    target = models("float64")[0]
    engine = Engine(target, [head_of(target)[0]])
    for name in ("chain", "tree"):
        method = {**METHODS[name], "depth": depth}
        found = engine.generate(prompt_of(7), method, {"temperature": 0}, max_new_tokens=24)
        assert found.tokens == naive("float64", prompt_of(7))[:24]
        options: dict[str, Any] = {"sampling": {"temperature": 0.9}, "max_new_tokens": 20, "seed": 3}
        plain = engine.generate(prompt_of(7), {"name": "autoregressive", "verify": "coupled"}, **options)
        assert engine.generate(prompt_of(7), {**method, "verify": "coupled"}, **options).tokens == plain.tokens


def test_lookup_goes_before_a_chain_of_the_head(head_of: Any) -> None:
    """Where there is a copy it is drafted, in the first round too; else the head drafts alone."""
    target = decoder(3, torch.float64)
    engine = Engine(target, [head_of(target)[0]])
    options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 8}
    for prompt, copy in ((prompt_of(9), []), ([1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2], [3, 4, 0, 1])):
        alone, mixed = (engine.generate(prompt, METHODS[name], **options).rounds for name in ("chain", "mixed"))
        assert mixed[0].forest_token[1:] == copy and not mixed[0].draft_forwards  # the head has nothing to read yet
        assert mixed[1].draft_forwards == 4
        if not copy:
            assert mixed[1].forest_token == alone[1].forest_token
    with pytest.raises(ConfigurationError, match="lookup goes with a chain, but width is 3"):
        engine.generate(prompt, {"name": "eagle", "width": 3, "lookup": True})


def test_the_head_goes_on_at_the_end_of_a_copy(head_of: Any) -> None:
    """It drafts what it says behind the copied token, of which it has the target's states no more than of its own."""
    target = decoder(3, torch.float64)
    head, tensors = head_of(target)
    prompt = [2, 0, 2, 1, 0, 1, 1, 2, 1, 2, 0, 2]  # 2 0 was followed by 2, twice
    options: dict[str, Any] = {"sampling": {"temperature": 0, "logit_bias": {0: 60, 1: 60, 2: 60}}, "max_new_tokens": 8}
    alone, mixed = (Engine(target, [head]).generate(prompt, METHODS[name], **options) for name in ("chain", "mixed"))
    chain = mixed.rounds[1].forest_token
    assert alone.tokens == mixed.tokens and len(mixed.rounds[0].tokens) == 1
    assert chain[1] == 2 != alone.rounds[1].forest_token[1] and len(chain) == 5
    for k in range(1, 4):
        said = says(config(), tensors, target, [*prompt, chain[0]], tuple(chain[1 : k + 1]))
        assert chain[k + 1] == int(said[:3].argmax())


def test_confident_trees(head_of: Any) -> None:
    """At temperature 0 the layers are the paths of largest product of the head's chances, worked out one by one."""
    target = decoder(3, torch.float64)
    head, tensors = head_of(target)
    engine, prompt = Engine(target, [head]), prompt_of(9)
    method = {"name": "eagle", "width": 3, "gamma": 3, "nodes": 8, "least": 0.02}
    made = engine.generate(prompt, method, {"temperature": 0}, max_new_tokens=8).rounds[1]
    prompt = [*prompt, made.forest_token[0]]
    layer, wanted = {(): 1.0}, []
    for _ in range(3):
        found = {}
        for path, reach in layer.items():
            chances = says(config(), tensors, target, prompt, path).softmax(-1).tolist()
            found |= {(*path, token): reach * chance for token, chance in enumerate(chances)}
        ranked = sorted(found, key=lambda path: -found[path])
        chosen = [path for path in ranked[: min(3, 8 - len(wanted))] if found[path] >= 0.02]
        layer = {path: found[path] for path in chosen}
        wanted += chosen
    paths = {tuple(made.path(node)[1:]) for node in range(1, len(made.forest_token))}
    assert paths == set(wanted) and len(wanted) > 3


def test_an_engine_with_a_head_uses_it(head_of: Any, tmp_path: Path) -> None:
    import tiny_models

    import draftwood
    from draftwood.models.checkpoints import checkpoint
    from draftwood.models.heads import foreign_heads
    from draftwood.models.heads.medusa import Heads

    place = tiny_models.write(tmp_path / "target", 1)
    target = checkpoint.load(place, packed=False)
    made = EagleHead.of(target)
    eagle.save(made.weights(), place / "eagle", made.target, made.reads, torch.float32)
    engine = draftwood.load(place)
    assert engine.default_method.name == "eagle"
    first = engine.generate("ab", max_new_tokens=6, sampling={"temperature": 0})
    engine = draftwood.load(place, draft=place / "eagle")
    assert engine.default_method.name == "eagle"
    assert engine.generate("ab", max_new_tokens=6, sampling={"temperature": 0}).tokens == first.tokens
    heads = Heads.of(target, 2)
    tensors = {}
    for k in range(2):
        tensors |= {f"{k}.0.linear.{x}": getattr(heads.lift[k], x).data.clone() for x in ("weight", "bias")}
        tensors[f"{k}.1.weight"] = heads.out[k].weight.data.clone()
    from json import dumps

    from safetensors.torch import save_file

    public = tmp_path / "medusa"
    public.mkdir()
    (public / "config.json").write_text(dumps({"medusa_num_heads": 2, "medusa_num_layers": 1}))
    save_file(tensors, public / "medusa_lm_head.safetensors")
    engine = draftwood.load(place, draft=str(public))
    assert engine.default_method.name == "medusa" and foreign_heads.kind_of(public) == "medusa"
    found = engine.generate("ab", max_new_tokens=6, sampling={"temperature": 0})
    assert found.tokens == first.tokens and found.metrics.drafted > 0
