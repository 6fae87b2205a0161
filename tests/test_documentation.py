"""The examples of README and documentation run as printed, and nothing that exists is missing from them."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from draftwood import METHODS, SamplingParams
from draftwood.cli.main import COMMANDS, DEFAULTS, GROUPS, made
from draftwood.depth import CONTROLLERS
from draftwood.eval.tasks import TASKS
from draftwood.methods import Method
from draftwood.util import config

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The examples of a language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def executed(*arguments: str) -> str:
    """The output of a process of its own."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_is_short_and_its_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 160
    (example,) = (block for block in blocks(README, "python") if "draftwood.load()" in block)
    assert len(example.splitlines()) <= 12
    exec(example, {})
    printed = capsys.readouterr().out
    assert "26 + 9 = 35, then 35 - 7 = 28\nAnswer: 28\nthe same text: True" in printed
    assert len(printed.splitlines()[-1]) > 100  # the story


@pytest.mark.real
def test_readmes_first_example_runs_as_printed(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = blocks(README, "python")[0]
    assert f'load("{smollm2.name}")' in example
    monkeypatch.chdir(smollm2.parent)
    exec(example, {})
    answer, streamed = capsys.readouterr().out.split("\n", 1)
    assert "Danube" in answer and len(streamed) > 20


def test_readme_says_how_many_generations_are_drawn() -> None:
    from test_end_to_end import CELLS, COUNT, EVERYDAY, FEW

    text = " ".join(README.read_text("utf-8").split())
    assert f"draws {FEW:,} generations in each of {len(EVERYDAY)} settings" in text and set(CELLS) > EVERYDAY
    assert f"the slow tests (`scripts/test -m slow`) draw {COUNT:,} in each of {len(CELLS)}." in text


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_python_of_the_pages_runs_as_printed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that extend the package in a process of their own."""
    monkeypatch.chdir(ROOT)
    whole = [block for block in blocks(page, "python") if re.match("import|from", block)]
    if page.stem == "extending":
        executed("-c", "\n".join(whole))
    else:
        exec("\n".join(whole), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_pages_are_understood(page: Path) -> None:
    """Flags, methods and options exist; nothing is run."""
    for block in blocks(page, "sh"):
        line = ""
        for part in block.splitlines():
            line += part + "\n"
            try:
                words = shlex.split(line, comments=True)
            except ValueError:  # a quotation that goes on
                continue
            if words[:1] == ["draftwood"]:
                understand(words[1:])
            line = ""


def understand(arguments: list[str]) -> None:
    name, *rest = arguments
    if name in GROUPS:
        name = f"{name} {DEFAULTS[name] if rest[0].startswith('-') else rest.pop(0)}"
    values = made(name).make_context(name, rest).params
    if isinstance(values.get("method"), str) and not values["method"].startswith("file:"):
        Method.parse(values["method"], config.assignments(values.get("set") or values.get("options") or ()))


def test_the_file_of_defaults_is_understood(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (shown,) = blocks(ROOT / "docs" / "command-line.md", "toml")
    for text, code in ((shown, 0), (shown.replace("seed", "sed"), 2)):
        (tmp_path / "draftwood.toml").write_text(text, "utf-8")
        assert command("methods").code == code


def test_every_method_and_command_is_on_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    generated = importlib.import_module("generated")
    methods, commands = (
        generated.fill((ROOT / "docs" / page).read_text()) for page in ("methods.md", "command-line.md")
    )
    assert all(f"### `{name}`\n" in methods for name in METHODS)
    assert "| `gamma` | integer 1..64 | `4` | most drafted tokens per chain, D |" in methods
    assert all(f"## `draftwood {name}`\n" in commands for name in COMMANDS)
    assert "* `--max-new-tokens N`: " in commands


def test_the_table_of_drafters_names_tests_that_are_there() -> None:
    """Each cell has the number of a test, or of a reason; each test of the list is in a cell."""
    page = (ROOT / "docs" / "drafters.md").read_text("utf-8")
    listed = re.findall(r"^(\d+)\. `(tests/\S+\.py)::(\w+)`$", page, re.M)
    for _, path, name in listed:
        assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8"), (path, name)
    rows = [line.strip("| ").split(" | ")[2:] for line in page.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 13 and all(len(row) == 6 for row in rows)
    cells = [one for row in rows for cell in row for one in cell.split(", ")]
    numbers = {cell for cell in cells if not re.fullmatch(r"– \([ab]\)", cell)}
    assert numbers == {number for number, *_ in listed} == {str(n) for n in range(1, 1 + len(listed))}


@pytest.mark.slow
def test_extensions_work_as_printed() -> None:
    printed = executed("examples/extending.py")
    assert printed.count("'right job': 1.0") == 3
    assert printed.count("lossless True, the text of plain decoding: True") == 6
    assert printed.endswith("certified, verify=rejection: PASS\ncertified, verify=among-best: LOSSY\n")


@pytest.mark.slow
def test_training_runs_as_printed(tmp_path: Path) -> None:
    assert "tokens per target forward" in executed("examples/train_exit_layer.py", str(tmp_path))


def test_types_are_shipped() -> None:
    assert files("draftwood").joinpath("py.typed").is_file()


def test_every_option_says_what_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    generated = importlib.import_module("generated")
    for kind in (*METHODS.values(), *CONTROLLERS.values(), *TASKS.values(), SamplingParams):
        assert "|  |" not in generated.options(kind), kind
