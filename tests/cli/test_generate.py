"""`draftwood generate`: the exact text in a pipe, colours on a terminal, one JSON document; every flag arrives."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
from conftest import Command
from rich.cells import cell_len

import draftwood
from draftwood.cli.main import run
from draftwood.engine.engine import Engine
from draftwood.engine.loading import EMBEDDED

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def engine(pair: list[str]) -> Engine:
    return draftwood.load(pair[1], pair[3])


def test_a_pipe_gets_exactly_the_text(command: Command, pair: list[str], engine: Engine) -> None:
    shown = command("generate", PROMPT, *pair, "--seed", 5, "--max-new-tokens", 30)
    expected = engine.generate(PROMPT, seed=5, max_new_tokens=30)
    assert shown.code == 0
    assert shown.out == expected.text


def test_the_summary_closes_on_stderr(command: Command, pair: list[str], engine: Engine) -> None:
    shown = command("generate", PROMPT, *pair, "--seed", 5, "--max-new-tokens", 30, "--set", "gamma=3")
    result = engine.generate(PROMPT, {"name": "speculative", "gamma": 3}, seed=5, max_new_tokens=30)
    (line,) = shown.err.split("\n")[1:-1]
    parts = line.split(" · ")
    assert parts[0].startswith(f"{len(result.tokens)} tokens in ")
    assert parts[1].endswith(" tokens/s")
    assert parts[2:4] == [f"tau {result.metrics.tau:.2f}", f"acceptance {100 * result.metrics.acceptance_rate:.0f}%"]
    names, shares = parts[4].split()[::2], [int(share.rstrip("%")) for share in parts[4].split()[1::2]]
    assert names == ["draft", "verify", "sampling", "other"] and 98 <= sum(shares) <= 102
    how = ["speculative gamma=3", "seed 5", "lossless", "computed in float32"]
    assert parts[5:] == [f"finish {result.finish_reason}", *how]


def test_a_head_beside_a_draft_model_is_no_second_one(command: Command) -> None:
    """Two models are refused before they are loaded; a head drafts by its own methods, or not at all."""
    flags = ("--target", EMBEDDED / "target", "--draft", EMBEDDED / "draft", "--method", "speculative")
    shown = command("generate", PROMPT, *flags, "--draft", EMBEDDED / "target" / "eagle", "--max-new-tokens", 2)
    assert shown.code == 0 and "speculative" in shown.err
    refused = command("generate", PROMPT, *flags, "--draft", EMBEDDED / "draft")
    assert refused.code == 2 and "works with 1 draft model, but 2 were loaded" in " ".join(refused.err.split())


def test_the_summary_of_beams(command: Command, pair: list[str], engine: Engine) -> None:
    flags = (*pair, "--seed", 5, "--max-new-tokens", 20, "--top-k", 10, "--method")
    metrics = (result := engine.generate(PROMPT, "dsbd", {"top_k": 10}, 20, 5)).metrics
    (line,) = command("generate", PROMPT, *flags, "dsbd").err.split("\n")[1:-1]
    assert line.split(" · ")[5:9] == [
        f"{metrics.layers_per_round:.2f} layers/round (Theorem 3.2: {result.predicted_layers:.2f})",
        f"mean width {metrics.mean_width:.1f}, {metrics.mean_accepted_width:.1f} accepted",
        f"cache {metrics.peak_slots} slots at most",
        "finish length",
    ]
    (line,) = command("generate", PROMPT, *flags, "beam-sampling").err.split("\n")[1:-1]
    assert line.split(" · ")[5:7] == ["1.00 layers/round", "mean width 4.0"]  # nothing is predicted, nothing drafted


def test_further_beams_are_on_stderr(command: Command, pair: list[str], engine: Engine) -> None:
    method = ("--method", "speculative-beam-search", "--set", "n_best=3")
    shown = command("generate", PROMPT, *pair, "--max-new-tokens", 30, *method)
    result = engine.generate(PROMPT, {"name": "speculative-beam-search", "n_best": 3}, max_new_tokens=30)
    assert shown.out == result.text == result.beams[0].text
    lines = shown.err.splitlines()
    heads, *rows = lines[1:5]
    assert heads.split() == ["beam", "perplexity", "log-likelihood", "score", "finish", "text"]
    assert len(lines) == 7 and lines[5] == "" and max(map(cell_len, lines[1:5])) <= 80
    for rank, (row, beam) in enumerate(zip(rows, result.beams, strict=True), 1):
        values = [str(rank), f"{beam.perplexity:.2f}", f"{beam.log_likelihood:.2f}", f"{beam.score:.3f}"]
        assert row.split()[:5] == [*values, beam.finish_reason]
    assert rows[0].endswith("  (above)")
    assert command("generate", PROMPT, *pair, "--max-new-tokens", 30, *method[:2]).err.count("\n") == 2


def test_beams_that_became_equal(command: Command, pair: list[str]) -> None:
    flags = ("--method", "beam-sampling", "--set", "n_best=2", "--temperature", 0, "--max-new-tokens", 5)
    assert "no further beams: all became equal" in command("generate", PROMPT, *pair, *flags).err


def test_what_compiling_took(command: Command, pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Told after every run of compiled models; without them there is no such thing in the document."""
    assert "compile_seconds" not in command("generate", PROMPT, *pair, "--max-new-tokens", 2, "--json").document
    load = draftwood.engine.loading.load

    def as_if_compiled(*arguments: object, **options: object) -> Engine:
        engine = load(*arguments)  # type: ignore[arg-type]
        engine.names["compiled"] = True
        return engine

    monkeypatch.setattr("draftwood.engine.loading.load", as_if_compiled)
    monkeypatch.setattr(Engine, "compile_seconds", 4.26)
    assert " · compiled in 4.3 s · computed in" in command("generate", PROMPT, *pair, "--max-new-tokens", 2).err
    assert command("generate", PROMPT, *pair, "--max-new-tokens", 2, "--json").document["compile_seconds"] == 4.26


