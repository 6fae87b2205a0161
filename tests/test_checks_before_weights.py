"""Input that can be refused without weights is refused before any are read, by the library and every command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from checkpoint_files import edit_json
from conftest import Command
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

import draftwood
from draftwood.errors import DraftwoodError
from draftwood.models.checkpoints.parameters import ParameterReader


@pytest.fixture(autouse=True)
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails where a tensor is read."""
    read: list[str] = []

    def put(reader: Any, model: Any, name: str, shape: Any) -> None:
        read.append(name)
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(ParameterReader, "put", put)
    yield
    assert not read


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and a draft whose tokenizer shares no token with the target's."""
    place = tmp_path_factory.mktemp("pair")
    target, other = (tiny_models.write(place / name, seed=1) for name in ("target", "other"))
    Tokenizer(models.BPE({"\ue000": 0}, [])).save(str(other / "tokenizer.json"))
    return target, other


def test_models_are_checked_before_weights(pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, other = pair
    broken = tiny_models.write(tmp_path / "broken", seed=2)
    path = broken / "model.safetensors"
    save_file({name: part for name, part in load_file(path).items() if "norm" not in name}, path)
    strange = tiny_models.write(tmp_path / "strange", seed=2)
    edit_json(strange / "config.json", model_type="its_own")
    for draft, options, sentence in (
        (other, {}, "no token in common"),
        (tmp_path / "nowhere", {}, "is not a checkpoint directory"),
        (broken, {}, "norm.weight is missing"),
        (strange, {}, "architecture 'its_own' is not supported"),
        (target, {"draft_device": "tpu"}, "draft_device 'tpu' is not there"),
        (target, {"draft_device": "meta", "compile": True}, "compile is for the CPU"),
        (target, {"tensor_parallel": 0}, "tensor_parallel"),
        (f"hf:{target}", {"quantize": "int8"}, "quantize is for checkpoints that draftwood's own decoder loads"),
        (object(), {"quantize": "int8"}, "quantize is for checkpoints"),
    ):
        with pytest.raises(DraftwoodError, match=sentence):
            draftwood.load(target, draft, device="cpu", **options)
    with pytest.raises(DraftwoodError, match=r"has no tokenizer\.json"):
        (tmp_path / "broken" / "tokenizer.json").unlink()
        draftwood.load(target, tokenizer=tmp_path / "broken")


ALONE: list[list[str]] = [  # commands that need a draft
    ["generate", "x", "--method", "speculative"],
    ["generate", "x", "--method", "mcsd", "--set", "gamma=3"],
    ["explain", "x", "--method", "speculative"],
    ["chat", "--method", "speculative"],
    ["compare", "x", "--methods", "lookup,speculative"],
    ["eval", "--methods", "speculative", "--out", "{out}"],
    ["tune", "--method", "mcsd", "--out", "{out}.json"],
    ["certify", "--method", "speculative", "--pair"],
    ["train", "decision", "--method", "mcsd", "--out", "{out}.safetensors"],
    ["train", "calibration", "--method", "speculative", "--out", "{out}.safetensors"],
    ["serve", "--port", "0", "--method", "speculative"],
]


@pytest.mark.parametrize("arguments", ALONE, ids=lambda words: "-".join(words[:2]))
def test_commands_ask_for_drafts_before_weights(
    arguments: list[str], pair: tuple[Path, Path], command: Command, tmp_path: Path
) -> None:
    words = [word.replace("{out}", str(tmp_path / "out")) for word in arguments]
    found = command(*words, "--target", str(pair[0]))
    assert found.code == 2, found
    assert found.err.count("\n") == 1
    assert "needs a draft model" in found.err or "has no option" in found.err


@pytest.mark.parametrize("arguments", ALONE, ids=lambda words: "-".join(words[:2]))
def test_commands_check_tokenizers_before_weights(
    arguments: list[str], pair: tuple[Path, Path], command: Command, tmp_path: Path
) -> None:
    words = [word.replace("{out}", str(tmp_path / "out")) for word in arguments if word not in ("--set", "gamma=3")]
    found = command(*words, "--target", str(pair[0]), "--draft", str(pair[1]))
    assert found.code == 2 and "no token in common" in found.err, found
