"""The file that a command writes: checked before the work, and written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from draftwood.errors import ConfigurationError


def check_writable(out: Path, flag: str = "--out") -> None:
    """Raise ConfigurationError where the file could not be written; its folders are made."""
    if out.is_dir():
        raise ConfigurationError(f"{flag} is {out}, which is a directory; name a file")
    trial = _partial(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        trial.touch()
        if trial != out:
            trial.unlink()
    except OSError as error:
        raise ConfigurationError(
            f"{flag} is {out}, which cannot be written: {error.strerror}; name another file"
        ) from None


def write_text(out: Path, text: str, flag: str = "--out") -> None:
    """Write a file, or leave what was there and raise ConfigurationError: the disk may be full."""
    partial = _partial(out)
    try:
        partial.write_text(text, "utf-8", errors="replace")
        partial.replace(out)
    except OSError as error:
        if partial != out:
            partial.unlink(missing_ok=True)
        raise ConfigurationError(f"{flag} {out} was not written: {error.strerror}; make room or name another") from None


def _partial(out: Path) -> Path:
    """Where a file is written first; a device or a pipe is written itself."""
    return out if out.exists() and not out.is_file() else out.with_name(out.name + ".partial")
