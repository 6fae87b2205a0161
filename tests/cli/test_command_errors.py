"""Each foreseen mistake is one sentence on stderr that names the fix, and exit code 2."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import Command, Outcome
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from draftwood.cli.groups import ColorOptions
from draftwood.cli.running import hidden


def refused(outcome: Outcome) -> str:
    """The sentence, after checking its form."""
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
    return outcome.err.removeprefix("error: ").rstrip("\n")


FLAGS = [  # (flags, what the sentence must say)
    (["--set", "gama=4"], "method speculative has no option 'gama' (did you mean 'gamma'?)"),
    (["--set", "gamma"], "--set takes key=value, not 'gamma'"),
    (["--set", "=4"], "--set takes key=value, not '=4'"),
    (["--set", "gamma=-1"], "option 'gamma' is -1, but must be at least 0"),
    (["--set", "gamma=many"], "option 'gamma' is 'many', but must be a valid integer"),
    (["--method", "mcsd", "--set", "tree=4,0"], "is 0, but must be at least 1"),
    (["--method", "mcsd", "--set", "tree=16,16,16"], "but at most 1024 are verified at once; make it narrower"),
    (["--method", "mcsd", "--set", "tree="], "give whole numbers with commas between"),
    (
        ["--method", "mcsd", "--set", "initial=2", "--set", "verify=coupled"],
        "use initial 1, or verify=longest-root or longest",
    ),
    (["--method", "mcsd-fork", "--set", "width=200", "--set", "gamma=9"], "lower width or gamma"),
    (["--method", "mcsd", "--set", "tree=wide"], "give whole numbers with commas between"),
    (["--method", "dsbd", "--set", "draft_width=2", "--set", "width=3"], "must not be below width, 3"),
    (["--method", "dsbd", "--set", "draft_width=2", "--set", "min_width=3"], "must not be below min_width, 3"),
    (["--method", "dsbd", "--set", "threshold=1.5"], "option 'threshold' is 1.5, but must be at most"),
    (["--method", "dsbd", "--set", "threshold=-0.1"], "option 'threshold' is -0.1, but must be at least"),
    (["--method", "dsbd", "--set", "threshold=nan"], "option 'threshold' is 'nan'"),
    (["--method", "dsbd", "--set", "width=0"], "option 'width' is 0, but must be at least 1"),
    (["--method", "dsbd", "--set", "min_width=0"], "option 'min_width' is 0"),
    (["--method", "dsbd", "--set", "n_best=7"], "n_best is 7, but there are at most 6 beams; widen the beams"),
    (["--method", "dsbd", "--set", "n_best=0"], "option 'n_best' is 0"),
    (
        ["--method", "dsbd", "--set", "drafter=heads"],
        "'heads', but must be 'model', 'exit', 'eagle', 'mtp', 'dflash', 'medusa', 'skip' or 'lookup'",
    ),
    (["--method", "beam-sampling", "--set", "width=0"], "option 'width' is 0"),
    (["--method", "beam-sampling", "--set", "gamma=2"], "method beam-sampling has no option 'gamma'"),
    (["--method", "beam-search", "--set", "width=2", "--set", "n_best=3"], "there are at most 2 beams"),
    (["--method", "beam-search", "--top-k", "5"], "beam-search draws nothing"),
    (["--method", "speculative-beam-search", "--top-p", "0.5"], "leave them out, or use beam-sampling"),
    (["--method", "speculative-beam-search", "--set", "draft_width=3"], "must not be below width, 4"),
    (["--method", "specualtive"], "there is no method 'specualtive' (did you mean 'speculative'?)"),
    (["--method", "file:nowhere.json"], "method file nowhere.json does not exist"),
    (["--dtype", "float31"], "--dtype is float31, but must be 'auto', 'float32', 'bfloat16', 'float16' or 'float64'"),
    (["--device", "abacus"], "device 'abacus' is not there"),
    (["--temprature", "1"], "there is no option --temprature (did you mean '--temperature'?)"),
    (["--seed", "x"], "invalid value for '--seed'"),
    (["--temperature", "-1"], "--temperature is -1.0, but must be at least 0"),
    (["--temperature", "nan"], "--temperature is nan, but must be a finite number"),
    (["--top-p", "0"], "--top-p is 0.0, but must be above 0"),
    (["--logit-bias", "7"], "--logit-bias takes key=value, not '7'"),
    (["--logit-bias", "999=1"], "logit_bias names token 999"),
    (["--max-new-tokens", "0"], "--max-new-tokens is 0, but must be at least 1"),
    (["--top-logprobs", "3"], "--top-logprobs is shown in JSON only; give --json too"),
    (["--method", "mcsd", "--method", "dsbd"], "--method is given twice; give it once"),
    (["--stop", ""], "a stop string is empty"),
    (["--prompt-file", "somewhere.txt"], "not both"),
    (["again"], "unexpected extra argument"),
]


@pytest.mark.parametrize(("flags", "sentence"), FLAGS, ids=[" ".join(flags) for flags, _ in FLAGS])
def test_bad_flags(command: Command, pair: list[str], flags: list[str], sentence: str) -> None:
    assert sentence in refused(command("generate", "x", *pair, *flags))


def test_missing_prompt(command: Command, pair: list[str]) -> None:
    assert "--prompt-file" in refused(command("generate", *pair))


def test_empty_prompt(command: Command, pair: list[str]) -> None:
    assert refused(command("generate", "", *pair)) == "the prompt is empty; give at least one token of text"


def test_prompt_file_that_is_not_there(command: Command, pair: list[str]) -> None:
    assert "nowhere.txt cannot be read" in refused(command("generate", *pair, "--prompt-file", "nowhere.txt"))


def test_prompt_that_is_no_text(command: Command, pair: list[str], tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    file.write_bytes(b"\xff\xfe")
    assert "not valid UTF-8" in refused(command("generate", *pair, "--prompt-file", file))
    assert "not valid UTF-8" in refused(command("generate", b"\xff".decode("utf-8", "surrogateescape"), *pair))


def test_prompt_longer_than_the_context(command: Command, pair: list[str]) -> None:
    sentence = refused(command("generate", "x" * tiny_models.CONTEXT, *pair))
    assert f"context holds {tiny_models.CONTEXT}" in sentence and "shorten the prompt" in sentence


def test_missing_directory(command: Command) -> None:
    assert "./nowhere is not a checkpoint directory" in refused(command("generate", "x", "--target", "./nowhere"))


def test_directory_without_safetensors(command: Command, copy_of_target: Path) -> None:
    (copy_of_target / "model.safetensors").unlink()
    assert "has no .safetensors file" in refused(command("generate", "x", "--target", copy_of_target))


def test_unknown_architecture(command: Command, copy_of_target: Path) -> None:
    path = copy_of_target / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "abacus"}))
    sentence = refused(command("generate", "x", "--target", copy_of_target))
    assert "architecture 'abacus' is not supported" in sentence and "llama" in sentence


def test_vocabularies_without_a_shared_token(command: Command, target: Path, tmp_path: Path) -> None:
    stranger = tiny_models.write(tmp_path / "stranger", seed=3)
    Tokenizer(models.BPE({"\ue000": 0}, [])).save(str(stranger / "tokenizer.json"))
    assert "no token in common" in refused(command("generate", "x", "--target", target, "--draft", stranger))


@pytest.mark.parametrize("method", ["speculative", "mcsd", "specinfer", "dsbd", "speculative-beam-search"])
def test_method_without_its_draft(command: Command, target: Path, method: str) -> None:
    assert "--draft" in refused(command("generate", "x", "--target", target, "--method", method))


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("method", ["autoregressive", "speculative", "mcsd", "dsbd", "speculative-beam-search"])
def test_nan_in_the_logits(
    command: Command, draft: Path, copy_of_target: Path, method: str, temperature: float
) -> None:
    path = copy_of_target / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, path, metadata={"format": "pt"})
    models = ["--target", copy_of_target, "--draft", draft]
    sentence = refused(command("generate", "x", *models, "--method", method, "--temperature", temperature))
    assert "NaN" in sentence


def test_prompt_that_looks_like_a_flag(command: Command, pair: list[str]) -> None:
    assert "draftwood generate --help (a prompt that begins with - goes after --)" in refused(
        command("generate", "-5 degrees", *pair)
    )
    assert command("generate", *pair, "--", "-5 degrees").code == 0


def test_unknown_command(command: Command) -> None:
    assert refused(command("genrate", "x")) == "there is no command 'genrate' (did you mean 'generate'?)"


COMPARISONS = [
    (["--methods", "lookup,mscd"], "there is no method 'mscd' (did you mean 'mcsd'?)"),
    (["--methods", "lookup", "--set", "gama=3"], "none of the methods has this option (did you mean 'gamma'?)"),
    (["--methods", "lookup", "--set", "mcsd.tree=2"], "'mcsd' is not among the methods"),
    (["--methods", "speculative:gamma=-1"], "option 'gamma' is -1"),
    (["--methods", "speculative:gamma"], "takes key=value"),
    (["--methods", "dsbd:n_best=7"], "n_best is 7"),
    (["--methods", "dsbd:width=3;draft_width=2"], "must not be below width, 3"),
    (["--methods", "dsbd,beam-search", "--top-k", "5"], "beam-search draws nothing"),
    (["--repeat", "0"], "--repeat is 0, but must be at least 1"),
    (["--temperature", "-1"], "--temperature is -1.0, but must be at least 0"),
]


@pytest.mark.parametrize(("flags", "sentence"), COMPARISONS, ids=[" ".join(flags) for flags, _ in COMPARISONS])
def test_bad_comparisons(command: Command, pair: list[str], flags: list[str], sentence: str) -> None:
    assert sentence in refused(command("compare", "x", *pair, *flags))


def test_compare_refuses_a_missing_draft_before_it_runs(command: Command, target: Path) -> None:
    sentence = refused(command("compare", "x", "--target", target, "--methods", "lookup,speculative"))
    assert "speculative needs a draft model" in sentence


FIRST = [  # what is wrong is told without the model, which takes seconds to load
    ["generate", "x", "--top-k", "-1"],
    ["generate", "x", "--top-logprobs", "3"],
    ["generate", "x", "--method", "mcsd", "--set", "tree=0"],
    ["generate", "x", "--method", "beam-search", "--top-k", "5"],
    ["compare", "x", "--methods", "mscd"],
    ["compare", "x", "--repeat", "0"],
    ["explain", "x", "--html", "."],
    ["plan", "--seconds", "0"],
    ["plan", "--out", "."],
    ["plan", "--prompts", "nowhere.txt"],
    ["tune", "--out", "folder.json"],
    ["tune", "skip", "--out", "folder.json"],
    ["certify", "--out", "."],
    ["certify", "--prompts", "nowhere.txt"],
    ["eval", "--out", "x", "--tasks", "nothing"],
    ["train", "decision", "--out", "folder.json"],
    ["train", "calibration", "--out", "x.safetensors", "--prompts", "nowhere.txt"],
    ["train", "corpus", "--out", "."],
    ["train", "eesd", "--out", "file"],
    ["train", "medusa", "--out", "file"],
    ["train", "eagle", "--out", "file"],
    ["train", "dflash", "--out", "file"],
    ["train", "draft", "--out", "file/of/mine"],
]


@pytest.mark.parametrize("arguments", FIRST, ids=" ".join)
def test_flags_and_places_are_checked_before_models_load(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.json").mkdir()
    Path("file").write_text("mine")
    monkeypatch.setattr("draftwood.models.checkpoints.checkpoint.load", lambda *given, **options: pytest.fail("loaded"))
    assert refused(command(*arguments))
    assert Path("file").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_told_before_training(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("draftwood.models.checkpoints.checkpoint.load", lambda *given, **options: pytest.fail("loaded"))
    monkeypatch.setattr("os.access", lambda place, mode: place != tmp_path)
    sentence = refused(command("train", "eagle", "--out", tmp_path / "new" / "head"))
    assert f"but {tmp_path} cannot be written; name another directory" in sentence
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["plan", "tune"])
def test_a_full_disk_comes_after_the_answer(
    command: Command, pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Results are printed before they are written, so that a full disk loses the file alone."""

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a b\n")
    short = ("--max-new-tokens", 8, "--prompts", prompts, *pair)
    flags = {"plan": ("--seconds", 0.1), "tune": ("--method", "lookup", "--budget", 2)}[name]
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        shown = command(name, *short, *flags, "--out", tmp_path / "best.json")
    assert (shown.code == 2 and "lookup" in shown.out) or "recommended" in shown.out
    assert "best.json was not written: No space left on device; make room or name another" in shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.txt"]


