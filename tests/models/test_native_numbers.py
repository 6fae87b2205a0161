"""Numbers of the native backend: near a float64 reference, by every kernel set; NaN stays; backends are as asked."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import write
from family_models import PROMPT, mostly_slow
from family_models import write as write_family
from family_variants import VARIANTS
from native_library import TYPES, chain, embedded, greedy_and_logits, needs_native, python

import draftwood
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ConfigurationError
from draftwood.models.backend import native
from draftwood.models.backend.native import NativeEmbedding, NativeMatrix
from draftwood.models.checkpoints import checkpoint
from draftwood.util import native_library

TOKENS = [7 * i * i % 1000 for i in range(80)]
BOUNDS = {"float32": (0, 5e-6), "bfloat16": (1e-3, 0.015), "int8": (0.01, 0.08)}  # of mean errors; below: another type


def errors(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Of each row, relative to the spread of its logits."""
    return (found.double() - exact).norm(dim=-1) / (exact - exact.mean(-1, keepdim=True)).norm(dim=-1)


@cache
def exact_logits() -> torch.Tensor:
    return chain(checkpoint.load(EMBEDDED / "target", "float64", packed=False), TOKENS)[0]


@needs_native
@pytest.mark.parametrize("kind", TYPES)
def test_the_error_of_each_type(kind: str) -> None:
    low, high = BOUNDS[kind]
    found = errors(chain(embedded(kind), TOKENS)[0], exact_logits())
    assert low <= found.mean() < high


@pytest.mark.some(21)
@needs_native
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", mostly_slow(VARIANTS))
def test_every_kind_of_layer_runs_natively(name: str, kind: str, tmp_path: Path) -> None:
    """test_families.py compares with Hugging Face; with float64 the bound is sharper."""
    write_family(tmp_path, name)
    exact, _ = chain(checkpoint.load(tmp_path, "float64", packed=False), PROMPT)
    model = checkpoint.load(tmp_path, **TYPES[kind])
    assert model.native
    error = errors(chain(model, PROMPT)[0], exact)
    assert error.max() < 1e-5 if kind == "float32" else 1e-3 < error.mean() < 0.06


# -- kernel sets ------------------------------------------------------------------------------------------------------

Computed = tuple[list[int], dict[str, torch.Tensor]]  # a greedy text, and logits by TYPES and KV_TYPES
COMPUTE = """
import json
from native_library import greedy_and_logits

print(json.dumps(greedy_and_logits()))
"""


def by_kernels(name: str) -> Computed:
    """What a kernel set computes: that in use here, another in a process of its own."""
    if name == native_library.kernels()[0]:
        made = greedy_and_logits()
    else:
        made = json.loads(python(COMPUTE, DRAFTWOOD_KERNELS=name).stdout)
    chosen, text, logits, fewer = made
    assert chosen == name
    for kind in logits:
        assert fewer[kind] == logits[kind][: len(fewer[kind])], (name, kind)
    return text, {kind: torch.tensor(rows).double() for kind, rows in logits.items()}


def compare(one: Computed, other: Computed) -> None:
    """The same greedy text; logits that differ by the order of sums."""
    assert one[0] == other[0]
    for kind, rows in one[1].items():
        bound = {"float32": 1e-5, "int8 keys": 0.01}.get(kind, 0.06)
        assert errors(other[1][kind], rows).max() < bound, kind


@needs_native
def test_kernels_in_use_compute_what_portable_ones_do() -> None:
    """Rows do not depend on others in each set."""
    compare(by_kernels("portable"), by_kernels(native_library.kernels()[0]))


@pytest.mark.slow
@needs_native
def test_every_kernel_set_computes_the_same() -> None:
    right = by_kernels("portable")
    used, able = native_library.kernels()
    first, found = able[: able.index(used)], []  # better ones than the one in use: no such processor has run them yet
    for name in set(able) - {"portable"}:
        try:
            compare(right, by_kernels(name))
        except (AssertionError, subprocess.CalledProcessError, IndexError, ValueError) as error:
            if name not in first:
                raise
            found.append(f"{name} failed: {error}"[:500])
        else:
            found += [f"{name} passed"] if name in first else []
    if found:
        pytest.skip(f"first run on such a processor, see native/src/dispatch.cpp: {'; '.join(found)}")


