"""Provenance of figures: program, machine and moment; and what the files of models hold."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import draftwood
from draftwood.engine.draft_sources import THROUGH_TRANSFORMERS
from draftwood.engine.engine import Engine
from draftwood.methods import Method
from draftwood.models.checkpoints import gguf_parts
from draftwood.models.checkpoints.artifact import KINDS, companion
from draftwood.models.checkpoints.files import file_fingerprint
from draftwood.util import native_library

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")


def session(device: torch.device, backend: str | None = None) -> dict[str, Any]:
    """The program and the machine, as they head result files; `backend` is what "auto" takes there unless given."""
    automatic = "native" if device.type == "cpu" and native_library.unavailable() is None else "pytorch"
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "draftwood": draftwood.__version__,
        "git_commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "backend": backend or automatic,
        "kernels": native_library.kernels()[0] if (backend or automatic) == "native" else None,
    }


def processor() -> str:
    """The CPU's name, with its family and model where the system tells: those of virtual machines share a name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8", "replace").partition("\n\n")[0].splitlines() if cpuinfo.is_file() else []
    info = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if name := info.get("model name"):
        kind = [f"{what} {info[key]}" for what, key in (("family", "cpu family"), ("model", "model")) if info.get(key)]
        return f"{name} ({', '.join(kind)})" if kind else name
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """The git commit of a checkout, with '+changes' when its package differs from it; None elsewhere."""
    root = Path(draftwood.__file__).parent.parent
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "HEAD")
        return head + ("+changes" if git("status", "--porcelain", "--", "draftwood") else "") if head else None
    except OSError:  # git is not installed
        return None


def contents(engine: Engine, methods: Iterable[Method]) -> dict[str, str]:
    """The fingerprints of models' weights, and of the learned files that methods draft with, by path.

    The embedded models come with the program, and models of a hub are known by their ids.
    """
    target, drafts = engine.names.get("target"), engine.names.get("draft", ())
    places = {str(name).removeprefix(THROUGH_TRANSFORMERS) for name in (target, *drafts) if name != "embedded"}
    home: Path | None = None if target == "embedded" else getattr(engine.target, "home", None)
    for method in methods:
        places.update(method.files)
        match method.drafts_from:
            case (str(kind), *options) if home is not None and options and set(options) == {None}:
                places.add(str(companion(home, "heads" if kind == "medusa" else kind).parent))
    return {place: whose for place in sorted(places) if (whose := content(place)) is not None}


def content(place: str | Path) -> str | None:
    """The fingerprint of a file, or of the weights in a directory; None where there are none."""
    files = _weights(Path(place).expanduser())
    return file_fingerprint(files) if files else None


def _weights(path: Path) -> list[Path]:
    if path.is_file():
        return list(gguf_parts.opened(path).parts) if path.suffix == ".gguf" else [path]
    learned = [file for kind in KINDS if (file := path / f"{kind}.safetensors").is_file()]
    return learned or sorted(file for file in path.glob("*") if file.suffix in WEIGHTS)
