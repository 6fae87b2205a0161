"""Files beside llama.cpp: the same tokens for both, in turns; what cannot be measured is a row with the reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf_files
import pytest

import draftwood
from benchmarks.bench import Bench
from benchmarks.engines import file_cell
from benchmarks.execute import execute
from benchmarks.experiment import ExperimentRun, find, load
from benchmarks.kinds import files
from benchmarks.kinds.peers import Failed
from benchmarks.pages import files as page
from benchmarks.pages import tables
from benchmarks.pairs import Pair
from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ConfigurationError
from draftwood.models.checkpoints.gguf_weights import GgufWeights
from draftwood.models.text.tokenizer import Tokenizer
from recipes import random_models

MIXTURE = random_models.Mixture(1, 256, 4, 2, 64, 6, 2, 256, 300)
RUN = ExperimentRun(dtype="auto")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The embedded draft model as a file."""
    place = tmp_path_factory.mktemp("files")
    words = gguf_files.byte_level(Tokenizer.load(EMBEDDED / "draft"), "smollm", eos_token_id=0)
    file = gguf_files.write(EMBEDDED / "draft", place / "tiny.gguf", gguf_files.matrices("Q8_0"), words)
    return Pair("tiny", file, None, place / "made")


def measured(out: Path, models: Pair, **options: Any) -> dict[str, Any]:
    path = find("files")
    return execute(load(path), path, "tiny", RUN, out, smoke=True, models=models, **options)["tables"]


def test_ours_is_measured_in_its_process(models: Pair) -> None:
    text = list(range(40, 60))
    job = {"engine": "file_ours", "file": str(models.target), "threads": 1, "dtype": "float32", "quantize": None}
    logprobs = draftwood.load(models.target, dtype="float32").score(text).logprobs
    nats = file_cell.run({**job, "task": "nats", "texts": [text, text[:2]]})["nats"]
    assert nats == pytest.approx([-sum(filter(None, logprobs)), -(logprobs[1] or 0)])
    work = {"prompt": text, "context": 4, "tokens": 3, "rows": [1, 2], "forwards": 2}
    found = file_cell.run({**job, "task": "speed", **work})
    assert found.keys() == {"version", "load", "token", "prompt", "peak_bytes", "rows"} and found["rows"].keys() == {
        "1",
        "2",
    }
    far = {"prompt": text, "contexts": [3, 9], "forwards": 1}
    assert min(file_cell.run({**job, "task": "contexts", **far})["seconds"]) > 0
    assert found["load"] > 0 and found["prompt"] > 0 and min(found["rows"].values()) > 0


def test_a_token_is_timed_without_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(file_cell, "perf_counter", lambda: clock[0])

    class Slow:
        def decode(self, prompt: list[int], count: int) -> list[int]:
            clock[0] += 10 * len(prompt) + 3 * count
            return [0] * count

        def forward(self, context: list[int], tokens: list[int]) -> Any:
            assert len(context) == 5

            def call() -> None:
                clock[0] += 2 + len(tokens)

            return call

        def nats(self, text: list[int]) -> float:
            return 0.0

    work = {"prompt": [1] * 20, "context": 5, "tokens": 9, "rows": [1, 4], "forwards": 3}
    found = file_cell.speed(Slow(), work, base=0)
    assert (found["token"], found["prompt"], found["rows"]) == (3.0, 203.0, {"1": 3.0, "4": 6.0})


class Stand:
    """Processes in whose place numbers are given; llama.cpp's end after the first repeat where it is `short`."""

    def __init__(self, short: bool) -> None:
        self.calls: list[tuple[str, str]] = []
        self.short = short

    def __call__(self, *given: Any) -> Stand:
        return self

    def job(self, engine: str, task: str, **more: Any) -> dict[str, Any]:
        self.calls.append((engine, task))
        if self.short and self.calls.count((files.THEIRS, "speed")) > 1 and engine == files.THEIRS:
            raise Failed("it ended")
        scale = 2.0 if engine == files.THEIRS else 1.0
        if task == "nats":
            return {"nats": [scale * len(text) for text in more["texts"]]}
        if task == "contexts":
            assert max(more["contexts"]) < len(more["prompt"])
            return {"seconds": [scale * context for context in more["contexts"]]}
        return {
            "version": "1",
            "token": scale,
            "prompt": 1.0,
            "load": 1.0,
            "peak_bytes": 1e6,
            "rows": {"1": 1.0, "2": 1.5 * scale},
        }

    def first_token(self, engine: str, prompt: list[int], words: Tokenizer) -> float:
        return 1.0


