"""draftwood.toml, environment variables, threads and logs: where values come from, and what is said of bad ones."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import Command


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """(the project's file, the user's file), neither of them there."""
    (tmp_path / "here").mkdir()
    (tmp_path / "user" / "draftwood").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    return Path("draftwood.toml"), tmp_path / "user" / "draftwood" / "config.toml"


def test_flag_before_environment_before_project_before_user(
    command: Command, pair: list[str], places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    project, user = places
    generate = ("generate", "Once", "--max-new-tokens", 2, "--json", *pair)

    def seeds() -> tuple[int, int]:
        document = command(*generate).document
        return document["seed"], document["sampling"]["top_k"]

    assert seeds() == (0, 0)
    user.write_text("seed = 1\ntop_k = 9\n")
    assert seeds() == (1, 9)
    project.write_text("seed = 3\n[generate]\nseed = 2\n[compare]\nseed = 8\n")
    assert seeds() == (2, 9)
    monkeypatch.setenv("DRAFTWOOD_SEED", "4")
    assert seeds() == (4, 9)
    assert command(*generate, "--seed", 5).document["seed"] == 5


def test_commands_of_groups_and_repeated_options(
    command: Command, target: Path, places: tuple[Path, Path], tmp_path: Path
) -> None:
    places[0].write_text(
        f'target = "{target}"\n[tune]\nmethod = "lookup"\nset = ["gamma=3", "verify=coupled"]\nbudget = 2\n'
        "[train.eesd]\nsteps = 0\n"
    )
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a b a b\n")
    tuned = command("tune", "--prompts", prompts, "--max-new-tokens", 4, "--out", tmp_path / "t.json", "--json")
    assert tuned.code == 0, tuned.err
    assert tuned.document["best"]["gamma"] == 3 and tuned.document["best"]["verify"] == "coupled"
    assert "--steps is 0, but must be at least 1 (from draftwood.toml)" in command("train", "eesd", "--out", "x").err


BAD = [
    ("seeed = 1\n", "draftwood.toml has the key 'seeed', but there is no option --seeed (did you mean 'seed'?)"),
    ("[generate]\nrepeat = 1\n", "there is no option --repeat of generate"),
    ("[genrate]\nseed = 1\n", "has a table for 'genrate', but there is no such command (did you mean 'generate'?)"),
    ("[train.eeesd]\nseed = 1\n", "has a table for 'train eeesd', but there is no such command"),
    ("run_code = true\n", "has the key 'run_code', but there is no key of this name"),
    ("seed = \n", "draftwood.toml is not TOML"),
    ('seed = "many"\n', "(from draftwood.toml)"),
    ("temperature = -1\n", "--temperature is -1.0, but must be at least 0 (from draftwood.toml)"),
]


@pytest.mark.parametrize(("text", "sentence"), BAD, ids=[text.split("\n")[0] for text, _ in BAD])
def test_bad_files_are_one_sentence(
    command: Command, pair: list[str], places: tuple[Path, Path], text: str, sentence: str
) -> None:
    places[0].write_text(text)
    shown = command("generate", "x", *pair)
    assert shown.code == 2 and not shown.out
    assert shown.err.startswith("error: ") and shown.err.count("\n") == 1 and sentence in shown.err
    assert command("generate", "--help").code == command("--version").code == 0


def test_bad_environment(command: Command, pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWOOD_TOP_P", "2")
    shown = command("generate", "x", *pair)
    assert shown.code == 2 and "--top-p is 2.0, but must be at most 1 (from DRAFTWOOD_TOP_P)" in shown.err


def test_env_names_the_files(command: Command, places: tuple[Path, Path]) -> None:
    assert command("env", "--json").document["settings"] == []
    for path in places:
        path.write_text("")
    assert command("env", "--json").document["settings"] == [str(places[1]), "draftwood.toml"]
    shown = command("env").out
    assert "draftwood.toml" in shown
    labels = [line.split("  ")[0] for line in shown.splitlines() if not line.startswith(" ")]  # long values go on below
    assert len(labels) == len(set(labels)) and "processor" in labels and "device cpu" in labels


@pytest.fixture
def restored() -> Iterator[None]:
    threads, level = torch.get_num_threads(), logging.getLogger("draftwood").level
    yield
    torch.set_num_threads(threads)
    logging.getLogger("draftwood").setLevel(level)


def test_threads(command: Command, pair: list[str], restored: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    assert command("generate", "x", *pair, "--max-new-tokens", 1, "--threads", 2).code == 0
    assert seen == [2]
    assert "--threads is 0, but must be at least 1" in command("generate", "x", *pair, "--threads", 0).err


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    process = [sys.executable, "-m", "draftwood", *arguments]
    return subprocess.run(process, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.mark.slow
def test_logs_go_to_standard_error(command: Command, pair: list[str]) -> None:
    generate = ("generate", "x", *pair, "--max-new-tokens", "1")
    told = run(*generate, "-v")
    assert told.returncode == 0 and "INFO draftwood.engine.loading: " in told.stderr and pair[1] in told.stderr
    assert "INFO" not in told.stdout and "INFO" not in command(*generate).err


def test_completion() -> None:
    shown = run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert shown.returncode == 0 and "_DRAFTWOOD_COMPLETE=complete_bash" in shown.stdout

    def completed(line: str) -> list[str]:
        words = str(len(line.split(" ")) - 1)
        return run(_DRAFTWOOD_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=words).stdout.split()

    assert completed("draftwood gen") == ["generate"]
    assert completed("draftwood train me") == ["medusa"]
    assert completed("draftwood generate --temp") == ["--temperature"]
    assert completed("draftwood generate --dtype bf") == ["bfloat16"]
