"""Natively no bit changes: nodes of trees, in whatever slots and company, are computed as in plain decoding."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from family_models import mostly_slow
from family_models import write as write_family
from family_variants import VARIANTS
from hybrid_variants import HYBRIDS
from native_library import KV_TYPES, TYPES, chain, embedded, needs_native
from walks import Walk

import draftwood
from draftwood import Engine
from draftwood.corpus import DOMAINS, documents
from draftwood.models.checkpoints import checkpoint
from draftwood.models.decoder import Decoder
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Answer

pytestmark = needs_native
PROMPTS = [item.prompt for domain in DOMAINS for item in islice(documents(domain, "held-out", seed=5), 1)]


def check(walk: Walk, answer: Answer, nodes: range, rng: random.Random) -> None:
    """A node's logits, keys and values, and what is told of it, are those of its tokens alone in a fresh cache."""
    session, model = walk.session, walk.session.model
    assert isinstance(model, Decoder) and session.extent is not None
    node = rng.choice(nodes)
    tokens = walk.forest.sequence(node)
    cache = model.new_cache()
    plain, batch = chain(model, tokens, cache=cache)
    row = node - nodes.start
    assert torch.equal(answer.logits[row], plain[-1])
    assert answer.tops is not None and batch.tops is not None
    assert answer.tops.of([row]) == batch.tops.of([len(tokens) - 1])
    path = [session._node_slot[each] for each in walk.forest.path(node)]
    slots = [*session._trunk_slot[: session.cached].tolist(), *path]
    assert len(slots) == len(tokens)
    for plane in range(len(cache.planes)):
        ours = session.cache.read(plane, session.extent)[0][:, slots]
        assert torch.equal(ours, cache.read(plane, cache._lent[0], len(tokens))[0]), plane


def walk_together(model: Decoder, shapes: list[tuple[int, str]], rounds: int) -> None:
    """Prompts, single tokens, chains and trees in one forward, some of them by way of a lower layer first."""
    cache, rng = model.new_cache(), random.Random(len(shapes))
    walks = [Walk(model, cache, length, kind, i) for i, (length, kind) in enumerate(shapes)]
    shuffled = 0
    for step in range(rounds):
        chosen = walks if step < 2 else rng.sample(walks, rng.randrange(1, len(walks) + 1))
        runs = [replace(walk.run(), leading=5) for walk in chosen]
        for i, run in enumerate(runs):
            if (i + step) % 3 == 2:
                execute([replace(run, upto=1)])
        for walk, run, answer in zip(chosen, runs, execute(runs), strict=True):
            check(walk, answer, run.nodes, rng)  # type: ignore[arg-type]
            walk.commit()
            slots = walk.session._trunk_slot[: walk.session.cached].tolist()
            shuffled += slots != sorted(slots)
    assert shuffled  # or this would be about chains


@pytest.mark.parametrize("kind", [*TYPES, "int4", *KV_TYPES])
def test_nodes_of_trees_have_the_bits_of_chains(kind: str) -> None:
    shapes = [(9, "single"), (41, "tree"), (120, "chain"), (3, "tree"), (70, "tree")]
    walk_together(embedded(kind), shapes, 6)


@pytest.mark.parametrize("kind", [*TYPES, "int4", *KV_TYPES])
def test_tokens_one_by_one_have_the_bits_of_a_chain(kind: str) -> None:
    """The chain above is one forward: here each of its rows is a forward of its own."""
    model, rng = embedded(kind), random.Random(kind)
    tokens = [rng.randrange(model.vocab_size) for _ in range(50)]
    whole, _ = chain(model, tokens)
    cache = model.new_cache()
    cache.lend(len(tokens))
    single = [chain(model, [token], i, cache)[0][0] for i, token in enumerate(tokens)]
    assert torch.equal(torch.stack(single), whole)


WHOLE = [name for name in VARIANTS if name != "gemma3n"]  # which PyTorch computes from part to part
KINDS = ("gemma2", "gemma3", "gpt2", "mistral", "opt", "phi3_partial", "qwen3_bias_windows", "qwen2_moe", "gpt_oss")


@pytest.mark.some(25)
@pytest.mark.parametrize("kind", [*TYPES, "int8 keys"])
@pytest.mark.parametrize("name", mostly_slow(WHOLE, KINDS))
def test_trees_of_every_kind_of_layer(name: str, kind: str, tmp_path: Path) -> None:
    """Windows, caps, norms of heads, learned positions, biases: with slots in any order."""
    write_family(tmp_path, name)
    model = checkpoint.load(tmp_path, **(TYPES | KV_TYPES)[kind], backend="native")
    walk_together(model, [(12, "tree"), (3, "tree"), (9, "chain"), (5, "single")], 4)


@pytest.mark.some(27)
@pytest.mark.parametrize("kind", [*TYPES, "int8 keys"])
@pytest.mark.parametrize("name", HYBRIDS)
def test_trees_of_hybrids(name: str, kind: str, tmp_path: Path) -> None:
    write_family(tmp_path, name)
    model = checkpoint.load(tmp_path, **(TYPES | KV_TYPES)[kind], backend="native")
    assert model.by_program
    walk_together(model, [(12, "tree"), (3, "tree"), (20, "chain"), (5, "single")], 5)


