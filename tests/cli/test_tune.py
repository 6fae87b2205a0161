"""`draftwood tune`: tiny searches end in a method file, a table and a map; bad input is one sentence."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from conftest import Command

from draftwood.engine.loading import EMBEDDED
from draftwood.methods import Method
from draftwood.models.text.text_files import texts_of
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.train.prompts import read_prompts
from draftwood.tune.heatmap import HeatCell, HeatMap, lines, picture
from draftwood.tune.measuring import TuningBench

QUICK = ("--max-new-tokens", 10, "--rows", 12, "--max-depth", 3)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("Once upon\n\nThe red lamp\n", "utf-8")
    return path


def test_trees_on_the_embedded_pair(command: Command, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "best.json"
    shown = command("tune", "--method", "mcsd", "--budget", 4, "--prompts", prompts, *QUICK, "--out", out)
    assert shown.code == 0 and shown.err == ""
    table, _, rest = shown.out.partition("4 runs")
    assert max(map(len, table.splitlines())) <= 80 and str(tmp_path) not in table
    best = Method.parse(f"file:{out}")
    assert best.as_dict()["name"] == "mcsd" and best.as_dict()["initial"] == 1
    document = json.loads((tmp_path / "best.runs.json").read_text("utf-8"))
    assert Method.parse(document["best"]) == best
    assert len(document["runs"]) == 4 and document["prompts"] == 2 and not document["interrupted"]
    assert sum(row["runs"] for row in document["ranked"]) == 4
    assert set(document["forward_seconds"]["target"]) == {"1", "2", "4", "8", "12"}
    assert all(0 < chance < 1 for row in document["acceptance"] for chance in row)
    tree = ",".join(map(str, best.as_dict()["tree"]))
    assert (f"best: mcsd tree={tree}" in rest or tree == "4,2,2,1") and "[" in table and "~" in table
    text = command("generate", "Once upon", "--method", f"file:{out}", "--max-new-tokens", 5)
    assert text.code == 0 and text.out


@pytest.mark.parametrize(
    ("name", "flags", "option"),
    [
        ("speculative", (), "gamma"),
        ("mcsd-fork", ("--set", "verify=longest"), "width"),
        ("dsbd", ("--tolerance", 0.5, "--beams", 2), "threshold"),
        ("speculative-beam-search", ("--set", "width=2", "--temperature", 0), "draft_width"),
        ("lookup", (), "min_ngram"),
    ],
)
def test_other_methods(
    command: Command, pair: list[str], prompts: Path, tmp_path: Path, name: str, flags: tuple[Any, ...], option: str
) -> None:
    out = tmp_path / "best.json"
    shown = command(
        *("tune", "--method", name, "--budget", 3, "--prompts", prompts, "--max-new-tokens", 6, "--out", out),
        *pair,
        *flags,
        "--json",
    )
    assert shown.code == 0, shown.err
    document = shown.document
    assert len(document["runs"]) == 3 and option in document["best"]
    assert Method.parse(f"file:{out}") == Method.parse(document["best"])
    if name == "dsbd":
        assert document["plain"]["name"] == "beam-sampling" and document["plain"]["width"] == 2
    if name == "mcsd-fork":
        assert document["best"]["verify"] == "longest" and not document["ranked"][0]["lossless"]


def test_a_grid_with_lossy_trees(command: Command, pair: list[str], prompts: Path, tmp_path: Path) -> None:
    flags = ("--rows", 8, "--max-depth", 2, "--widths", "1,2", "--initial", "1,2", "--search", "grid")
    common = ("tune", "--method", "mcsd", "--prompts", prompts, *pair, "--max-new-tokens", 4, *flags)
    shown = command(*common, "--budget", 11, "--out", tmp_path / "best.json", "--color")
    assert shown.code == 0, shown.err
    assert "2 tokens of the target are lossy" in shown.err
    for words in ("lossy", "nats/token", "initial 2", "\x1b["):
        assert words in shown.out
    runs = json.loads((tmp_path / "best.runs.json").read_text("utf-8"))["runs"]
    trees = {(tuple(run["method"]["tree"]), run["method"]["initial"]) for run in runs}
    assert len(runs) == 11
    assert trees == {
        *(((1,), 1), ((2,), 1), ((1, 1), 1), ((1, 2), 1), ((2, 1), 1), ((2, 2), 1)),
        *(((1,), 2), ((2,), 2), ((1, 1), 2), ((1, 2), 2)),
    }
    refused = command(*common, "--budget", 5)
    assert refused.code == 2 and "the grid has 10 places" in refused.err


def test_an_interrupt_keeps_what_was_measured(
    command: Command, pair: list[str], prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TuningBench.run

    def stopped(self: TuningBench, method: Method, predicted: float | None = None, repeat: int | None = None) -> Any:
        if len(self.trials) == after:
            raise KeyboardInterrupt
        return run(self, method, predicted, repeat)

    monkeypatch.setattr(TuningBench, "run", stopped)
    common = ("tune", "--method", "mcsd", "--budget", 9, "--prompts", prompts, *QUICK, *pair)
    after = 2
    shown = command(*common, "--out", tmp_path / "best.json")
    assert shown.code == 130 and "2 runs" in shown.out
    assert Method.parse(f"file:{tmp_path / 'best.json'}").name == "mcsd"
    assert json.loads((tmp_path / "best.runs.json").read_text("utf-8"))["interrupted"]
    after = 0
    nothing = command(*common, "--out", tmp_path / "none.json")
    assert nothing.code == 130 and "interrupted" in nothing.err and not (tmp_path / "none.json").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--budget", 1), "--budget is 1, but must be at least 2"),
        (("--rows", 1), "raise it to 2 or more"),
        (("--rows", 4, "--initial", "1,4"), "raise it to 8 or more"),
        (("--method", "mcsdd"), "did you mean 'mcsd'"),
        (("--method", "autoregressive"), "has no options to tune"),
        (("--initial", "0"), "--initial is 0, but must be whole numbers"),
        (("--initial", "2", "--set", "verify=coupled"), "rounds cannot begin with several"),
        (("--widths", "a"), "--widths is a, but must be whole numbers"),
        (("--max-depth", 0), "--max-depth is 0, but must be at least 1"),
        (("--search", "all"), "--search is all, but must be 'guided' or 'grid'"),
        (("--set", "tree=2,1"), "tree is what is tuned"),
        (("--set", "treee=2,1"), "no option 'treee'"),
        (("--method", "dsbd", "--tolerance", -1), "--tolerance is -1.0, but must be at least 0"),
        (("--method", "speculative", "--set", "gamma=3"), "leave one of them open"),
        (("--out", "best.yaml"), "methods are read from .json files"),
        (("--max-new-tokens", 1), "--max-new-tokens is 1, but must be at least 2"),
        (("--documents", 0), "--documents is 0, but must be at least 1"),
        (("--prompts", "missing.txt"), "missing.txt cannot be read: No such file"),
        (("--temperature", -1), "temperature"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_sentence(command: Command, flags: tuple[Any, ...], words: str) -> None:
    refused = command("tune", *flags)
    assert refused.code == 2 and refused.out == ""
    assert words in refused.err and refused.err.startswith("error: ") and refused.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.txt", "\n \n", "is empty"),
        ("p.jsonl", '"a"\n{"text": "b"}\n', "line 2, holds neither"),
        ("p.jsonl", "a\n", "line 1, is not JSON"),
    ],
)
def test_bad_prompt_files(command: Command, tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    refused = command("tune", "--prompts", tmp_path / name)
    assert refused.code == 2 and words in refused.err


def test_prompts_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('"a"\n{"prompt": "b\\nc", "more": 1}\n', "utf-8")
    assert read_prompts(tmp_path / "p.jsonl") == ["a", "b\nc"]


def test_a_line_of_json_may_hold_what_ends_lines_elsewhere(tmp_path: Path) -> None:
    """Python's `splitlines` ends lines at U+2028 and U+0085; JSON has them in strings as they are."""
    file = tmp_path / "p.jsonl"
    file.write_bytes(
        '{"prompt": "a\u2028b", "text": "a\u2028b"}\r\n{"prompt": "c\u0085", "text": "c\u0085"}\n'.encode()
    )
    words = Tokenizer.load(EMBEDDED / "target")
    assert read_prompts(file) == [words.decode(tokens) for tokens in texts_of(file, words)] == ["a\u2028b", "c\u0085"]


