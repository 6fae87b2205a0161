"""benchmarks/peers.py and pairs.py: conversions keep the model, a failure is a row, half-made pairs are made again."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.loading import EMBEDDED

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Any:
    """The benchmark's modules, which are no package of the library."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import pairs
        import peer_report
        import peers
        from peer_runners import Cell, cell, gguf_file, weights

        yield SimpleNamespace(
            pairs=pairs, report=peer_report, peers=peers, Cell=Cell, cell=cell, gguf=gguf_file, weights=weights
        )
    finally:
        sys.path.remove(str(BENCHMARKS))


def turned(x: np.ndarray, position: int, neighbours: bool) -> np.ndarray:
    """Rotary position of [heads, d], over halves as Hugging Face or over neighbours as GGUF's llama."""
    d = x.shape[-1]
    angles = position * 10000.0 ** (-np.arange(0, d, 2) / d)
    first, second = (x[:, 0::2], x[:, 1::2]) if neighbours else (x[:, : d // 2], x[:, d // 2 :])
    cos, sin = np.cos(angles), np.sin(angles)
    out = np.empty_like(x)
    places = (slice(0, None, 2), slice(1, None, 2)) if neighbours else (slice(0, d // 2), slice(d // 2, None))
    out[:, places[0]], out[:, places[1]] = first * cos - second * sin, first * sin + second * cos
    return out


def test_rotary_rows_give_the_same_scores_under_the_other_layout(bench: Any) -> None:
    rng = np.random.default_rng(0)
    heads, d, width = 3, 8, 12
    query, key = rng.normal(size=(2, heads * d, width))
    x, y = rng.normal(size=(2, width))

    def scores(q: np.ndarray, k: np.ndarray, neighbours: bool) -> np.ndarray:
        at_5 = turned((q @ x).reshape(heads, d), 5, neighbours)
        at_2 = turned((k @ y).reshape(heads, d), 2, neighbours)
        return np.einsum("hd,hd->h", at_5, at_2)

    expected = scores(query, key, False)
    moved = [bench.gguf.rotary_rows(matrix, heads) for matrix in (query, key)]
    np.testing.assert_allclose(scores(*moved, True), expected, atol=1e-12)
    assert np.abs(scores(query, key, True) - expected).max() > 0.1  # the rows do have to move


def test_a_converted_model_has_every_weight_once(bench: Any) -> None:
    directory = Path(EMBEDDED / "draft")
    weights = bench.weights.Weights(directory)
    tensors = dict(bench.gguf._tensors(weights))
    head = weights.shape.vocabulary * weights.shape.width
    assert sum(array.size for array in tensors.values()) == bench.pairs.parameters(directory) + head
    np.testing.assert_array_equal(tensors["output.weight"], tensors["token_embd.weight"])  # tied in the checkpoint
    assert all(array.dtype == np.float32 for array in tensors.values())
    assert bench.report.read_weights(directory) == bench.pairs.parameters(directory)


def test_tokens_pass_through_text(bench: Any) -> None:
    tokens = [0, 2047, 7, 7]
    assert bench.gguf.as_tokens("said: " + bench.gguf.as_text(tokens) + "\nÿ", 2048) == tokens


def test_time_per_token_leaves_the_prompt_out(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(bench.cell, "perf_counter", lambda: clock[0])
    output = sys.modules["peer_runners"].Output

    def generate(prompt: list[int], count: int) -> Any:
        clock[0] += 10 * len(prompt) + 3 * count
        return output(list(range(count)))

    found = bench.cell.measure(generate, [[1] * 5, [2] * 50], 9, warm_up=1)
    assert found["seconds_per_token"] == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="2 of 9 tokens"):
        bench.cell.measure(lambda prompt, count: output([1, 2]), [[1]], 9, warm_up=0)


def test_whatever_becomes_of_a_process_is_a_reason(bench: Any, tmp_path: Path) -> None:
    killed, slow = tmp_path / "killed", tmp_path / "slow"
    killed.write_text("#!/bin/sh\necho out of luck >&2\nkill -9 $$\n")
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    for script in (killed, slow):
        script.chmod(0o755)
    cell = bench.Cell("draftwood", "plain", "float99", str(EMBEDDED / "target"), str(EMBEDDED / "draft"), str(tmp_path))
    job = {"task": "measure", "cell": cell.as_dict(), "prompts": [[1]], "tokens": 4, "warm_up": 1}
    assert bench.peers.run_job(job, str(killed), 1, 60)["error"] == "the process ended with signal 9: out of luck"
    assert bench.peers.run_job(job, str(slow), 1, 0.2)["error"] == "it was not done after 0 s"
    assert "does not start" in bench.peers.run_job(job, str(tmp_path / "none"), 1, 60)["error"]
    assert "float99" in bench.peers.run_job(job, sys.executable, 1, 120)["error"]


def test_one_command_gives_rows_for_what_runs_and_what_does_not(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAFTWOOD_PAIRS", str(tmp_path / "pairs"))
    command = "peers.py --quick --tokens 4 --pairs embedded --dtypes float32 --modes plain speculation --threads 1"
    options = ["--peers", "draftwood", "llama.cpp", "--python", f"llama.cpp={tmp_path}/none", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command.split(), *options])
    threads = torch.get_num_threads()
    bench.peers.main()
    torch.set_num_threads(threads)
    shown = capsys.readouterr().out
    document = json.loads((tmp_path / "peers-embedded.json").read_text("utf-8"))
    rows = {(row["peer"], row["mode"]): row for row in document["rows"]}
    assert rows["draftwood", "speculation"]["agreement"] == {"prefix": 1.0, "whole": 1.0}
    assert rows["draftwood", "plain"]["ms_per_token"]["median"] > 0
    assert rows["draftwood", "plain"]["peak_rss"] > rows["draftwood", "plain"]["weight_bytes"] > 2e7
    assert "does not start" in rows["llama.cpp", "plain"]["failure"] and "does not start" in shown
    assert document["pair"]["target"]["vocabulary"] == 2048
    kept = json.loads((tmp_path / "peers-embedded.partial.json").read_text("utf-8"))
    assert set(kept["samples"]["0"]) == {
        "bandwidth",
        "draftwood / plain / float32",
        "draftwood / speculation / float32",
    }


def test_ratios_are_of_the_same_repeat_and_prompt(bench: Any) -> None:
    models = bench.pairs.pair("embedded")
    cells = [
        bench.Cell(peer, "plain", dtype, str(models.target), str(models.draft), "")
        for peer, dtype in (("draftwood", "int8"), ("Hugging Face", "bfloat16"))
    ]

    def sample(seconds: list[float], tokens: list[int]) -> dict[str, Any]:
        memory = {"peak_rss": 9, "rss_before": 5, "load_seconds": 1.0, "first_call_seconds": 1.0}
        return memory | {"seconds_per_token": seconds, "tokens": [tokens] * len(seconds)}

    state = {
        "settings": {},
        "failures": {},
        "samples": {
            "0": {cells[0].key: sample([1.0, 2.0], [1, 2, 3, 4]), cells[1].key: sample([3.0, 6.0], [1, 2, 9, 4])},
            "1": {cells[0].key: sample([10.0, 10.0], [1, 2, 3, 4]), cells[1].key: sample([30.0, 30.0], [1, 2, 3, 4])},
            "2": {cells[0].key: sample([5.0, 5.0], [1, 2, 3, 4])},
        },
    }
    found = bench.report.summarise(models, cells, state)
    ours, theirs = found["rows"]
    assert (ours["ratio_to_hugging_face"]["median"], ours["ratio_to_hugging_face"]["n"]) == (3.0, 4)
    assert ours["ratio_base_dtype"] == "bfloat16" and theirs["agreement"] is None
    assert found["bandwidth"] is None and ours["share_of_copy_bandwidth"] is None
    state["samples"]["0"]["draftwood / plain / bfloat16"] = sample([1.0, 1.0], [1, 2, 3, 4])
    assert bench.report.agreement(state, cells[1].key, "draftwood / plain / bfloat16") == {"prefix": 0.5, "whole": 0.0}


def test_a_pair_is_whole_or_made_again(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = bench.pairs
    shape = pairs._shape(3, 256, 8, 4, 704)
    monkeypatch.setenv("DRAFTWOOD_PAIRS", str(tmp_path))
    monkeypatch.setitem(pairs.RECIPES, "tiny", {"draft": shape, "target": shape})
    whole = pairs.grow

    def cut_short(source: str, out: Path, **options: Any) -> None:
        whole(source, out, **options)
        (out / "tokenizer.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(pairs, "grow", cut_short)
    monkeypatch.setitem(pairs.RECIPES, "tiny", {"draft": shape})
    with pytest.raises(KeyboardInterrupt):
        pairs.pair("tiny")
    assert list((tmp_path / "tiny").iterdir()) == []
    left = tmp_path / "tiny" / "draft.part-99999999"  # no process has this number
    left.mkdir()
    monkeypatch.setattr(pairs, "grow", whole)
    made = pairs.pair("tiny").draft
    assert pairs.is_made(made, shape) and (made / "tokenizer.json").is_file() and not left.exists()
    before = (made / "model.safetensors").stat().st_mtime_ns
    pairs.pair("tiny")
    assert (made / "model.safetensors").stat().st_mtime_ns == before
    monkeypatch.setitem(pairs.RECIPES, "tiny", {"draft": shape | {"intermediate": 768}})
    config = json.loads((pairs.pair("tiny").draft / "config.json").read_text("utf-8"))
    assert config["intermediate_size"] == 768