LEARNED = {  # command -> (flags, what is printed before the file is written)
    "train decision": (("--max-new-tokens", 24, "--epochs", 1), "held-out prompts"),
    "train calibration": (("--max-new-tokens", 12, "--epochs", 1), "log loss"),
    "tune skip": (("--max-new-tokens", 6, "--budget", 1, "--gamma", 1), "sets judged"),
}


@pytest.mark.parametrize("name", LEARNED)
def test_a_full_disk_loses_no_learned_file(
    command: Command, pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Results of training are printed, and the file that was there before stays whole."""

    def full(tensors: object, path: Path, header: object) -> None:
        path.write_bytes(b"half of it")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    flags, said = LEARNED[name]
    prompts, out = tmp_path / "prompts.txt", tmp_path / "one.safetensors"
    prompts.write_text("".join(f"a b {i}\n" for i in range(12)))
    out.write_bytes(b"from before")
    monkeypatch.setattr("draftwood.models.checkpoints.files.save_file", full)
    models = pair[:2] if name == "tune skip" else pair
    shown = command(*name.split(), "--prompts", prompts, "--out", out, *flags, *models)
    assert shown.code == 2 and said in shown.out, shown.err
    assert shown.err.startswith("error: ") and shown.err.count("\n") == 1
    assert "No space left on device" in shown.err and "make room or name another" in shown.err
    assert out.read_bytes() == b"from before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.safetensors", "prompts.txt"]


def test_errors_cannot_steer_the_terminal(command: Command, pair: list[str]) -> None:
    """Whatever they quote, such as a server's answer."""
    sentence = refused(command("generate", "a", *pair, "--method", "no\x1b[2J\x9b\x07"))
    assert sentence.isprintable(), sentence
    told = refused(command("generate", "a", *pair, "--method", "file:no\x1b[2J\x07.yaml"))
    assert "\u241b[2J\u2407" in told and "\x1b" not in told


def test_lines_of_results_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    ColorOptions().say("server: \x1b[2J")
    assert capsys.readouterr().out == "server: \u241b[2J\n"


def test_a_full_standard_output_is_one_sentence() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "draftwood", "--help"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.decode() == "error: the output cannot be written: No space left on device\n"


def test_both_keys_leave_the_command_line_and_neither_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        pass

    def start(program: str, arguments: list[str], environment: dict[str, str]) -> None:
        monkeypatch.setattr("sys.orig_argv", arguments)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        raise Started

    options, command = ("--api-key", "--against-api-key"), ["python", "-m", "draftwood", "certify"]
    monkeypatch.setattr("os.execve", start)
    for given, known in (([*options[:1], "a", f"{options[1]}=b"], {}), ([options[1], "b"], {"DRAFTWOOD_API_KEY": "a"})):
        monkeypatch.setattr("sys.orig_argv", [*command, *given, "--url", "u"])
        for name, value in known.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Started):
            hidden(*options)
        assert sys.orig_argv == [sys.executable, *command[1:], "--url", "u"]
        assert (os.environ["DRAFTWOOD_API_KEY"], os.environ["DRAFTWOOD_AGAINST_API_KEY"]) == ("a", "b")
        hidden(*options)  # the values have been read
        assert not {"DRAFTWOOD_API_KEY", "DRAFTWOOD_AGAINST_API_KEY"} & os.environ.keys()
