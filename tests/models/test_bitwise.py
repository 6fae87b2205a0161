"""On a CPU, drafting changes no bit: tokens, log-probabilities, keys and values are those of plain decoding.

Holds for every method whose accepted tokens lie in the slots of plain decoding (chains: speculative, lookup, coupled),
in any batch, in every dtype. The parts are tested by themselves too: a failure says which kernel broke the promise.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from covering import covering
from walks import Walk

import draftwood
from benchmarks.grow.growth import Growth, write
from draftwood.corpus import DOMAINS, documents
from draftwood.engine.loading import EMBEDDED
from draftwood.models.backend import matrix
from draftwood.models.backend.attention import additive, folded, ordered
from draftwood.models.backend.matrix import Int8, Packed
from draftwood.models.cache import SPAN_MULTIPLE
from draftwood.models.checkpoints import checkpoint
from draftwood.models.functions import ACTIVATIONS, activate, rms_norm
from draftwood.runtime.executor import execute

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HOW: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantize": "int8"},
    "int8 keys": {"kv_dtype": "int8", "backend": "pytorch"},
}
COUNTS = (1, 2, 3, 4, 5, 8, 17, 64, 130)  # rows in a product


THREADS = (1, 2, 8)


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """One unless a test names another number."""
    before, count = torch.get_num_threads(), getattr(request, "param", 1)
    torch.set_num_threads(count)
    yield count
    torch.set_num_threads(before)


def combined(names: str, *factors: Any) -> pytest.MarkDecorator:
    """Combinations with numbers of threads."""
    return pytest.mark.parametrize(f"{names},threads", covering(*factors, THREADS), indirect=["threads"], ids=str)


@combined("holder,dtype,shape", [Packed, Int8], [*DTYPES], [(24, 16), (320, 192), (192, 512), (768, 3072), (4096, 768)])
def test_a_row_of_a_product_does_not_depend_on_the_others(holder: Any, dtype: str, shape: tuple[int, int]) -> None:
    if holder is Packed and matrix.holder(DTYPES[dtype], torch.device("cpu"), None, "pytorch") is None:
        pytest.skip("this processor has no packed products of this type: plain ones are used")
    out, width = shape
    generator = torch.Generator().manual_seed(out)
    weight = torch.randn(out, width, generator=generator).to(DTYPES[dtype]) / width**0.5
    x = torch.randn(1, 130, width, generator=generator).to(DTYPES[dtype])
    x[0, 3] *= 50  # a loud neighbour
    layer = holder(weight, None)
    whole = layer(x)
    for count in COUNTS:
        assert torch.equal(layer(x[:, :count].contiguous()), whole[:, :count]), count
        assert torch.equal(layer(x[:, -count:].contiguous()), whole[:, -count:]), count
    exact = x.double() @ weight.double().T
    error = (whole.double() - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert error.max() < (0.03 if holder is Int8 else 0.004 if dtype == "bfloat16" else 1e-6)


HEADS = [(6, 2, 32), (4, 4, 16), (12, 12, 64), (16, 2, 128), (3, 1, 48)]  # of queries, of keys, width of each


@combined("dtype,shape,past", [*DTYPES], HEADS, [3, 60, 185, 190, 380, 500, 1020])
def test_attention_of_a_cell_does_not_depend_on_the_others(dtype: str, shape: tuple[int, int, int], past: int) -> None:
    """Other cells, other rows of the batch, slots behind the last one: none changes a bit."""
    heads, kv_heads, width = shape
    generator = torch.Generator().manual_seed(past)
    cells, fewest = 37, max(2, -(-4 * kv_heads // heads))
    q, k, v = (
        torch.randn(2, *shape, width, generator=generator).to(DTYPES[dtype])
        for shape in ((cells, heads), (kv_heads, past + 256), (kv_heads, past + 256))
    )

    def attend(row: slice, cell: slice, span: int) -> torch.Tensor:
        rows = len(range(*row.indices(2)))
        visible = torch.ones(rows, cells, span, dtype=torch.bool).tril(past)[:, cell]
        wide = -(-span // SPAN_MULTIPLE) * SPAN_MULTIPLE
        visible = torch.nn.functional.pad(visible, (0, wide - span))
        bias = folded(additive(visible, DTYPES[dtype]), heads, kv_heads)
        return ordered(q[row, cell], k[row, :, :wide], v[row, :, :wide], bias)

    whole = attend(slice(0, 2), slice(0, cells), past + cells)
    for first in range(0, cells - fewest, 3):
        few = attend(slice(1, 2), slice(first, first + fewest), past + first + fewest)
        assert torch.equal(few[0], whole[1, first : first + fewest]), first
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2).double(),
        k[:, :, : past + cells].double(),
        v[:, :, : past + cells].double(),
        torch.ones(cells, past + cells, dtype=torch.bool).tril(past),
        enable_gqa=True,
    )
    tolerance = 0.03 if dtype == "bfloat16" else 1e-5
    torch.testing.assert_close(
        whole.double(), exact.transpose(1, 2).flatten(2), atol=tolerance, rtol=0, check_dtype=False
    )


@combined("name,dtype,width", ["silu", "gelu", "gelu_new", "relu"], [*DTYPES], [48, 1024, 5632, 12000, 40000])
def test_activations_of_a_row_do_not_depend_on_the_others(name: str, dtype: str, width: int) -> None:
    """Also where PyTorch would cut a row among threads."""
    x = torch.randn(1, 80, 2 * width, generator=torch.Generator().manual_seed(width)).to(DTYPES[dtype])
    gate, _ = x.chunk(2, -1)
    with torch.inference_mode():
        whole = activate(ACTIVATIONS[name], gate)
        for count in (1, 2, 3, 5, 17, 77):
            assert torch.equal(activate(ACTIVATIONS[name], gate[:, :count]), whole[:, :count]), count
    torch.testing.assert_close(whole, ACTIVATIONS[name](gate))


@combined("dtype,width", [*DTYPES], [16, 192, 768, 2048])
def test_norms_of_a_row_do_not_depend_on_the_others(dtype: str, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(1, 130, width, generator=generator).to(DTYPES[dtype])
    weight = torch.rand(width, generator=generator).to(DTYPES[dtype])
    with torch.inference_mode():
        whole = rms_norm(x, weight, None, 1e-5)
        for count in COUNTS:
            assert torch.equal(rms_norm(x[:, :count], weight, None, 1e-5), whole[:, :count])
        torch.testing.assert_close(whole, torch.rms_norm(x, (width,), weight, 1e-5))


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded target at twice its width."""
    return grow_target(tmp_path_factory.mktemp("grown") / "target", heads=12, kv_heads=4)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With so many heads per key that a single cell makes rows enough for attention."""
    return grow_target(tmp_path_factory.mktemp("grouped") / "target", heads=12, kv_heads=2)


def grow_target(out: Path, heads: int, kv_heads: int) -> Path:
    model = checkpoint.load(EMBEDDED / "target", packed=False)
    growth = Growth.plan(model, 12, 384, heads, kv_heads)
    write(model, out, growth, checkpoint.read_config(EMBEDDED / "target"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (EMBEDDED / "target" / name).is_file():
            (out / name).write_bytes((EMBEDDED / "target" / name).read_bytes())
    return out


CHAINS: dict[str, dict[str, Any]] = {
    "speculative": {"name": "speculative", "gamma": 4},
    "long chain": {"name": "speculative", "gamma": 9},
    "lookup": {"name": "lookup"},
}


PROMPTS = [item.prompt for domain in DOMAINS for item in islice(documents(domain, "held-out", seed=5), 1)]


def kept(engine: draftwood.Engine, count: int) -> list[torch.Tensor]:
    """Keys and values of the first slots of the target that the last request left; the next one begins anew."""
    prefixes = engine.scheduler.prefixes
    entry = next(entry for entry in reversed(prefixes.kept) if entry.cache is engine.builder.caches[engine.target])
    planes = [entry.cache.read(plane, entry.extent, count).clone() for plane in range(len(entry.cache.planes))]
    prefixes.reset()
    return planes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int8 keys"])
def test_rows_have_the_same_bits_beside_others(dtype: str) -> None:
    """Single tokens, chains, trees, prompts and resumed layers of several lengths in one forward, and each alone."""
    model = checkpoint.load(EMBEDDED / "target", **HOW[dtype])
    shapes = [(9, "single"), (40, "single"), (200, "chain"), (3, "tree"), (41, "single"), (70, "chain"), (190, "tree")]
    cache = model.new_cache()
    together = [Walk(model, cache, length, kind, i) for i, (length, kind) in enumerate(shapes)]
    alone = [Walk(model, model.new_cache(), length, kind, i) for i, (length, kind) in enumerate(shapes)]
    rng = random.Random(dtype)
    for step in range(5):
        chosen = list(range(7)) if step < 2 else rng.sample(range(7), rng.randrange(1, 8))
        runs, single = [together[i].run() for i in chosen], [alone[i].run() for i in chosen]
        for i, (ours, theirs) in enumerate(zip(runs, single, strict=True)):
            if (i + step) % 3 == 2:  # it stops on the way, and resumes beside the others
                below = [replace(each, upto=1) for each in (ours, theirs)]
                assert torch.equal(*(execute([each])[0].hidden[1] for each in below))
        answers = execute(runs)
        for i, answer, theirs in zip(chosen, answers, single, strict=True):
            assert torch.equal(answer.logits, execute([theirs])[0].logits), (step, shapes[i])
            one, two = together[i].session, alone[i].session
            assert one.extent is not None and two.extent is not None
            for plane in range(len(cache.planes)):
                ours_of, theirs_of = (each.cache.read(plane, each.extent, each.span) for each in (one, two))  # type: ignore[arg-type]
                assert torch.equal(ours_of, theirs_of), (step, shapes[i])
            together[i].commit()
            alone[i].commit()


two_threads = pytest.mark.parametrize("threads", [2], indirect=True)  # more on few cores are slow


@pytest.mark.some(2)
@two_threads
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int8 keys"])
def test_chains_change_no_bit(grown: Path, dtype: str) -> None:
    """Greedy and coupled text, log-probabilities, keys and values, alone and in batches."""
    compare(grown, dtype, PROMPTS[1:4], 12)


@two_threads
@pytest.mark.slow
def test_single_cells_of_int8_change_no_bit(grouped: Path) -> None:
    assert checkpoint.load(grouped, quantize="int8").padded_rows(1) == 1
    compare(grouped, "int8", PROMPTS[1:3], 40)


@pytest.mark.slow
@pytest.mark.parametrize("threads", THREADS, indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_chains_change_no_bit_over_thousands_of_tokens(grown: Path, dtype: str) -> None:
    assert compare(grown, dtype, PROMPTS, 150) >= 2000


def compare(grown: Path, dtype: str, prompts: list[str], count: int) -> int:
    """Plain decoding against chains; returns the number of tokens compared."""
    engine = draftwood.load(grown, draft=EMBEDDED / "draft", **HOW[dtype])
    tokens, accepted, batched = 0, 0, []
    for i, prompt in enumerate(prompts):
        for temperature, verify in ((0.0, "rejection"), (1.0, "coupled")):
            options: dict[str, Any] = {
                "sampling": {"temperature": temperature},
                "max_new_tokens": count,
                "ignore_eos": True,
                "seed": i,
                "top_logprobs": 2,
            }
            plain = engine.generate(prompt, {"name": "autoregressive", "verify": verify}, **options)
            length = len(plain.prompt_tokens) + len(plain.tokens) - 1
            memory = kept(engine, length)
            name = list(CHAINS)[i % 3]
            result = engine.generate(prompt, {**CHAINS[name], "verify": verify}, **options)
            assert result.tokens == plain.tokens, (name, verify)
            assert result.logprobs == plain.logprobs, (name, verify)
            assert result.top_logprobs == plain.top_logprobs
            for ours, theirs in zip(kept(engine, length), memory, strict=True):
                assert torch.equal(ours, theirs), (name, verify)
            again = engine.generate(prompt, {**CHAINS[name], "verify": verify}, **options)  # the prompt is there
            assert again.tokens == plain.tokens and again.logprobs == plain.logprobs
            batched.append(({"prompt": prompt, "method": {**CHAINS[name], "verify": verify}, **options}, plain))
            tokens, accepted = tokens + len(result.tokens), accepted + result.metrics.accepted
    assert accepted > tokens / 5
    results = engine.batch([request for request, _ in batched], concurrency=4)
    for result, (_, plain) in zip(results, batched, strict=True):
        assert result.tokens == plain.tokens and result.logprobs == plain.logprobs
    return tokens