def test_one_json_document(command: Command, pair: list[str], engine: Engine) -> None:
    shown = command("generate", PROMPT, *pair, "--json", "--seed", 5, "--max-new-tokens", 20, "--top-logprobs", 3)
    assert shown.err == ""
    document = shown.document
    result = engine.generate(PROMPT, seed=5, max_new_tokens=20, top_logprobs=3)
    expected = json.loads(json.dumps(result.as_dict()))
    assert {"draftwood", "models", *expected} == set(document)
    timed = {"metrics", "rounds"}
    assert {key: document[key] for key in expected if key not in timed} == {
        key: value for key, value in expected.items() if key not in timed
    }
    assert document["metrics"]["tau"] == result.metrics.tau
    assert document["draftwood"] == draftwood.__version__
    how = {"dtype": "float32", "kv_dtype": "float32", "backend": engine.names["backend"]}
    models = {"target": pair[1], "draft": [pair[3]], **how, "device": str(engine.target.device)}
    assert document["models"] == models
    assert all(len(best) == 3 for best in document["top_logprobs"])


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--temperature", "0"], {"sampling": {"temperature": 0.0}}),
        (["--temperature", "0.5", "--top-k", "7"], {"sampling": {"temperature": 0.5, "top_k": 7}}),
        (["--top-p", "0.6", "--min-p", "0.02"], {"sampling": {"top_p": 0.6, "min_p": 0.02}}),
        (
            ["--repetition-penalty", "1.3", "--presence-penalty", "0.5", "--frequency-penalty", "0.25"],
            {"sampling": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25}},
        ),
        (["--logit-bias", "65=2.5", "--logit-bias", "66=-1"], {"sampling": {"logit_bias": {65: 2.5, 66: -1.0}}}),
        (["--stop", "a", "--stop", "e"], {"stop": ["a", "e"]}),
        (["--ignore-eos"], {"ignore_eos": True}),
        (["--method", "mcsd", "--set", "tree=3,2"], {"method": {"name": "mcsd", "tree": (3, 2)}}),
        (["--method", "lookup", "--set", "gamma=3"], {"method": {"name": "lookup", "gamma": 3}}),
        (["--set", "verify=coupled"], {"method": {"name": "speculative", "verify": "coupled"}}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_arrive(
    command: Command, pair: list[str], engine: Engine, flags: list[str], options: dict[str, object]
) -> None:
    document = command("generate", PROMPT, *pair, "--json", "--seed", 2, "--max-new-tokens", 32, *flags).document
    expected = engine.generate(PROMPT, seed=2, max_new_tokens=32, **options)  # type: ignore[arg-type]
    assert document["tokens"] == expected.tokens
    assert document["sampling"] == json.loads(json.dumps(expected.sampling))
    assert document["method"] == json.loads(json.dumps(expected.method))
    assert document["finish_reason"] == expected.finish_reason


def test_a_stop_string_is_not_shown(command: Command, pair: list[str]) -> None:
    whole = command("generate", PROMPT, *pair, "--seed", 3, "--ignore-eos").out
    cut = next(whole[i : i + 2] for i in range(4, len(whole)) if whole[i : i + 2].isascii() and whole[i].isprintable())
    assert command("generate", PROMPT, *pair, "--seed", 3, "--ignore-eos", "--stop", cut).out == whole.split(cut)[0]


def test_without_a_draft_lookup_drafts(command: Command, target: Path) -> None:
    document = command("generate", PROMPT, "--target", target, "--json").document
    assert document["method"]["name"] == "lookup" and document["metrics"]["draft_forwards"] == 0
    assert " · lookup · " in command("generate", PROMPT, "--target", target).err
    few = command("generate", PROMPT, "--target", target, "--set", "gamma=2", "--json").document
    assert (few["method"]["name"], few["method"]["gamma"]) == ("lookup", 2)


def test_several_drafts(command: Command, pair: list[str], target: Path) -> None:
    document = command(
        "generate", PROMPT, *pair, "--draft", target, "--set", "expansion=1,2,2", "--method", "specinfer", "--json"
    ).document
    assert document["models"]["draft"] == [pair[3], str(target)]
    assert document["metrics"]["tau"] > 2  # the second draft is the target itself


def test_method_file(command: Command, pair: list[str], tmp_path: Path) -> None:
    file = tmp_path / "best.json"
    file.write_text(json.dumps({"name": "mcsd", "tree": [2, 2], "replacement": True}))
    document = command("generate", PROMPT, *pair, "--method", f"file:{file}", "--set", "tree=3", "--json").document
    given = {"name": "mcsd", "tree": [3], "replacement": True, "verify": "traversal"}
    assert given.items() <= document["method"].items()


def test_prompt_from_stdin_and_file(
    command: Command, pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = command("generate", PROMPT, *pair).out
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT + "\n"))
    assert command("generate", "-", *pair).out == asked
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT + "\n\n")
    prompt = command("generate", "--prompt-file", file, *pair, "--json").document["prompt_tokens"]
    assert prompt == tiny_models.byte_tokenizer().encode(PROMPT + "\n").ids  # one line break is the file's own


