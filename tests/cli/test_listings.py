"""`draftwood methods` and `draftwood env` say what is there."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from conftest import Command
from family_models import write

import draftwood
from draftwood.engine.loading import EMBEDDED
from draftwood.methods import METHODS, Method


def test_every_method_is_listed(command: Command) -> None:
    shown = command("methods")
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= 80
    assert all(name in shown.out for name in METHODS)


def test_methods_as_json(command: Command) -> None:
    found = {entry["name"]: entry for entry in command("methods", "--json").document}
    assert list(found) == list(METHODS)
    for name, entry in found.items():
        assert entry["lossless"] is Method.parse(name).lossless
        assert entry["draft_models"] == list(METHODS[name].draft_models)
        assert {option["name"] for option in entry["options"]} == set(METHODS[name].model_fields)


@pytest.mark.parametrize("name", METHODS)
def test_defaults_that_are_shown_are_the_defaults(command: Command, name: str) -> None:
    entry = command("methods", name, "--json").document
    assert {option["name"]: option["default"] for option in entry["options"]} == {
        key: value for key, value in Method.parse(name).as_dict().items() if key != "name"
    }
    shown = command("methods", name).out
    assert max(map(len, shown.splitlines())) <= 80
    assert all(option["name"] in shown for option in entry["options"])


def test_one_method_is_shown_in_paragraphs_with_an_example_that_runs(command: Command) -> None:
    shown = command("methods", "eagle").out
    assert " ".join((METHODS["eagle"].__doc__ or "").split("\n\n")[1].split()) in " ".join(shown.split())
    assert all(
        len(line) > 60 for line in shown.partition("With `width`")[2].partition("(`--draft`)")[0].splitlines()[:-1]
    )
    assert shown.endswith("--method eagle --set gamma=12\n")  # not head=null, the first option


def test_types_of_options(command: Command) -> None:
    entry = command("methods", "mcsd", "--json").document
    types = {option["name"]: option["type"] for option in entry["options"]}
    wanted = {
        "tree": "integer ≥ 1, ...",
        "initial": "integer 1..256",
        "replacement": "true or false",
        "depth": "text",
        "verify": "traversal or rejection or kseq or coupled or longest or longest-root",
        "drafter": "model or exit or eagle or mtp or dflash or medusa or skip or lookup",
    }
    assert wanted.items() <= types.items()


def test_own_options_come_first(command: Command) -> None:
    names = [option["name"] for option in command("methods", "dsbd", "--json").document["options"]]
    assert names[:2] == ["draft_width", "gamma"] and names[-2:] == ["n_best", "length_penalty"]
    assert "--method dsbd --set draft_width=6" in command("methods", "dsbd").out
    names = [option["name"] for option in command("methods", "speculative-beam-search", "--json").document["options"]]
    assert names[:3] == ["draft_width", "gamma", "depth"]
    assert names[-4:] == ["width", "early_stopping", "n_best", "length_penalty"]


def test_unknown_method(command: Command) -> None:
    shown = command("methods", "mscd")
    assert shown.code == 2
    assert shown.err == "error: there is no method 'mscd' (did you mean 'mcsd'?)\n"


def test_env(command: Command) -> None:
    facts = command("env", "--json").document
    assert facts["draftwood"] == draftwood.__version__
    assert facts["python"] == platform.python_version()
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    assert facts["packages"]["rich"] == version("rich") and "device cpu" in facts["devices"]
    shown = command("env")
    assert shown.code == 0
    assert all(word in shown.out for word in (torch.__version__, facts["backend"][:6], "cores"))


def test_env_shows_what_lies_next_to_a_target(command: Command) -> None:
    beside = command("env", "--target", EMBEDDED / "target", "--json").document["drafts"]
    assert beside["exit layer"] == str(EMBEDDED / "target" / "exit" / "exit.safetensors")
    assert beside["draft model"] == "none; `draftwood train draft` makes one"


def test_env_names_no_command_that_refuses_the_target(command: Command, tmp_path: Path) -> None:
    write(tmp_path, "gemma3n")
    beside = command("env", "--target", tmp_path, "--json").document["drafts"]
    assert beside["heads"] == "none; `draftwood train medusa` makes one"
    kinds = ("draft model", "exit layer", "EAGLE head", "DFlash head", "skip set")
    assert {beside[kind] for kind in kinds} == {"none"}
