"""Keys and values in float32, bfloat16 and int8: what is stored, what attention reads of it, what is refused."""

from __future__ import annotations

from itertools import chain as joined
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from family_models import PROMPT, mostly_slow
from family_models import write as write_family
from family_variants import VARIANTS
from native_library import chain, embedded, needs_native
from torch import Tensor

import draftwood
from benchmarks.kinds.quantisation import read
from draftwood.corpus import documents
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ConfigurationError
from draftwood.models.base import Batch, Segment
from draftwood.models.cache import Cache
from draftwood.models.checkpoints import checkpoint
from draftwood.models.decoder import Decoder
from draftwood.models.kv_rows import KV_DTYPES, SCALE_BYTES, from_rows, kv_dtype_of, row_width, to_rows
from draftwood.models.text.tokenizer import Tokenizer

TOKENS = [7 * i * i % 1000 for i in range(60)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 6, 32, 70, 129])
def test_a_row_is_a_scale_and_the_nearest_codes(width: int) -> None:
    x = drawn(9, width) * torch.logspace(-6, 6, 9)[:, None]
    rows = to_rows(x, torch.int8)
    assert rows.shape == (9, row_width(torch.int8, width)) and rows.dtype == torch.int8
    assert row_width(torch.int8, width) % SCALE_BYTES == 0
    scale, codes = rows[:, :SCALE_BYTES].view(torch.float32), rows[:, SCALE_BYTES : SCALE_BYTES + width]
    assert torch.equal(scale[:, 0], x.abs().amax(-1) / 127)
    assert (codes.abs().amax(-1) == 127).all() and not rows[:, SCALE_BYTES + width :].any()
    found = from_rows(rows, torch.float64, width)
    assert ((found - x.double()).abs() <= 0.5001 * scale.double()).all()


@pytest.mark.parametrize("dtype", [*KV_DTYPES.values(), torch.float64], ids=str)
def test_a_row_depends_on_no_other(dtype: torch.dtype) -> None:
    x = drawn(20, 48)
    x[7] *= 1e9
    rows = to_rows(x, dtype)
    for i in range(20):
        assert torch.equal(to_rows(x[i : i + 1], dtype)[0], rows[i])
        assert torch.equal(from_rows(rows[i], torch.float32, 48), from_rows(rows, torch.float32, 48)[i])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_is_not_a_number(value: float) -> None:
    x = drawn(3, 16)
    x[1, 5] = value
    found = from_rows(to_rows(x, torch.int8), torch.float32, 16)
    assert found[1].isnan().all() and found[[0, 2]].isfinite().all()


def test_rows_of_almost_nothing_are_zero() -> None:
    x = torch.tensor([[0.0, 0.0], [1e-38, -1e-40], [1e-29, 0.0]])
    found = from_rows(to_rows(x, torch.int8), torch.float32, 2)
    assert torch.equal(found[:2], torch.zeros(2, 2)) and torch.allclose(found[2], x[2])


# -- what is stored, and what is read of it ---------------------------------------------------------------------------


@needs_native
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_the_native_kernels_write_the_same_rows(kv_dtype: str) -> None:
    """In the first layer, whose keys and values do not depend on what was stored before."""
    caches = []
    for kind in ("float32", kv_dtype):
        model = checkpoint.load(EMBEDDED / "target", backend="native", kv_dtype=kind)
        caches.append(model.new_cache(len(TOKENS)))
        chain(model, TOKENS, cache=caches[-1])
    for plane in (0, 1):
        exact, stored = (cache.read(plane, cache._lent[0], len(TOKENS))[0] for cache in caches)
        assert torch.equal(to_rows(exact, KV_DTYPES[kv_dtype]), stored)


def both(place: Path, kv_dtype: str, tokens: list[int]) -> tuple[Tensor, Decoder, Cache]:
    """A text's last logits [V], computed natively; a decoder in float64 and a cache of its own with the same rows."""
    native, exact = (
        checkpoint.load(place, dtype, backend=backend, packed=dtype == "float32", kv_dtype=kv_dtype)
        for dtype, backend in (("float32", "native"), ("float64", "pytorch"))
    )
    ours, theirs = (model.new_cache() for model in (native, exact))
    for model, cache in ((native, ours), (exact, theirs)):  # the latter for the positions of its slots
        cache.lend(len(tokens))
        chain(model, tokens[:-1], cache=cache)
    for plane in range(len(ours.planes)):  # layers may share them
        theirs.planes[plane][: len(ours.planes[plane])] = ours.planes[plane][: len(theirs.planes[plane])]
    return chain(native, tokens[-1:], len(tokens) - 1, ours)[0][0], exact, theirs


def last(model: Decoder, tokens: list[int], cache: Cache) -> Tensor:
    return chain(model, tokens[-1:], len(tokens) - 1, cache)[0][0]


def error(found: Tensor, right: Tensor) -> float:
    """Relative to the spread of the logits."""
    return float((found.double() - right).norm() / (right - right.mean()).norm())


@pytest.mark.some(12)
@needs_native
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("name", [None, *mostly_slow(VARIANTS)])
def test_attention_reads_the_numbers_that_are_stored(name: str | None, kv_dtype: str, tmp_path: Path) -> None:
    """Against float64 on the same rows, over windows, caps and widths of every kind.

    A code of the last token's own row may be rounded the other way.
    """
    place, tokens = (EMBEDDED / "target", TOKENS) if name is None else (tmp_path, PROMPT)
    if name is not None:
        write_family(tmp_path, name)
    found, exact, cache = both(place, kv_dtype, tokens)
    assert error(found, last(exact, tokens, cache)) < (1e-3 if kv_dtype == "int8" else 2e-5)


