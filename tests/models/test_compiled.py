"""Compiled forwards give the eager decoder's logits and texts, and say what is missing where they cannot be made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import draftwood
from draftwood.core.forest import Forest
from draftwood.errors import ConfigurationError
from draftwood.models import compiled
from draftwood.models.base import Batch, Segment
from draftwood.models.checkpoints import checkpoint, saving
from draftwood.models.compiled import ROW_BUCKETS, Compiled
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.runtime.executor import execute
from draftwood.runtime.session import Run, Session

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler, about this machine


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without trying kernels out: the programs are the same, only slower."""
    monkeypatch.setitem(compiled.INDUCTOR_SETTINGS, "max_autotune", False)


def tiny(seed: int = 0, **knobs: Any) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(DecoderConfig(48, 32, 40, 1, 4, 2, 8, max_position_embeddings=256, **knobs)).requires_grad_(False)


def tree(tokens: int) -> tuple[Forest, list[int]]:
    """A trunk, a root and two branches of two."""
    forest = Forest.from_prompt([7 + i % 40 for i in range(tokens)])
    first = forest.propose(forest.roots[0], [3, 4], None)
    nodes = [*first, *(forest.propose(node, [9], None)[0] for node in first)]
    return forest, [*forest.roots, *nodes]


LAYERS: dict[str, dict[str, Any]] = {
    "gpt2": {"norm": "layer", "position_offset": 0, "gated": False, "hidden_act": "gelu_new"},
    "gemma": {"qk_norm": "one", "post_norm": True, "norm": "rms_offset", "attention_softcap": 5.0, "window": 8},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "knobs", [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in LAYERS.values())], ids=["llama", *LAYERS]
)
def test_logits_are_the_eager_ones_for_chains_and_trees(knobs: dict[str, Any]) -> None:
    """One program for prompts and trees of up to eight tokens, at several lengths."""
    decoder = tiny(**knobs)
    model = Compiled(decoder)
    ours, plain = (Session(m, m.new_cache(64)) for m in (model, decoder))
    for tokens in (3, 40, 100):
        forest, nodes = tree(tokens)
        for session in (ours, plain):
            session.close()
        ours, plain = (Session(m, m.new_cache(64)) for m in (model, decoder))
        with torch.inference_mode():
            for asked in (nodes[:1], nodes):
                got, expected = (execute([Run(s, forest, asked)])[0].logits for s in (ours, plain))
                torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
    assert model.compile_seconds > 0


CHAIN, TREE = {"name": "speculative", "gamma": 4}, {"name": "mcsd", "tree": [2, 2, 1]}


@pytest.mark.slow
def test_text_is_the_eager_one_alone_and_beside_others() -> None:
    target, draft = tiny(1), tiny(2)
    options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 30}
    eager = draftwood.Engine(target, [draft])
    engine = draftwood.Engine(Compiled(target), [draft])
    prompt = [5, 6, 7, 8]
    expected = eager.generate(prompt, "autoregressive", **options)
    for method in ("autoregressive", CHAIN, TREE):
        result = engine.generate(prompt, method, **options)
        assert result.tokens == expected.tokens, method
        torch.testing.assert_close(torch.tensor(result.logprobs), torch.tensor(expected.logprobs), atol=1e-4, rtol=0)
    for result in engine.batch([prompt] * 3, concurrency=3, method="speculative", **options):
        assert result.tokens == expected.tokens


def test_forwards_are_padded_to_few_shapes() -> None:
    model = Compiled(tiny())
    assert [model.padded_rows(n) for n in (1, 2, 3, 8, 9, 32, 33, 500)] == [2, 2, 8, 8, 32, 32, 33, 500]
    assert model.new_cache().lend(3).capacity >= 256 and ROW_BUCKETS[0] == 2


@pytest.mark.slow
def test_more_programs_than_pytorch_keeps_by_code() -> None:
    """Capacities, extents and spans up to the last slot; a full extent runs as the decoder does."""
    decoder = tiny(3)
    model = Compiled(decoder)
    with torch.inference_mode():
        for capacity in range(64, 64 * 11, 64):
            caches = [decoder.new_cache() for _ in range(2)]
            for cache in caches:
                cache.fixed = capacity
            first, second = ([cache.lend(capacity) for cache in caches] for _ in range(2))
            for extents, past in ((first, capacity - 2), (first, 1), (second, capacity // 2)):
                places = [min(slot, 255) for slot in (past, past + 1)]
                got, expected = (
                    m.forward(Batch.of(m, [5, 6], places, [Segment.causal(extent, past, 2)]), cache)
                    for m, cache, extent in zip((model, decoder), caches, extents, strict=True)
                )
                torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_a_failing_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Compiled(tiny())

    def broken(*inputs: Any) -> None:
        raise RuntimeError("No working C++ compiler found\nand a long story")

    monkeypatch.setattr(model, "_program", lambda: broken)
    session = Session(model, model.new_cache(64))
    forest, nodes = tree(3)
    with pytest.raises(
        ConfigurationError, match=r"No working C\+\+ compiler found\); it needs a C\+\+ compiler such as g"
    ):
        execute([Run(session, forest, nodes[:1])])


def test_what_cannot_be_compiled_or_quantised_is_refused(tmp_path: Path) -> None:
    saving.save(tiny(), tmp_path / "model")
    for options, sentence in (
        ({"quantize": "int3"}, "quantize 'int3' is not known"),
        ({"quantize": "int4"}, "quantize int4 takes matrices that were made before: use draftwood.load"),
        ({"quantize": "int4", "backend": "pytorch", "grouped": {}}, "quantize int4 needs the native backend"),
        ({"quantize": "int8", "dtype": "float64"}, "quantize int8 is for the CPU, dtype float32 or bfloat16"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            checkpoint.load(tmp_path / "model", **options)
    with pytest.raises(ConfigurationError, match="compile is for checkpoints that draftwood's own decoder loads"):
        draftwood.load(tiny(), compile=True)
    with pytest.raises(ConfigurationError, match="quantize is for checkpoints that draftwood's own decoder loads"):
        draftwood.load(tiny(), quantize="int8")
    with pytest.raises(ConfigurationError, match="either quantised or compiled"):
        draftwood.load(tmp_path / "model", quantize="int8", compile=True)
