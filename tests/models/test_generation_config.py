"""How a checkpoint's makers draw tokens, read from its files; who follows it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Command
from servers import running

from draftwood import ModelError, SamplingParams, load
from draftwood.cli.groups import SamplingOptions
from draftwood.methods import Method
from draftwood.models.checkpoints import generation_config, gguf_parts
from draftwood.models.checkpoints.generation_config import sampling_defaults
from draftwood.serve.settings import ServeSettings

PROMPT = "Story: a fox"
RECOMMENDED = {"temperature": 0.6, "top_p": 0.9, "top_k": 20}


@pytest.fixture
def recommending(copy_of_target: Path) -> Path:
    told = {**RECOMMENDED, "do_sample": True, "eos_token_id": 256, "max_length": 20, "min_p": None}
    (copy_of_target / "generation_config.json").write_text(json.dumps(told))
    return copy_of_target


def test_directories(recommending: Path) -> None:
    assert sampling_defaults(recommending) == load(recommending).generation_config == RECOMMENDED
    file = recommending / "generation_config.json"
    file.write_text('{"do_sample": false, "temperature": 0.6}')
    assert sampling_defaults(recommending) == {"temperature": 0.0}
    for odd in ('"hot"', "-1", "NaN"):
        file.write_text(f'{{"temperature": {odd}}}')
        with pytest.raises(ModelError, match=r"generation_config\.json"):
            load(recommending)
    file.unlink()
    assert sampling_defaults(recommending) == {}


def test_gguf_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {"general.name": "x", "general.sampling.temp": 0.6, "general.sampling.top_k": 20}
    metadata |= {"general.sampling.penalty_repeat": 1.1, "general.sampling.mirostat": 0}
    place = tmp_path / "a.gguf"
    place.write_bytes(b"")
    monkeypatch.setattr(gguf_parts, "opened", lambda path: SimpleNamespace(metadata=metadata))
    assert generation_config.sampling_defaults(place) == {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}


def test_what_was_not_set_is_completed() -> None:
    usual = {"temperature": 0.7, "top_p": 0.95}
    told = "temperature 0.7, top_p 0.95 by default"
    assert SamplingOptions().completed({}) == (SamplingParams(**usual), told)
    assert SamplingOptions(temperature=1.0).completed({}) == (SamplingParams(top_p=0.95), "top_p 0.95 by default")
    assert SamplingOptions(temperature=0.0).completed({}) == (SamplingParams(temperature=0), "")
    assert SamplingOptions(top_p=0.5, top_k=3).completed(RECOMMENDED) == (
        SamplingParams(temperature=0.6, top_p=0.5, top_k=3),
        "temperature 0.6 by the checkpoint's generation_config",
    )
    assert SamplingOptions().completed({"temperature": 1.0}) == (SamplingParams(), "")
    beams = Method.parse("beam-search")  # draws nothing
    assert SamplingOptions().completed(RECOMMENDED, beams) == (SamplingParams(), "")


def test_commands(command: Command, recommending: Path) -> None:
    engine = load(recommending)
    given: Any = ["--target", recommending, "--seed", 3, "--max-new-tokens", 20]
    for flags, options in (([], RECOMMENDED), (["--temperature", 2], {**RECOMMENDED, "temperature": 2.0})):
        outcome = command("generate", PROMPT, *given, *flags)
        expected = engine.generate(PROMPT, sampling=options, seed=3, max_new_tokens=20)
        assert outcome.out == expected.text
        assert "top_k 20, top_p 0.9 by the checkpoint's generation_config" in outcome.err
    document = command("generate", PROMPT, *given, "--json").document
    assert document["sampling"] == SamplingParams(**RECOMMENDED).model_dump(mode="json")
    (recommending / "generation_config.json").unlink()
    document = command("generate", PROMPT, *given, "--json").document
    assert document["sampling"]["temperature"] == 0.7 and document["sampling"]["top_p"] == 0.95


@pytest.mark.parametrize("way", ["auto", "none"])
def test_servers(recommending: Path, way: Any) -> None:
    engine = load(recommending)
    with running(engine, ServeSettings(generation_config=way)) as served:
        for own in ({}, {"top_k": 5}):
            options = {**(RECOMMENDED if way == "auto" else {}), **own}
            text = served.post("/v1/completions", prompt=PROMPT, seed=3, max_tokens=20, **own)["choices"][0]["text"]
            assert text == engine.generate(PROMPT, sampling=options, seed=3, max_new_tokens=20).text
        beams = served.post("/v1/completions", prompt=PROMPT, use_beam_search=True, max_tokens=3)
        assert len(beams["choices"]) == 1


@pytest.mark.parametrize(("short", "long"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_short_names(target: Path, short: str, long: str, command: Command) -> None:
    given: Any = ["generate", PROMPT, "--target", target, "--max-new-tokens", 2, "--json", "--dtype"]
    documents = [command(*given, name).document for name in (short, long)]
    assert documents[0]["models"] == documents[1]["models"]
    for quantize, whole in (("q8", "int8"), ("q4", "int4")):
        assert load(target, draft_quantize=quantize, dtype=short).names["draft_quantize"] == whole
