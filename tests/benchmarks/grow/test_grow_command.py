"""`python -m benchmarks.grow`: a normal checkpoint comes out, its shape is said, and mistakes are one sentence."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from conftest import Command
from safetensors import SafetensorError

from benchmarks.command import started
from benchmarks.grow.__main__ import app
from draftwood.models.checkpoints import checkpoint


def grow(*arguments: object) -> int:
    return started(app, "benchmarks.grow", list(map(str, arguments)))


def test_a_grown_checkpoint_gives_the_same_text(
    command: Command, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "grown"
    assert grow(out, "--source", target, "--layers", 4, "--width", 64) == 0
    count = sum(parameter.numel() for parameter in checkpoint.load(out, packed=False).parameters())
    before, after = capsys.readouterr().out.splitlines()
    assert before.startswith("before: parameters ") and "layers 2, width 32" in before
    assert after == f"after: parameters {count:,}, layers 4, width 64, heads 4, kv_heads 2, intermediate 96"
    flags = ("--temperature", 0, "--max-new-tokens", 20, "--dtype", "float64", "--json")
    small, large = (command("generate", "Once", "--target", model, *flags).document for model in (target, out))
    assert small["tokens"] == large["tokens"]


def test_reports_say_what_was_grown(
    command: Command, target: Path, draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    assert grow(once, "--source", target, "--layers", 2, "--width", 64) == 0
    assert grow(twice, "--source", once, "--layers", 3, "--width", 64) == 0
    capsys.readouterr()
    short = ("--max-new-tokens", 4)
    cases: list[tuple[list[Path], dict[str, object], str]] = [
        ([twice], {"target": "2x32", "draft": []}, "target grown from 2x32"),
        ([once, draft], {"target": "2x32", "draft": [None]}, "target grown from 2x32"),
        ([target, once], {"target": None, "draft": ["2x32"]}, "draft grown from 2x32"),
        ([twice, once], {"target": "2x32", "draft": ["2x32"]}, "target grown from 2x32, draft from 2x32"),
    ]
    for models, names, note in cases:
        flags = [part for pair in zip(("--target", "--draft"), models, strict=False) for part in pair]
        assert command("generate", "Once", *flags, *short, "--json").document["models"]["grown"] == names
        assert command("generate", "Once", *flags, *short).err.rstrip("\n").split(" · ")[-1] == note
    timed = ("--repeat", 1, "--warmup", 0, "--methods", "lookup")
    assert note in command("compare", "Once", *flags, *short, *timed).out.splitlines()


def test_reports_do_not_mention_growth_without_it(command: Command, pair: list[str]) -> None:
    assert "grown" not in command("generate", "Once", *pair, "--max-new-tokens", 4, "--json").document["models"]
    assert "grown" not in command("generate", "Once", *pair, "--max-new-tokens", 4).err


@pytest.mark.parametrize("origin", ["2x32", {}, {"layers": 2}, None, [2, 32]])
def test_a_strange_origin_is_not_shown(command: Command, copy_of_target: Path, origin: object) -> None:
    config = {**checkpoint.read_config(copy_of_target), "grown_from": origin}
    (copy_of_target / "config.json").write_text(json.dumps(config), "utf-8")
    document = command("generate", "Once", "--target", copy_of_target, "--max-new-tokens", 2, "--json").document
    assert "grown" not in document["models"]


@pytest.mark.parametrize("source", ["embedded:target", "embedded:draft"])
def test_embedded_models(source: str, tmp_path: Path) -> None:
    out = tmp_path / "grown"
    assert grow(out, *(["--source", source] if source != "embedded:target" else []), "--dtype", "bfloat16") == 0
    config = checkpoint.read_config(out)
    assert config["grown_from"]["source"] == source and config["dtype"] == "bfloat16"
    assert (out / "tokenizer.json").is_file()


MISTAKES = [  # (flags, what the sentence must say)
    (["--like", "22*2048"], "--like takes layers x width, such as 22x2048"),
    (["--like", "3x64", "--width", "64"], "instead of --layers and --width"),
    (["--layers", "1"], "the model has 2 layers, so it cannot grow to 1"),
    (["--width", "16"], "the model is 32 wide, so it cannot grow to width 16"),
    (["--width", "64", "--heads", "5", "--kv-heads", "2"], "5 heads over 2 key/value heads cannot hold"),
    (["--intermediate", "47"], "so it cannot grow to 47"),
    (["--keep-first", "-1"], "keep_first is -1, but must be at least 0"),
    (["--dtype", "float16"], "dtype 'float16' is not for grown models"),
    (["--widht", "64"], "No such option: --widht"),
    (["--source", "embedded:taget"], "taget"),
    (["--source", "nowhere"], "nowhere"),
]


@pytest.mark.parametrize(("flags", "sentence"), MISTAKES, ids=[" ".join(flags) for flags, _ in MISTAKES])
def test_mistakes(
    target: Path, tmp_path: Path, flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grow(tmp_path / "grown", "--source", target, *flags) == 2
    shown = capsys.readouterr()
    assert not shown.out and shown.err.startswith("error: ") and shown.err.count("\n") == 1 and sentence in shown.err
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    for out, sentence in (
        ("file", "is there already and not an empty directory"),
        ("full", "is there already and not an empty directory"),
        ("file/below", "cannot be written"),
    ):
        if sentence.startswith("is"):  # before the model is read
            monkeypatch.setattr(checkpoint, "load", lambda *arguments, **options: pytest.fail("loaded"))
        else:
            monkeypatch.undo()
        assert grow(tmp_path / out, "--source", target) == 2
        shown = capsys.readouterr()
        assert not shown.out and shown.err.count("\n") == 1 and sentence in shown.err
    assert (tmp_path / "full" / "file").read_text() == "mine" and len(list((tmp_path / "full").iterdir())) == 1


def test_a_full_disk_leaves_nothing(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it is full at the weights or at the tokenizer that is copied last."""

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def weights_full(*arguments: object, **options: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    (tmp_path / "empty").mkdir()
    for place, write in (("draftwood.models.checkpoints.files.save_file", weights_full), ("shutil.copyfile", full)):
        for out in (tmp_path / "new", tmp_path / "empty"):
            with monkeypatch.context() as patch:
                patch.setattr(place, write)
                assert grow(out, "--source", target) == 2
            shown = capsys.readouterr().err
            assert shown.count("\n") == 1 and "No space left on device" in shown
            assert "make room or name another place" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["empty"] and not list((tmp_path / "empty").iterdir())
    assert grow(tmp_path / "empty", "--source", target) == 0 and (tmp_path / "empty" / "config.json").is_file()