def test_help(command: Command) -> None:
    shown = command("tune", "method", "--help")
    assert shown.code == 0 and max(map(len, shown.out.splitlines())) <= 80
    assert "perplexity" in shown.out and "lossy" in shown.out


def test_heat_map() -> None:
    cells = {(row, column): HeatCell(row + column / 10, column != 2) for row in (1, 2, 10) for column in range(1, 15)}
    del cells[10, 14]
    found = HeatMap("speed", "k", "layers", cells, (2, 3))
    plain = lines(found, 80)
    assert max(map(len, plain)) <= 80 and plain[0] == "speed"
    assert "\x1b" not in "".join(plain) and sum("[2.30]" in line for line in plain) == 1
    assert sum(line.count("~") for line in plain) == 3  # column 2
    assert [line.split()[0] for line in plain if line[:2].strip().isdigit()] == ["1", "2", "10"] * 2  # two blocks
    assert plain[3].strip().startswith("1  1.10") and "11.30█" in "".join(plain).replace(" █", "█")
    coloured = lines(found, 80, colour=True)
    assert "\x1b[" in coloured[3] and len(coloured) == len(plain)
    flat = HeatMap("one", "gamma", "", {(3, ""): HeatCell(1.5)}, (3, ""))
    assert lines(flat) == ["one", "gamma", "    3 [1.50]"]


@pytest.mark.slow
def test_the_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "tuning.py"))
    printed = capsys.readouterr().out
    assert re.search(r"^target 1 rows [\d.]+ ms, .*24 rows", printed, re.MULTILINE)
    assert re.search(r"^6 runs of \d of 397 trees:$", printed, re.MULTILINE)
    ranked = re.findall(
        r"^  ([\d,]+) +speed-up ([\d.]+), predicted [\d.]+, tau ([\d.]+), (\d) run", printed, re.MULTILINE
    )
    assert sum(int(runs) for *_, runs in ranked) == 6
    assert "3,2,1,1" in [tree for tree, *_ in ranked] and all(float(tau) > 1.5 for _, _, tau, _ in ranked)
    best = [int(width) for width in ranked[0][0].split(",")]
    assert f"'tree': {best}" in printed


def test_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    found = HeatMap("speed", "k", "layers", {(1, 1): HeatCell(1.0), (2, 2): HeatCell(2.0, False)}, (1, 1))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not picture([found], tmp_path / "map.png") and not (tmp_path / "map.png").exists()
    monkeypatch.undo()
    if picture([found, found], tmp_path / "map.png"):  # matplotlib belongs to the extra bench
        assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
