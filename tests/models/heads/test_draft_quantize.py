"""`draft_quantize`: how draft models and trained heads are held; exactness and names do not depend on it."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command
from native_library import needs_native
from torch import nn

import draftwood
from draftwood import Engine
from draftwood.engine.loading import EMBEDDED
from draftwood.explain.terminal import origins
from draftwood.models.backend.native import NativeMatrix
from draftwood.models.checkpoints import checkpoint
from draftwood.models.quantise import seen_divided
from draftwood.train.eagle import EagleRun
from draftwood.train.settings import EagleSettings
from draftwood.train.texts import Texts

PROMPT = "Story: In Corfe there lived a sailor called"
HEADS = ("eesd", "eagle", "medusa")


def held(engine: Engine, method: str | dict[str, Any]) -> list[str]:
    """The kinds of the matrices of what drafts for a method, but not those that it shares with the target."""
    (model,) = engine.method(method).models(engine.target, engine.drafts)
    own = {id(part) for part in engine.target.modules()}  # type: ignore[attr-defined]
    parts = [part for part in model.modules() if id(part) not in own]  # type: ignore[attr-defined]
    kinds = {part.kind for part in parts if isinstance(part, NativeMatrix)}
    return sorted(kinds | {"linear" for part in parts if isinstance(part, nn.Linear)})


@pytest.mark.some(6)
@needs_native
@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({}, ["float32"]),
        ({"quantize": "int8"}, ["int8"]),
        ({"quantize": "int8", "draft_quantize": "none"}, ["float32"]),
        ({"draft_quantize": "int8"}, ["int8"]),
        ({"draft_quantize": "int4"}, ["int4"]),
    ],
    ids=["default", "follow", "none", "int8", "int4"],
)
def test_heads_are_held_as_asked_and_greedy_text_is_plain_decodings(
    method: str, options: dict[str, Any], kinds: list[str]
) -> None:
    engine = draftwood.load(EMBEDDED / "target", **options)
    assert held(engine, method) == kinds
    greedy: dict[str, Any] = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    result = engine.generate(PROMPT, method, **greedy)
    assert result.tokens == engine.generate(PROMPT, "autoregressive", **greedy).tokens
    assert result.metrics.rounds < 24  # something was accepted


@needs_native
@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"draft_quantize": "int8"}, ("float32", "int8")),
        ({"quantize": "int8"}, ("int8", "int8")),
        ({"quantize": "int8", "draft_quantize": "none"}, ("int8", "float32")),
        ({"draft_quantize": "int4"}, ("float32", "int4")),
    ],
)
def test_draft_models_are_held_as_asked(
    options: dict[str, Any], kinds: tuple[str, str], copy_of_target: Path, tmp_path: Path, draft: Path
) -> None:
    own = Path(shutil.copytree(draft, tmp_path / "draft", ignore=shutil.ignore_patterns("int4")))
    engine = draftwood.load(copy_of_target, own, **options)
    models: list[Any] = [engine.target, *engine.drafts]
    assert tuple(model.layers[0].mixer.qkv.kind for model in models) == kinds
    assert engine.names.get("draft_quantize") == options.get("draft_quantize")
    assert [(home / "int4").exists() for home in (copy_of_target, own)] == [kind == "int4" for kind in kinds]


@needs_native
def test_a_head_that_was_trained_for_four_bits_is_held_so_beside_a_quantised_target(tmp_path: Path) -> None:
    target = checkpoint.load(EMBEDDED / "target", "float32", "cpu", packed=False)
    rows = np.random.default_rng(0).integers(3, 300, (6, 24)).astype(np.int32)
    settings = EagleSettings(steps=2, batch=2, warmup=1, precision="float32", unroll=2, quantize="int4")
    run = EagleRun(target, Texts(rows[:4], rows[4:], "made up", 0), settings, tmp_path)
    list(run.train(10, 10, torch.float32))
    method = {"name": "eagle", "head": str(tmp_path)}
    for options, kind in (
        ({"quantize": "int8"}, "int4"),
        ({"quantize": "int8", "draft_quantize": "int8"}, "int8"),
        ({}, "float32"),
    ):
        assert held(draftwood.load(EMBEDDED / "target", **options), method) == [kind]
    tokens = torch.from_numpy(rows[4:]).long()
    read, _ = run._read(tokens, False)
    rounded = copy.deepcopy(run.exit.head)
    with torch.no_grad():
        for part in rounded.modules():
            if isinstance(part, nn.Linear):
                part.weight.copy_(seen_divided(part.weight))
        torch.testing.assert_close(run.exit.train_forward(read), rounded.train_forward(*read, 2))
        assert not torch.allclose(run.exit.train_forward(read), run.exit.head.train_forward(*read, 2), atol=1e-2)


def test_without_the_native_kernels_heads_are_rounded_likewise() -> None:
    engine = draftwood.load(EMBEDDED / "target", backend="pytorch", draft_quantize="int8")
    (model,) = engine.method("eesd").models(engine.target, [])
    assert type(model.decoder.head).__name__ == "Int8"  # type: ignore[attr-defined]


def test_refusals(pair: list[str], command: Command) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"draft_quantize": "int3"}, "draft_quantize 'int3' is not known .did you mean .*; use int8, int4 or none"),
        ({"draft_quantize": 8}, "draft_quantize 8 is not known.*; use int8, int4 or none"),
        ({"draft_quantize": "int4", "backend": "pytorch"}, "draft_quantize int4 needs the native backend"),
        (
            {"draft_quantize": "int8", "draft_dtype": "float64"},
            "draft_quantize int8 is for the CPU, dtype float32",
        ),
        ({"draft_quantize": "int8", "compile": True, "backend": "pytorch"}, "leave out draft_quantize or compile"),
    ]
    for options, error in cases:
        with pytest.raises(draftwood.ConfigurationError, match=error):
            draftwood.load(**options)
    refused = command("generate", "Once", *pair, "--draft-quantize", "int3")
    assert refused.code == 2 and "--draft-quantize is int3, but" in " ".join(refused.err.split())


def test_the_line_under_an_answer_says_it(pair: list[str], command: Command) -> None:
    shown = command("generate", "Once", *pair, "--draft-quantize", "int8", "--max-new-tokens", 2)
    assert shown.code == 0 and "drafts in int8" in " ".join(shown.err.split())
    assert "drafts not quantised" in origins({"dtype": "float32", "draft_quantize": "none"})