@pytest.mark.parametrize("short", [False, True])
def test_engines_take_turns(short: bool, models: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(short)
    monkeypatch.setattr(files, "Processes", stand)
    bench = Bench(RUN, tmp_path, models=models, llama_python=Path("python"))
    result = files.Files(repeats=3, documents=2, contexts=(600, 9)).measure(bench)
    turns = [engine for engine, task in stand.calls if task == "speed"]
    ours, theirs = files.OURS, files.THEIRS
    assert turns == ([ours, theirs, theirs, ours, ours] if short else [ours, theirs, theirs, ours, ours, theirs])
    rows = {row["engine"]: row for row in result["files"]}
    assert rows[ours]["token_ms"]["n"] == 3 and rows[ours]["to_float32"]["value"] == 1
    assert rows[theirs]["token_ms"]["n"] == (1 if short else 3) and rows[theirs]["to_float32"]["value"] > 2
    assert rows[files.EXACT].keys() == {"file", "types", "megabytes", "engine", "perplexity", "to_float32"}
    assert {row["what"]: row["ratio"]["value"] for row in result["ratios"]}["token"] == 2
    assert [row["to_one"]["value"] for row in result["rows"]] == [1, 1.5, 1, 3]
    far = {(row["engine"], row["context"]): row["ms"]["value"] for row in result["contexts"]}
    assert far == {(ours, 600): 6e5, (ours, 9): 9e3, (theirs, 600): 1.2e6, (theirs, 9): 1.8e4}
    assert result["failures"] == ([{"engine": theirs, "failure": "it ended"}] if short else [])


def test_the_page_shows_both_engines(models: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert page.table() == ""
    monkeypatch.setattr(files, "Processes", Stand(False))
    path, name = find("files"), "smollm2-q4_1"
    experiment = load(path)
    given = (experiment, path, name, experiment.runs[name], tmp_path / "files")
    execute(*given, models=models, llama_python=Path("python"))
    (line,) = (line for line in page.table().splitlines() if line.startswith(f"| {name} |"))
    cells = [cell.strip() for cell in line.split("|")][2:-1]
    assert cells[1:3] == ["1000.0 / 2000.0", "1.00 / 1.00"] and cells[7] == "2.00x (2.00 to 2.00, n=5)"
    assert cells[8:] == ["- / -", "- / -"]  # of numbers of rows that were not measured
    execute(*given, models=models)
    (line,) = (line for line in page.table().splitlines() if line.startswith(f"| {name} |"))
    assert "| 1000.0 / - |" in line


def test_a_type_that_is_not_there_is_written_by_llama_cpp(models: Pair, tmp_path: Path) -> None:
    bench = Bench(RUN, tmp_path, models=models)
    with pytest.raises(ConfigurationError, match=r"variants/tiny.Q8_0.gguf is not there; give --llama-python PATH"):
        files.gguf(bench, "Q8_0")
    bench.llama_python = Path(sys.executable)
    with pytest.raises(ConfigurationError, match=r"invalid choice: 'Q9'"):
        files.gguf(bench, "Q9")
    assert files.gguf(bench, None) == models.target


@pytest.mark.slow
def test_without_llama_cpp_ours_is_measured_alone(models: Pair, tmp_path: Path) -> None:
    result = measured(tmp_path, models)
    rows = {row["engine"]: row for row in result["files"]}
    assert rows.keys() == {files.OURS, files.EXACT} and rows[files.OURS]["first_seconds"]["value"] > 0
    (failed,) = result["failures"]
    assert failed == {"engine": "llama.cpp", "failure": "give --llama-python PATH, a Python with llama-cpp-python"}


@pytest.mark.slow
def test_llama_cpp_reads_the_same_texts(models: Pair, tmp_path: Path) -> None:
    """Also in a type that it writes itself."""
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    result = measured(tmp_path, models, llama_python=Path(sys.executable))
    assert not result["failures"]
    rows = {row["engine"]: row for row in result["files"]}
    assert rows[files.THEIRS]["to_float32"]["value"] == pytest.approx(1, abs=0.02)
    assert {row["what"] for row in result["ratios"]} == {"token", "prompt", "load", "first", "peak_bytes"}
    bench = Bench(RUN, tmp_path, models=models, llama_python=Path(sys.executable))
    made = files.gguf(bench, "Q4_0")
    assert made.name == "tiny.Q4_0.gguf" and "Q4_0" in files.GgufWeights(made).types()


def test_bytes_of_a_mixture(tmp_path: Path) -> None:
    file = random_models.write(tmp_path / "x.gguf", "Q4_0", MIXTURE)
    read = [files.bytes_to_one(GgufWeights(file), rows)["bytes_to_one"] for rows in (1, 8, 10_000)]
    sizes = {name: entry.size for name, entry in GgufWeights(file).file.tensors.items() if name != "token_embd.weight"}
    routed = sum(size for name, size in sizes.items() if "_exps" in name)
    assert read[0] == 1 and read[2] == pytest.approx(sum(sizes.values()) / (sum(sizes.values()) - routed * 2 / 3))
    assert 1 < read[1] < read[2]


def test_files_that_are_dense_have_no_such_column(models: Pair) -> None:
    assert files.bytes_to_one(GgufWeights(models.target), 4) == {}
