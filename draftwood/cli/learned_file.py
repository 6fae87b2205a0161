"""The file that a depth controller reads: whether depth=CONTROLLER:PATH can name it."""

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
