"""Helpers of running commands: progress bars, Ctrl-C as a request to finish early, and writing the result's file."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Timer
from time import monotonic
from types import FrameType
from typing import Any

from draftwood.cli.options import variable
from draftwood.errors import ConfigurationError
from draftwood.util.files import partial_path, replacing

FIRST_LINE_SECONDS, NEXT_LINE_SECONDS = 15, 30  # between lines of progress where there is no terminal
BAR_DELAY, LINE_DELAY = 0.5, 5.0  # seconds of silence before a bar on a terminal, and before a line elsewhere


@contextmanager
def progress(
    color: bool | None, label: str = "", total: float | None = None, percent: bool = False, live: bool = True
) -> Iterator[Callable[..., None]]:
    """A progress bar with a label; yields a function that updates it: advance=, completed=, total=, description=.

    Where not `live`, the bar is redrawn by changes only, so that it costs what is timed between them nothing. Where
    standard error is no terminal, lines take the bar's place: the first after a quarter of a minute, then two a minute.
    """
    from rich import progress as rich

    from draftwood.explain.terminal import console

    err = console(color, stderr=True)
    if not err.is_terminal:
        yield _lines(label, total, percent)
        return
    done: rich.ProgressColumn = rich.TaskProgressColumn() if percent else rich.MofNCompleteColumn()
    columns = (rich.BarColumn(24), done, rich.TimeRemainingColumn(), rich.TextColumn("{task.description}"))
    with rich.Progress(*columns, console=err, auto_refresh=live, transient=True) as bar:
        task = bar.add_task(label, total=total)

        def update(**changes: Any) -> None:
            bar.update(task, refresh=not live, **changes)

        yield update


def _lines(label: str, total: float | None, percent: bool) -> Callable[..., None]:
    """An updater that stands for a bar in a pipe: it takes the same changes and prints a line now and then."""
    state: dict[str, Any] = {"description": label, "total": total, "completed": 0}
    due = monotonic() + FIRST_LINE_SECONDS

    def update(advance: float = 0, **changes: Any) -> None:
        nonlocal due
        state.update(changes)
        state["completed"] += advance
        if monotonic() >= due:
            due = monotonic() + NEXT_LINE_SECONDS
            done, of = state["completed"], state["total"]
            part = f"{done / of:.0%}" if percent and of else f"{done:g} of {of:g}" if of else f"{done:g}"
            print(f"{part}: {state['description']}", file=sys.stderr, flush=True)

    return update


@contextmanager
def waiting() -> Iterator[Callable[[str, float], None]]:
    """Show what a command is waiting for: on a terminal in a bar after half a second, elsewhere in lines after five,
    then one for each step that begins.

    Yields on_progress(step, share): the step that is done now, and the share of it done since the last call.
    """
    from draftwood.explain.terminal import colourful

    with ExitStack() as stack:
        doing, done = "loading the models", 0.0
        update: Callable[..., None] | None = None

        def show() -> None:
            nonlocal update
            if not bar:
                print(f"{doing} ...", file=sys.stderr, flush=True)
            update = stack.enter_context(progress(None, doing, 1.0, percent=True))
            update(completed=done)

        def on_progress(what: str, share: float) -> None:
            nonlocal doing, done
            changed = what != doing
            doing, done = what, share + (0 if changed else done)
            if update is not None:
                if changed and not bar:
                    print(f"{doing} ...", file=sys.stderr, flush=True)
                update(description=doing, completed=done)

        bar = colourful(sys.stderr, None)
        timer = Timer(BAR_DELAY if bar else LINE_DELAY, show)
        timer.daemon = True  # Ctrl-C waits for none
        timer.start()
        try:
            yield on_progress
        finally:
            timer.cancel()
            timer.join()


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C was pressed, so that results so far can be shown; a second ends all.

    Where SIGINT is ignored or handled by someone else already, that stays as it is.
    """
    interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before: Any = signal.signal(signal.SIGINT, note) if ours else None
    try:
        yield lambda: interrupted
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


def hidden(*options: str) -> None:
    """Start again without the options' values on the command line, where every user of the machine could read them."""
    arguments, kept = iter(sys.orig_argv[1:]), []
    values = {}
    for argument in arguments:
        option, joined, value = argument.partition("=")
        if option in options:
            values[variable(option)] = value if joined else next(arguments, "")
        else:
            kept.append(argument)
    if values:
        os.execve(sys.executable, [sys.executable, *kept], {**os.environ, **values})
    for option in options:
        os.environ.pop(variable(option), None)


def check_writable(out: Path | None, flag: str = "--out") -> None:
    """Raise ConfigurationError where the file, if any, could not be written; its folders are made."""
    if out is None:
        return
    if out.is_dir():
        raise ConfigurationError(f"{flag} is {out}, which is a directory; name a file")
    trial = partial_path(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        trial.touch()
        if trial != out:
            trial.unlink()
    except OSError as error:
        raise ConfigurationError(
            f"{flag} is {out}, which cannot be written: {error.strerror}; name another file"
        ) from None


def check_directory(out: Path) -> None:
    """Raise ConfigurationError where --out could not become a directory with files of ours; nothing is made."""
    place = next(each for each in (out, *out.absolute().parents) if os.path.exists(each))
    if not place.is_dir():
        what = "which" if place == out else f"but {place}"
        raise ConfigurationError(f"--out is {out}, {what} is a file; name a directory")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--out is {out}, but {place} cannot be written; name another directory")


def write_text(out: Path, text: str, flag: str = "--out") -> None:
    """Write a file, or leave what was there and raise ConfigurationError: the disk may be full."""
    try:
        with replacing(out) as partial:
            partial.write_text(text, "utf-8", errors="replace")
    except OSError as error:
        raise ConfigurationError(f"{flag} {out} was not written: {error.strerror}; make room or name another") from None
