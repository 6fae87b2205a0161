"""`draftwood grow`: a normal checkpoint comes out, its shape is said, and mistakes are one sentence."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from conftest import Command
from safetensors import SafetensorError

from draftwood.models.checkpoints import checkpoint


def test_a_grown_checkpoint_gives_the_same_text(command: Command, target: Path, tmp_path: Path) -> None:
    out = tmp_path / "grown"
    document = command("grow", target, out, "--layers", 4, "--width", 64, "--json").document
    assert document["before"]["layers"] == 2 and document["before"]["width"] == 32
    assert document["after"] == {
        "parameters": sum(parameter.numel() for parameter in checkpoint.load(out, packed=False).parameters()),
        "layers": 4,
        "width": 64,
        "heads": 4,
        "kv_heads": 2,
        "intermediate": 96,
    }
    assert document["bytes"] == sum(file.stat().st_size for file in out.iterdir())
    flags = ("--temperature", 0, "--max-new-tokens", 20, "--dtype", "float64", "--json")
    small, large = (command("generate", "Once", "--target", model, *flags).document for model in (target, out))
    assert small["tokens"] == large["tokens"]


def test_the_shape_is_shown_within_80_columns(command: Command, target: Path, tmp_path: Path) -> None:
    shown = command("grow", target, tmp_path / "grown", "--like", "3x64", "--dtype", "bfloat16")
    assert shown.code == 0 and not shown.err
    lines = shown.out.splitlines()
    assert max(map(len, lines[:-1])) <= 80 and "bfloat16" in lines[-1]
    assert lines[-2].split()[0] == "after" and lines[-2].split()[2:] == ["3", "64", "4", "2", "96"]
    assert checkpoint.read_config(tmp_path / "grown")["dtype"] == "bfloat16"


def test_reports_say_what_was_grown(command: Command, target: Path, draft: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    command("grow", target, once, "--layers", 2, "--width", 64)
    command("grow", once, twice, "--layers", 3, "--width", 64)
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


@pytest.mark.parametrize("arguments", [[], ["embedded:target"], ["embedded:draft"]])
def test_embedded_models(command: Command, tmp_path: Path, arguments: list[str]) -> None:
    out = tmp_path / "grown"
    document = command("grow", *arguments, out, "--dtype", "bfloat16", "--json").document
    assert document["source"] == (arguments or ["embedded:target"])[0]
    assert checkpoint.read_config(out)["grown_from"]["source"] == document["source"]
    assert (out / "tokenizer.json").is_file()


MISTAKES = [  # (flags, what the sentence must say)
    (["--like", "22*2048"], "--like takes layers x width, such as 22x2048, not '22*2048'"),
    (["--like", "3x64", "--width", "64"], "give --like or --layers and --width, not both"),
    (["--layers", "1"], "the model has 2 layers, so it cannot grow to 1"),
    (["--width", "16"], "the model is 32 wide, so it cannot grow to width 16"),
    (["--width", "64", "--heads", "5", "--kv-heads", "2"], "5 heads over 2 key/value heads cannot hold"),
    (["--intermediate", "47"], "so it cannot grow to 47"),
    (["--keep-first", "-1"], "--keep-first is -1, but must be at least 0"),
    (["--dtype", "float16"], "--dtype is float16, but must be 'float32', 'bfloat16' or 'float64'"),
    (["--widht", "64"], "there is no option --widht (did you mean '--width'?)"),
]


@pytest.mark.parametrize(("flags", "sentence"), MISTAKES, ids=[" ".join(flags) for flags, _ in MISTAKES])
def test_mistakes(command: Command, target: Path, tmp_path: Path, flags: list[str], sentence: str) -> None:
    shown = command("grow", target, tmp_path / "grown", *flags)
    assert shown.code == 2 and not shown.out
    assert shown.err.startswith("error: ") and shown.err.count("\n") == 1 and sentence in shown.err
    assert not (tmp_path / "grown").exists()


def test_places_that_cannot_be_written(command: Command, target: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    for out, sentence in (
        ("file", "is there already and not an empty directory"),
        ("full", "is there already and not an empty directory"),
        ("file/below", "Not a directory"),
    ):
        shown = command("grow", target, tmp_path / out)
        assert shown.code == 2 and not shown.out
        assert shown.err.count("\n") == 1 and sentence in shown.err
    assert (tmp_path / "full" / "file").read_text() == "mine" and len(list((tmp_path / "full").iterdir())) == 1


def test_unknown_sources(command: Command, tmp_path: Path) -> None:
    shown = command("grow", "embedded:taget", tmp_path / "grown")
    assert shown.code == 2 and "there is no model 'embedded:taget' (did you mean 'embedded:target'?)" in shown.err
    assert "is not a checkpoint directory" in command("grow", tmp_path / "nowhere", tmp_path / "grown").err


def test_a_full_disk_leaves_nothing(
    command: Command, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is full at the weights or at the tokenizer that is copied last."""

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def weights_full(*arguments: object, **options: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    (tmp_path / "empty").mkdir()
    for place, write in (
        ("draftwood.models.checkpoints.files.save_file", weights_full),
        ("pathlib.Path.write_bytes", full),
    ):
        for out in (tmp_path / "new", tmp_path / "empty"):
            with monkeypatch.context() as patch:
                patch.setattr(place, write)
                shown = command("grow", target, out)
            assert shown.code == 2 and not shown.out and shown.err.count("\n") == 1
            assert "No space left on device" in shown.err and "make room or name another place" in shown.err
    assert not (tmp_path / "new").exists() and not list((tmp_path / "empty").iterdir())


def test_the_directory_is_checked_before_the_model_is_read(
    command: Command, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "load", lambda *arguments, **options: pytest.fail("loaded"))
    (tmp_path / "file").write_text("mine")
    assert "is there already" in command("grow", target, tmp_path / "file").err
