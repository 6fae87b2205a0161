"""Learned files: what was saved comes back, or one sentence says what is wrong; nothing is half written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from draftwood.engine.loading import EMBEDDED
from draftwood.errors import ModelError
from draftwood.models.checkpoints import artifact, files
from draftwood.models.checkpoints.artifact import Artifact

MODELS = {"target": "0" * 16, "draft": "1" * 16}


def made(**changes: Any) -> Artifact:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    return Artifact(**{"kind": "exit", "models": MODELS, "settings": {"n": [1]}, "tensors": tensors, **changes})


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.safetensors"
    made(about={"é": None}).save(path)
    found = artifact.load(path, "exit", **MODELS)
    assert (found.kind, found.models, found.settings, found.about) == ("exit", MODELS, {"n": [1]}, {"é": None})
    assert all(torch.equal(found.tensors[name], part) for name, part in made().tensors.items())
    assert [file.name for file in path.parent.iterdir()] == ["a.safetensors"]
    made(tensors={}).save(path)
    assert not artifact.load(path, "exit").tensors


@pytest.mark.skipif(os.name == "nt", reason="there is no umask")
def test_files_are_as_readable_as_any_other(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        made().save(tmp_path / "a.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o640


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    made().save(path)
    for models, role in (({"target": "2" * 16}, "target"), ({"target": "0" * 16, "draft": "2" * 16}, "draft")):
        with pytest.raises(ModelError, match=f"was trained for another {role} .*make one for this {role}"):
            artifact.load(path, "exit", **models)
    with pytest.raises(ModelError, match=r"does not hold heads, but 'exit'; make one with `draftwood train medusa`"):
        artifact.load(path, "heads")
    with pytest.raises(ModelError, match=r"none\.safetensors does not exist; make one with `draftwood tune skip`"):
        artifact.load(tmp_path / "none.safetensors", "skip")


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"draftwood": ""},
        {"draftwood": "[]"},
        {"draftwood": '{"kind": "exit"}'},
        {"draftwood": json.dumps({"kind": [1], "models": {}, "settings": {}, "about": {}})},
        {"draftwood": json.dumps({"kind": "exit", "models": [], "settings": {}, "about": {}})},
        {"draftwood": '{"kind": ' + "[" * 10**5},
        {"draftwood": '{"kind": ' + "9" * 4000 + "}"},
    ],
)
def test_headers_of_another_form(header: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(save({"a": torch.zeros(2)}, header))
    with pytest.raises(ModelError, match=r"a\.safetensors (cannot be read|does not hold)") as caught:
        artifact.load(path, "exit")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    made().save(path)
    whole = path.read_bytes()
    for data in (b"", b"x", whole[:7], whole[:50], whole[:-1], b"\xff" * 8 + whole[8:], whole[8:]):
        path.write_bytes(data)
        with pytest.raises(ModelError, match=r"cannot be read .* make it again with `draftwood train eesd`"):
            artifact.load(path, "exit")


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    made().save(path)
    before = path.read_bytes()

    def full(tensors: object, path: Path, header: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(ModelError, match=r"No space left on device.*what was there before is whole"):
        made(settings={}).save(path)
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


def test_the_shipped_files() -> None:
    home = EMBEDDED / "target"
    found = {kind: artifact.load(artifact.companion(home, kind), kind) for kind in ("exit", "heads", "skip")}
    assert {each.models["target"] for each in found.values()} == {"58a54e4866370213"}
    assert found["exit"].settings == {"layers": 1, "depth": 1}
    assert found["heads"].settings["heads"] == 4 and len(found["heads"].settings["ranks"]) == 4
    assert found["skip"].settings == {"attention": [1, 5, 7, 8, 10, 11], "mlp": [1, 2, 3, 4, 5, 7, 9]}
