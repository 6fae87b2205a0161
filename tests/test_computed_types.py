"""Models are computed in their own type unless another one is asked for, and what is printed says in which."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from conftest import Command
from native_library import needs_native
from safetensors.torch import load_file, save_file
from servers import running

import draftwood
from draftwood.models.checkpoints.files import read_json
from draftwood.train.runs import prepare


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of bfloat16, whose config does not say so."""
    place = tiny_models.write(tmp_path_factory.mktemp("short") / "target", seed=1)
    path = place / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)
    config = {key: value for key, value in read_json(place / "config.json").items() if key != "dtype"}
    (place / "config.json").write_text(json.dumps(config))
    return place


@needs_native
def test_the_types_own_is_the_default(short: Path, target: Path) -> None:
    engine = draftwood.load(short, target)
    assert engine.names["dtype"] == "bfloat16" and engine.drafts[0].dtype == torch.float32  # type: ignore[attr-defined]
    options: dict[str, Any] = {"sampling": {"temperature": 0}, "max_new_tokens": 12, "ignore_eos": True}
    drafted, plain = (engine.generate("ab", method, **options) for method in ("speculative", "autoregressive"))
    assert drafted.tokens == plain.tokens
    assert inspect.signature(prepare).parameters["dtype"].default == "auto"


def test_the_embedded_pair_is_computed_as_it_was_measured() -> None:
    engine = draftwood.load()
    assert {model.dtype for model in (engine.target, *engine.drafts)} == {torch.float32}  # type: ignore[attr-defined]


@needs_native
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "computed in bfloat16"),
        (("--dtype", "float32"), "computed in float32"),
        (("--quantize", "int8"), "computed in int8 and bfloat16"),
        (("--kv-dtype", "int8"), "keys and values in int8"),
    ],
)
def test_what_is_printed_says_the_type(short: Path, command: Command, flags: tuple[str, ...], says: str) -> None:
    given = ("--target", short, "--max-new-tokens", 2, *flags)
    assert command("generate", "ab", *given).err.rstrip("\n").split(" · ")[-1] == says
    assert says in command("compare", "ab", *given, "--methods", "lookup", "--repeat", 1).out.splitlines()


@needs_native
def test_a_server_says_the_type(short: Path) -> None:
    with running(draftwood.load(short, quantize="int8", kv_dtype="float32")) as served:
        (model,) = served.client.get("/v1/models").json()["data"]
    assert (model["dtype"], model["quantize"], model["kv_dtype"]) == ("bfloat16", "int8", "float32")


def test_env_says_what_is_computed_in_another_type(command: Command) -> None:
    assert "auto computes float16 in float32" in command("env", "--json").document["devices"]["device cpu"]
    assert "auto computes float16 in float32" in " ".join(command("env").out.split())


@pytest.mark.real
def test_a_gguf_file_is_not_widened(smollm2: Path) -> None:
    names = draftwood.load(smollm2).names
    assert names["dtype"] == "q4_1, q8_0" and names["kv_dtype"] == "bfloat16" and "dequantised" not in names


@pytest.mark.slow
@pytest.mark.real
def test_a_gguf_file_is_widened_where_it_is_asked_for(smollm2: Path) -> None:
    wide = draftwood.load(smollm2, dtype="float32").names
    assert wide["dtype"] == "float32" and wide["dequantised"]["target"] == "Q4_1, Q8_0"
