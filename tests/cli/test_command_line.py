"""The frame of the command line: help without torch, version, lazy imports, exit codes of the process."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
from conftest import Command

import draftwood
from draftwood.cli import main
from draftwood.cli.main import made
from draftwood.sampling.params import SamplingParams


def modules_after(*arguments: str, before: str = "") -> tuple[set[str], set[str]]:
    """The modules that are imported before a command and at its end; it succeeds in a process of its own."""
    code = (
        f"import sys, draftwood\n{before}\n"
        "library = [*sys.modules]\n"
        "from draftwood.cli.main import run\n"
        "try: run(sys.argv[1:])\n"
        "except SystemExit as left:\n"
        "    print('', left.code, ' '.join(library), ' '.join(sys.modules), sep='\\n', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    *_, code, library, modules = done.stderr.splitlines()
    assert code == "0", done.stderr
    return set(library.split()), set(modules.split())


def test_help_imports_no_torch() -> None:
    assert not modules_after("--help")[1] & {"torch", "pydantic"}


def test_generating_imports_no_compiler_and_no_extra() -> None:
    """PyTorch's is a second of start-up; a random initialisation on the meta device imports it."""
    library, modules = modules_after(
        "generate", "The", "--max-new-tokens", "1", before="draftwood.load().generate('The', max_new_tokens=1)"
    )
    assert "torch" in library
    assert not modules & {"torch._dynamo", "torch._inductor", "sympy", "transformers", "huggingface_hub", "jinja2"}
    assert not modules & {"matplotlib", "optuna", "scipy", "pandas", "rich.console", "rich.table", "pytest"}
    assert not modules & {"fastapi", "datasets", "sentencepiece", "hypothesis", "gguf", "llama_cpp"}
    assert not modules & {"openvino", "openvino_genai", "openvino_tokenizers"}
    assert not library & {"typer", "rich"}


def test_no_arguments_show_the_help(command: Command) -> None:
    bare, asked = command(), command("--help")
    assert bare.code == asked.code == 0
    assert bare.out == asked.out and all(name.split()[0] in bare.out for name in main.COMMANDS)
    assert not bare.err


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_help_within_80_columns(command: Command, name: str) -> None:
    shown = command(*name.split(), "--help")
    assert shown.code == 0 and f"draftwood {name}" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_version(command: Command) -> None:
    assert command("--version").out == f"draftwood {draftwood.__version__}\n"


def test_the_module_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "draftwood", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"draftwood {draftwood.__version__}\n"


def test_options_are_those_of_the_library() -> None:
    """Each field of SamplingParams is an option of every command that samples, with the library's default."""
    usual = SamplingParams().model_dump()
    for name, changed in (("generate", {}), ("compare", {"temperature": 0.0})):
        options = {option.name: option for option in made(name).params}
        defaults = {field: options[field].default for field in usual if field != "logit_bias"}
        assert defaults.items() <= {**usual, **changed}.items()
    engine = inspect.signature(draftwood.Engine.generate).parameters
    options = {option.name: option for option in made("generate").params}
    for name in ("max_new_tokens", "seed"):
        assert options[name].default == engine[name].default
    assert not options["top_logprobs"].default and not options["ignore_eos"].default


def test_interrupt_keeps_what_was_generated(tmp_path: Path) -> None:
    long = tiny_models.write(tmp_path / "long", seed=1, context=100_000)
    arguments = ["generate", "x", "--target", str(long), "--max-new-tokens", "90000", "--ignore-eos"]
    process = subprocess.Popen(
        [sys.executable, "-m", "draftwood", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # it may be ignored where the tests run
    )
    assert process.stdout is not None and process.stderr is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert first and "finish cancelled" in errors.decode()
    assert "Traceback" not in errors.decode()
    count = int(errors.decode().split(" tokens in ")[0])
    assert 1 <= count < 90000
    assert len((first + rest).decode(errors="ignore")) <= count


def test_interrupt_while_loading(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object, *methods: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("draftwood.cli.groups.ModelOptions.load", interrupted)
    outcome = command("generate", "x")
    assert outcome.code == 130
    assert outcome.out == "" and outcome.err.strip() == "error: interrupted"


def test_a_reader_that_goes_away_is_no_bug(tmp_path: Path) -> None:
    long = tiny_models.write(tmp_path / "long", seed=1, context=20_000)
    arguments = ["generate", "x", "--target", str(long), "--max-new-tokens", "19000", "--ignore-eos"]
    process = subprocess.Popen(
        [sys.executable, "-m", "draftwood", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(300) == 1
    assert "Traceback" not in errors and "Exception" not in errors
