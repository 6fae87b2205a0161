"""How commands end: bad input is one sentence and exit code 2, Ctrl-C is 130."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

import typer

from draftwood.errors import ConfigurationError, DraftwoodError
from draftwood.util.native_library import unavailable


def started(app: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process; returns its exit code."""
    try:
        return app(arguments, prog_name=f"python -m {name}", standalone_mode=False) or 0
    except DraftwoodError as error:
        print(f"error: {error}", file=sys.stderr)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        if not hasattr(error, "format_message"):  # a bad flag, which typer has words for
            raise
        print(f"error: {error.format_message()}", file=sys.stderr)
    return 2


def check_kernels() -> None:
    """Raise ConfigurationError where there are native kernels that cannot be used: PyTorch's would be measured."""
    if find_spec("draftwood_native") and (reason := unavailable()):
        raise ConfigurationError(f"PyTorch's kernels would be measured: {reason}")