UNKNOWN = """
import draftwood
from draftwood.cli.env import collect
from draftwood.errors import ConfigurationError

print(getattr(draftwood.load().target, "native"), collect()["backend"])
try:
    draftwood.load(backend="native")
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.slow
@needs_native
def test_a_kernel_set_that_is_not_there() -> None:
    """PyTorch computes where nobody insists, and both say why."""
    auto, error = python(UNKNOWN, DRAFTWOOD_KERNELS="abacus").stdout.splitlines()
    reason = f"names no kernel set that this processor can run; it can run {', '.join(native_library.kernels()[1])}"
    assert auto == f"False pytorch: DRAFTWOOD_KERNELS {reason}"
    assert error == f"the native backend is not there: DRAFTWOOD_KERNELS {reason}"


# -- NaN --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("numbers") / "model"
    write(place)
    return place


@needs_native
@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=["nan", "infinity"])
@pytest.mark.parametrize("kind", TYPES)
def test_a_row_that_is_not_finite_says_so_and_leaves_others_alone(kind: str, bad: float, directory: Path) -> None:
    """The token of a bad embedding, and all rows that see it; not those before it."""
    tokens = [3, 94, 17, 60, 5, 41, 8]
    right, _ = chain(checkpoint.load(directory, **TYPES[kind], backend="native"), tokens)
    model = checkpoint.load(directory, **TYPES[kind], backend="native")
    table = model.embed(torch.arange(model.vocab_size))
    table[60, 5] = bad
    model.embed = NativeEmbedding(NativeMatrix(table, None))
    found, _ = chain(model, tokens)
    assert torch.equal(found[:3], right[:3])
    assert found[3:].isnan().all()


@needs_native
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("where", ["layers.0.mixer.qkv", "layers.1.feed.down", "head"])
def test_a_weight_that_is_not_a_number(where: str, kind: str, directory: Path) -> None:
    model = checkpoint.load(directory, "float32", packed=False)
    weight = model.get_submodule(where).weight.clone()
    weight[2, 3] = float("nan")
    packed = NativeMatrix(
        weight.to((TYPES[kind].get("dtype") == "bfloat16" and torch.bfloat16) or torch.float32), None, kind
    )
    with torch.inference_mode():
        found = packed(torch.ones(5, weight.shape[1]))
    assert found[:, 2].isnan().all()
    assert found.isnan().sum() == 5


# -- which backend ----------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "float64": ({"dtype": "float64"}, "for the CPU with dtype float32 or bfloat16; change device or dtype"),
    "float16": ({"dtype": "float16"}, "for the CPU with dtype float32 or bfloat16; change device or dtype"),
    "another device": ({"device": "meta"}, "for the CPU with dtype float32 or bfloat16; change device or dtype"),
    "compile": ({"compile": True}, "compile is for the backend pytorch"),
    "transformers": (
        {"target": "hf:somewhere"},
        "backend native is for checkpoints that",
    ),
}


@needs_native
@pytest.mark.parametrize("wrong", REFUSED)
def test_what_the_native_backend_does_not_do_is_said(wrong: str, directory: Path) -> None:
    options, sentence = REFUSED[wrong]
    with pytest.raises(ConfigurationError, match=sentence):
        draftwood.load(**{"target": directory, "backend": "native", **options})


def test_an_unknown_backend_is_refused(directory: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"backend 'nativ' is not known \(did you mean 'native'"):
        draftwood.load(directory, backend="nativ")


def test_the_backend_pytorch_calls_nothing_native(monkeypatch: pytest.MonkeyPatch) -> None:
    def called() -> None:
        raise AssertionError("the library was asked for")

    monkeypatch.setattr(native, "loaded_library", called)
    engine = draftwood.load(backend="pytorch")
    assert not engine.target.native  # type: ignore[attr-defined]
    assert not any(isinstance(module, NativeMatrix) for module in engine.target.modules())  # type: ignore[attr-defined]
    assert len(engine.generate([1, 2, 3], "autoregressive", max_new_tokens=4, ignore_eos=True).tokens) == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_the_library_pytorch_computes(dtype: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.models.backend.matrix.unavailable", lambda: "it is not there")
    assert not checkpoint.load(directory, dtype).native
    with pytest.raises(ConfigurationError, match="the native backend is not there: it is not there"):
        checkpoint.load(directory, dtype, backend="native")
