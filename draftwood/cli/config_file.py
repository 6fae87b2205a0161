"""draftwood.toml: values of options that are given neither on the command line nor in the environment.

Two files count: the user's `$XDG_CONFIG_HOME/draftwood/config.toml` (default ~/.config), and above it `draftwood.toml`
of the working directory. A key is an option's name without its dashes in front: at the top for every command that has
the option, in a table such as [generate] or [train.eesd] for one command.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.util.safe_parsing import read_text

PROJECT = Path("draftwood.toml")
NEVER = ("help", "run-code")  # a file that lies somewhere does not decide that code is run

CommandOptions = Mapping[str, Mapping[str, Any]]  # command, such as "train eesd" -> name of an option -> its parameter


def files() -> list[Path]:
    """The files that are there, the weaker one first."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [path for path in (home / "draftwood" / "config.toml", PROJECT) if path.is_file()]


@dataclass(slots=True)
class Defaults:
    """Defaults of commands that files of settings hold."""

    values: dict[str, Any] = field(default_factory=dict)  # nested by command, as click takes it, by parameter
    homes: dict[tuple[str, str], Path] = field(default_factory=dict)  # (command, parameter) -> file


def read(paths: Iterable[Path], options: CommandOptions) -> Defaults:
    """All files, later ones above earlier ones; ConfigurationError names the file and a key that is not known."""
    defaults = Defaults()
    for path in paths:
        # what is for one command comes after what is for all
        for table, key, value in sorted(_entries(_toml(path)), key=lambda entry: bool(entry[0])):
            command = f"{table} method" if f"{table} method" in options else table  # [tune] is for `tune method`
            if command and command not in options:
                hint = did_you_mean(command, options)
                raise ConfigurationError(f"{path} has a table for {command!r}, but there is no such command{hint}")
            name = key.replace("_", "-")
            owners = [owner for owner in ([command] if command else options) if name in options[owner]]
            if not owners or name in NEVER:
                known = {each for owner in ([command] if command else options) for each in options[owner]}
                hint = did_you_mean(name, known.difference(NEVER))
                there = f"no option --{name}" + f" of {command}" * bool(command)
                raise ConfigurationError(
                    f"{path} has the key {key!r}, but there is {'no key of this name' if owners else there}"
                    + (hint if hint.startswith(" (did") else "")
                )
            for owner in owners:
                parameter = options[owner][name]
                table_values = defaults.values
                for part in owner.split():
                    table_values = table_values.setdefault(part, {})
                many = parameter.multiple and not isinstance(value, list)
                table_values[parameter.name] = [value] if many else value
                defaults.homes[owner, parameter.name] = path
    return defaults


def _entries(content: Mapping[str, Any], table: str = "") -> Iterator[tuple[str, str, Any]]:
    """(table or nothing, key, value) of everything in a file."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _entries(value, f"{table} {key}".strip())
        else:
            yield table, key, value


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