@needs_native
def test_the_scale_of_another_head_is_found() -> None:
    """The test above sees scales: with those of keys, or of values, taken from the neighbour head it would fail."""
    for first in (0, 1):
        found, exact, cache = both(EMBEDDED / "target", "int8", TOKENS)
        for plane in range(first, 2 * exact.n_layers, 2):
            rows = cache.read(plane, cache._lent[0])[0]
            rows[:, :, :SCALE_BYTES] = rows[:, :, :SCALE_BYTES].roll(1, 0)
        assert error(found, last(exact, TOKENS, cache)) > 0.01


@needs_native
def test_a_key_that_is_not_a_number_reaches_the_rows_that_see_it() -> None:
    """And no others: int8 has no NaN, so that the scale must tell it."""
    model = embedded("int8 keys")
    cache = model.new_cache(64)
    extents = [cache.lend(32) for _ in range(2)]
    with torch.inference_mode():
        for extent in extents:
            model.forward(Batch.of(model, TOKENS[:8], range(8), [Segment.causal(extent, 0, 8)]), cache)
        cache.read(0, extents[0])[0, 0, 5] = to_rows(torch.full((1, model.config.head_dim), torch.nan), torch.int8)[0]
        segments = [Segment.causal(extent, 8, 1) for extent in extents]
        logits = model.forward(Batch.of(model, [3, 3], [8, 8], segments), cache)
    assert logits[0].isnan().all() and logits[1].isfinite().all()


# -- choosing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "quantize", "found"),
    [
        ("float32", None, "float32"),
        ("bfloat16", None, "bfloat16"),
        ("float16", None, "float16"),
        ("float64", None, "float64"),
        ("float32", "int8", "bfloat16"),
        ("bfloat16", "int4", "bfloat16"),
    ],
)
def test_auto_is_not_wider_than_the_weights(dtype: str, quantize: str | None, found: str) -> None:
    assert kv_dtype_of("auto", checkpoint.DTYPES[dtype], quantize) == getattr(torch, found)
    assert kv_dtype_of("int8", checkpoint.DTYPES[dtype], quantize) == torch.int8


def test_the_budget_counts_the_bytes_that_are_stored() -> None:
    sizes = {}
    for kv_dtype in KV_DTYPES:
        engine = draftwood.load(kv_dtype=kv_dtype)
        assert engine.names["kv_dtype"] == kv_dtype
        sizes[kv_dtype] = engine.target.new_cache().slot_bytes
    c: Any = engine.target.config  # type: ignore[attr-defined]
    rows = 2 * c.num_hidden_layers * c.num_key_value_heads
    assert sizes == {
        "float32": rows * 4 * c.head_dim,
        "bfloat16": rows * 2 * c.head_dim,
        "int8": rows * (c.head_dim + 4),
    }


def test_parts_of_a_target_store_what_it_stores() -> None:
    """Heads, exits and draft models too."""
    engine = draftwood.load(kv_dtype="int8")
    for method in ("speculative", "eesd", "eagle", "self-spec"):
        engine.generate("Once", method, max_new_tokens=4, ignore_eos=True)
    caches = [*engine.builder.caches.values()]
    assert len(caches) == 4
    assert {cache.layout[0][2] for cache in caches} == {torch.int8}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"kv_dtype": "int4"}, r"kv_dtype 'int4' is not known .*; use one of auto, float32, bfloat16, int8"),
    "compiled": ({"kv_dtype": "int8", "compile": True}, "leave out kv_dtype or compile"),
    "transformers": ({"target": "hf:somewhere", "kv_dtype": "int8"}, "kv_dtype is for checkpoints that"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_be_stored_is_refused_before_weights_are_read(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, sentence = REFUSED[wrong]
    monkeypatch.setattr(checkpoint, "load", None)
    with pytest.raises(ConfigurationError, match=sentence):
        draftwood.load(**options)


# -- a real model -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_native
@pytest.mark.real
def test_a_real_model_hardly_changes(smollm2: Path) -> None:
    """Printed: `pytest -m real -s tests/models/test_kv_rows.py`."""
    exact = checkpoint.load(smollm2, "float32", kv_dtype="float32")
    tokenizer = Tokenizer.load(smollm2)
    texts = [tokenizer.encode(document.text)[:200] for document in islice(documents("stories", "held-out", seed=1), 2)]
    right = [*joined.from_iterable(read(exact, texts, exact)["greedy"])]
    for kv_dtype, (divergence, agreement) in {"bfloat16": (1e-4, 0.99), "int8": (2e-3, 0.96)}.items():
        found = read(checkpoint.load(smollm2, "float32", kv_dtype=kv_dtype), texts, exact)
        agreed = sum(map(int.__eq__, right, joined.from_iterable(found["greedy"]))) / len(right)
        kl = sum(found["divergence"]) / len(right)
        print(f"{kv_dtype}: {len(right)} tokens, KL {kl:.6f}, top-1 {agreed:.4f}")
        assert 0 < kl < divergence and agreed > agreement