# -- whole methods ----------------------------------------------------------------------------------------------------

TREES: dict[str, dict[str, Any]] = {
    "specinfer": {"name": "specinfer", "expansion": [2, 2, 1]},
    "mcsd": {"name": "mcsd", "tree": [4, 2, 2, 1]},
    "wide": {"name": "mcsd", "tree": [3, 3, 2]},
    "lookup": {"name": "lookup"},
    "eesd": {"name": "eesd"},
    "self-spec": {"name": "self-spec"},
    "medusa": {"name": "medusa"},
}
COUPLED = ("specinfer", "mcsd", "lookup")


def text(result: Any) -> tuple[Any, ...]:
    return result.tokens, result.logprobs, result.top_logprobs


def loaded(kind: str, **options: Any) -> Engine:
    engine = draftwood.load(**(TYPES | KV_TYPES)[kind], backend="native", **options)
    assert getattr(engine.target, "native", False)
    return engine


def compare(kind: str, prompts: list[str], count: int) -> None:
    """Every tree method repeats plain decoding: alone, with a prompt that is known, in a batch, in little memory."""
    engine = loaded(kind)
    requests, plains, accepted = [], [], 0
    for i, (name, method) in enumerate(TREES.items()):
        prompt = prompts[i % len(prompts)]
        for temperature, verify in ((0.0, "rejection"), (1.0, "coupled")):
            if verify == "coupled" and name not in COUPLED:
                continue
            how = {"verify": verify} if name in COUPLED else {}
            options: dict[str, Any] = {"sampling": {"temperature": temperature}, "max_new_tokens": count, "seed": i}
            options |= {"ignore_eos": True, "top_logprobs": 2}
            plain = engine.generate(prompt, {"name": "autoregressive", **how}, **options)
            for _ in range(2):  # the second time its prompt and text are there
                result = engine.generate(prompt, {**method, **how}, **options)
                assert text(result) == text(plain), (name, verify)
            accepted += result.metrics.accepted
            requests.append({"prompt": prompt, "method": {**method, **how}, **options})
            plains.append(plain)
    assert accepted > len(plains)
    small = loaded(
        kind, kv_cache_bytes=int(2.5 * max(cache.slot_bytes for cache in engine.builder.caches.values()) * 256)
    )
    for each in (engine, small):
        for result, plain in zip(each.batch(requests, concurrency=6), plains, strict=True):
            assert text(result) == text(plain), each is small


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", [*TYPES, "int8 keys"])
def test_tree_methods_change_no_bit(kind: str) -> None:
    compare(kind, [prompt[:200] for prompt in PROMPTS], 10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
def test_tree_methods_change_no_bit_in_long_texts(kind: str) -> None:
    for i in range(len(PROMPTS)):
        compare(kind, PROMPTS[i:] + PROMPTS[:i], 100)


def beams(engine: Engine, prompts: list[str], count: int) -> None:
    """Drafted beam search repeats the plain one, scores too; in batches as well."""
    requests: list[dict[str, Any]] = []
    plains = []
    for i, prompt in enumerate(prompts):
        options = {"width": (2, 4, 8)[i % 3], "n_best": 2}
        drafted = {"name": "speculative-beam-search", "gamma": 3, "draft_width": (2, 6, 12)[i % 3], **options}
        plains.append(engine.generate(prompt, {"name": "beam-search", **options}, max_new_tokens=count))
        requests.append({"prompt": prompt, "method": drafted, "max_new_tokens": count})
        assert hypotheses(engine.generate(**requests[-1])) == hypotheses(plains[-1]), prompt
    for result, plain in zip(engine.batch(requests, concurrency=4), plains, strict=True):
        assert hypotheses(result) == hypotheses(plain)
    assert sum(len(plain.rounds) for plain in plains) > count  # most texts are as long as that


def hypotheses(result: Any) -> list[tuple[Any, ...]]:
    return [(beam.tokens, beam.score, beam.finish_reason) for beam in result.beams]


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", [*TYPES, "int8 keys"])
def test_drafted_beam_search_changes_no_bit(kind: str) -> None:
    beams(loaded(kind), [prompt[:200] for prompt in PROMPTS[:3]], 10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
def test_drafted_beam_search_changes_no_bit_on_500_prompts(kind: str) -> None:
    each = -(-500 // len(DOMAINS))
    prompts = [item.prompt for domain in DOMAINS for item in islice(documents(domain, "held-out", seed=8), each)]
    beams(loaded(kind), prompts[:500], 32)


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", [*TYPES, "int8 keys"])
def test_drafted_beam_sampling_does_not_depend_on_the_batch(kind: str) -> None:
    engine = loaded(kind)
    method = {"name": "dsbd", "draft_width": 5, "gamma": 3, "width": 3, "n_best": 3}
    requests: list[dict[str, Any]] = [
        {"prompt": prompt[:150], "method": method, "max_new_tokens": 8, "seed": i}
        for i, prompt in enumerate(PROMPTS[:3])
    ]
    alone = [hypotheses(engine.generate(**request)) for request in requests]
    assert [hypotheses(result) for result in engine.batch(requests, concurrency=3)] == alone
