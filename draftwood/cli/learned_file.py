"""The file that a depth controller reads: whether it can be written, and named as depth=CONTROLLER:PATH."""

from __future__ import annotations

from pathlib import Path

from draftwood.errors import ConfigurationError

SUFFIX = ".safetensors"


def check_name(out: Path, controller: str) -> None:
    """Raise ConfigurationError where depth=CONTROLLER:PATH could not name the file."""
    if out.suffix != SUFFIX:
        raise ConfigurationError(f"--out is {out}, but {controller} reads a {SUFFIX} file")
    if any(sign in str(out) for sign in ",="):
        raise ConfigurationError(
            f"--out is {out}, but depth={controller}:PATH takes a path without commas and =; rename it"
        )


def check_writable(out: Path) -> None:
    """Raise OSError or ConfigurationError where the file could not be written; its folders are made."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir():
        raise ConfigurationError(f"--out is {out}, which is a directory; name a file")
    trial = out.with_name(out.name + ".partial")
    trial.touch()
    trial.unlink()