def test_colour_can_be_forced_and_refused(command: Command, pair: list[str]) -> None:
    plain = command("generate", PROMPT, *pair)
    coloured = command("generate", PROMPT, *pair, "--set", "gamma=4", "--color")
    assert "\x1b[" not in plain.out + plain.err
    assert "\x1b[" in coloured.out
    assert "accepted" in coloured.err and "corrected" in coloured.err  # the legend


@pytest.mark.slow
def test_on_a_terminal(pair: list[str]) -> None:
    ours, theirs = pty.openpty()
    variables = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "draftwood", "generate", PROMPT, *pair, "--set", "gamma=4", "--max-new-tokens", "20"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=variables | {"TERM": "xterm-256color", "COLUMNS": "80"},
    )
    os.close(theirs)
    received = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # Linux: the other side is closed
            break
        if not chunk:
            break
        received += chunk
    os.close(ours)
    assert process.wait(300) == 0
    shown = received.decode()
    assert "\x1b[32m" in shown or "\x1b[4;35m" in shown
    assert "corrected" in shown and "finish length" in shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_color_on_a_terminal(pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    for variable, flag, coloured in (("", [], True), ("1", [], False), ("", ["--no-color"], False)):
        monkeypatch.setenv("NO_COLOR", variable)
        out, err = Terminal(), Terminal()
        with monkeypatch.context() as patched, pytest.raises(SystemExit) as left:
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", err)
            run(["generate", PROMPT, *pair, "--max-new-tokens", "20", "--set", "gamma=4", "--seed", "5", *flag])
        assert left.value.code == 0
        assert ("\x1b" in out.getvalue()) is ("\x1b" in err.getvalue()) is coloured
        if not coloured:
            assert out.getvalue().endswith("\n")  # the prompt of the shell begins a new line
            assert "accepted" not in err.getvalue()  # no colours, no legend
            assert len(err.getvalue().splitlines()) > 1 and max(map(len, err.getvalue().splitlines())) <= 80


def test_the_smallest_temperatures_are_greedy(command: Command, pair: list[str]) -> None:
    """1e-300 is 0 in float32: the text is the greedy one, and the model is not blamed."""
    flags = ("generate", PROMPT, *pair, "--max-new-tokens", 12)
    shown = command(*flags, "--temperature", "1e-300")
    assert (shown.code, shown.out) == (0, command(*flags, "--temperature", 0).out), shown.err


def test_memory_and_queues_are_options(command: Command, pair: list[str]) -> None:
    short = command("generate", PROMPT, *pair, "--kv-cache-bytes", 1000)
    assert short.code == 2 and "but the budget is 1,000" in short.err
    assert "--max-running is 0, but must be at least 1" in command("generate", PROMPT, *pair, "--max-running", 0).err
    fine = command("generate", PROMPT, *pair, "--max-new-tokens", 2, "--no-reuse-prefixes", "--max-queued", 1, "--json")
    assert fine.document["metrics"]["reused_tokens"] == 0
