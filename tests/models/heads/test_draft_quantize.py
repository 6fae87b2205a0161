"""`draft_quantize`: how draft models and trained heads are held; exactness and names do not depend on it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from native_library import needs_native
from torch import nn

import draftwood
from draftwood import Engine
from draftwood.engine.loading import EMBEDDED
from draftwood.explain.terminal import origins
from draftwood.models.backend.native import NativeMatrix

PROMPT = "Story: In Corfe there lived a sailor called"
HEADS = ("eesd", "eagle", "medusa")


def held(engine: Engine, method: str) -> list[str]:
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
