"""Measurements beside other engines: the same weights and tokens there, and rows for whatever becomes of them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from benchmarks.engines import Output, cell, gguf_file
from benchmarks.execute import execute
from benchmarks.experiment import Experiment, ExperimentRun
from benchmarks.kinds import peers
from benchmarks.pairs import is_made, make, pair
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ConfigurationError


def turned(x: np.ndarray, position: int, neighbours: bool) -> np.ndarray:
    """Rotary position of [heads, d], over halves as Hugging Face or over neighbours as GGUF's llama."""
    d = x.shape[-1]
    angles = position * 10000.0 ** (-np.arange(0, d, 2) / d)
    first, second = (x[:, 0::2], x[:, 1::2]) if neighbours else (x[:, : d // 2], x[:, d // 2 :])
    out = np.empty_like(x)
    places = (slice(0, None, 2), slice(1, None, 2)) if neighbours else (slice(0, d // 2), slice(d // 2, None))
    cos, sin = np.cos(angles), np.sin(angles)
    out[:, places[0]], out[:, places[1]] = first * cos - second * sin, first * sin + second * cos
    return out


def test_rotary_rows_give_the_same_scores_under_the_other_layout() -> None:
    rng = np.random.default_rng(0)
    heads, d, width = 3, 8, 12
    query, key = rng.normal(size=(2, heads * d, width))
    x, y = rng.normal(size=(2, width))

    def scores(q: np.ndarray, k: np.ndarray, neighbours: bool) -> np.ndarray:
        pairs = ((q @ x, 5), (k @ y, 2))
        first, second = (turned(each.reshape(heads, d), place, neighbours) for each, place in pairs)
        return np.einsum("hd,hd->h", first, second)

    expected = scores(query, key, False)
    moved = [gguf_file.rotary_rows(matrix, heads) for matrix in (query, key)]
    np.testing.assert_allclose(scores(*moved, True), expected, atol=1e-12)
    assert np.abs(scores(query, key, True) - expected).max() > 0.1  # the rows do have to move


def test_four_bits_are_llama_cpps_own_from_bfloat16(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def quantise(source: bytes, out: bytes, settings: SimpleNamespace) -> int:
        asked.append((Path(source.decode()).name, settings.ftype))
        Path(out.decode()).write_bytes(Path(source.decode()).read_bytes()[:4])
        return 0

    stand_in = SimpleNamespace(
        LLAMA_FTYPE_MOSTLY_Q4_K_M=15,
        llama_model_quantize_default_params=SimpleNamespace,
        llama_model_quantize=quantise,
    )
    monkeypatch.setitem(sys.modules, "llama_cpp", stand_in)
    place = tmp_path / "draft-int4.gguf"
    gguf_file.write(EMBEDDED / "draft", place, "int4")
    assert asked == [("draft-bfloat16.gguf", 15)]
    assert place.read_bytes() == b"GGUF"
    stand_in.llama_model_quantize = lambda *given: 1
    place.unlink()
    with pytest.raises(RuntimeError, match="could not quantise"):
        gguf_file.write(EMBEDDED / "draft", place, "int4")
    assert not place.exists()


def test_a_converted_model_has_every_weight_once_and_tokens_pass_through_text() -> None:
    directory = EMBEDDED / "draft"
    read = gguf_file.FileWeights(directory)
    tensors = dict(gguf_file._tensors(read))
    head = read.shape.vocab_size * read.shape.hidden_size
    counted = sum(weight.numel() for weight in load_file(directory / "model.safetensors").values())
    assert sum(array.size for array in tensors.values()) == counted + head
    np.testing.assert_array_equal(tensors["output.weight"], tensors["token_embd.weight"])  # tied in the checkpoint
    tokens = [0, 2047, 7, 7]
    assert gguf_file.as_tokens("text: " + gguf_file.as_text(tokens) + "\nÿ", 2048) == tokens


def test_time_per_token_leaves_the_prompt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(cell, "perf_counter", lambda: clock[0])

    def generate(prompt: list[int], count: int) -> Output:
        clock[0] += 10 * len(prompt) + 3 * count
        return Output(list(range(count)))

    found = cell.measure(generate, [[1] * 5, [2] * 50], 9, warm_up=1)
    assert found["seconds_per_token"] == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="2 of 9 tokens"):
        cell.measure(lambda prompt, count: Output([1, 2]), [[1]], 9, warm_up=0)


def test_whatever_becomes_of_a_process_is_a_reason(tmp_path: Path) -> None:
    killed, slow = tmp_path / "killed", tmp_path / "slow"
    killed.write_text("#!/bin/sh\necho out of luck >&2\nkill -9 $$\n")
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    for script in (killed, slow):
        script.chmod(0o755)
    assert peers.run_job({}, str(killed), 1, 60)["error"] == "the process ended with signal 9: out of luck"
    assert peers.run_job({}, str(slow), 1, 0.2)["error"] == "it was not done after 0 s"


@pytest.mark.slow
def test_engines_give_rows_for_what_runs_and_what_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    settings = {
        "peers": {"draftwood": ["plain"], "llama.cpp": ["speculation"]}, "dtypes": ["float32"], "repeats": 1,
        "prompts": 1, "tokens": 4, "compare": [],
    }  # fmt: skip
    each = ExperimentRun()
    experiment = Experiment(title="test", kind="peers", settings=settings, runs={"one": each})
    rows = {row["engine"]: row for row in execute(experiment, Path("t"), "one", each, tmp_path)["tables"]["rows"]}
    assert rows["draftwood"]["same_text"] == 1 and rows["draftwood"]["peak_megabytes"] > 20
    assert "put llama-speculative-simple on the PATH" in rows["llama.cpp"]["failure"]


def test_ratios_are_of_the_same_repeat_and_prompt() -> None:
    def sample(seconds: list[float], tokens: list[int]) -> dict[str, Any]:
        return {"seconds_per_token": seconds, "tokens": [tokens] * len(seconds)}

    ours, theirs = "draftwood / plain / int8", "Hugging Face / plain / bfloat16"
    samples = [
        {ours: sample([1.0, 2.0], [1, 2, 3, 4]), theirs: sample([3.0, 6.0], [1, 2, 9, 4])},
        {ours: sample([10.0, 10.0], [1, 2, 3, 4]), theirs: sample([30.0, 30.0], [1, 2, 3, 4])},
        {ours: sample([5.0, 5.0], [1, 2, 3, 4])},
    ]
    asked = peers.Against(mode="plain", engine="Hugging Face", their_mode="plain")
    [row] = peers.against(asked, "int8", samples)
    assert row["ratio"]["value"] == 3.0 and row["ratio"]["n"] == 4 and row["their_type"] == "bfloat16"
    assert row["same_beginning"] == 0.75 and row["same_text"] == 0.5
    assert peers.against(asked, "float32", samples) == []
    with pytest.raises(ConfigurationError, match="has no mode 'plan'"):
        peers.Peers(peers={"draftwood": ["plan"]}).cells(pair("embedded"), 1, 64)


def test_a_pair_is_whole_or_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import pairs

    shape = pairs._shape(3, 256, 8, 4, 704)
    whole, out = pairs.grow_checkpoint, tmp_path / "tiny" / "draft"

    def cut_short(source: Path, out: Path, *arguments: Any) -> None:
        whole(source, out, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(pairs, "grow_checkpoint", cut_short)
    with pytest.raises(KeyboardInterrupt):
        make("draft", shape, out)
    assert list(out.parent.iterdir()) == []
    monkeypatch.setattr(pairs, "grow_checkpoint", whole)
    make("draft", shape, out)
    assert is_made("draft", shape, out) and (out / "tokenizer.json").is_file()
    assert not is_made("target", shape, out)  # it was grown from another model
    before = (out / "model.safetensors").stat().st_mtime_ns
    make("draft", shape, out)
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    make("draft", shape | {"intermediate": 768}, out)
    assert json.loads((out / "config.json").read_text("utf-8"))["intermediate_size"] == 768
    # retrained, what lies beside the embedded model is another: nothing that was grown before is used
    embedded = tmp_path / "embedded"
    shutil.copytree(pairs.EMBEDDED, embedded)
    monkeypatch.setattr(pairs, "EMBEDDED", embedded)
    assert is_made("draft", shape | {"intermediate": 768}, out)
    (embedded / "draft" / "exit").mkdir()
    (embedded / "draft" / "exit" / "exit.safetensors").write_bytes(b"retrained")
    assert not is_made("draft", shape | {"intermediate": 768}, out)
