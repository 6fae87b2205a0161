"""What commands need while they run: a bar, Ctrl-C as a wish, and the file that they write."""

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

FIRST_LINE, NEXT_LINE = 15, 30  # seconds between lines that tell of progress in a pipe
BAR, LINE = 1.0, 5.0  # seconds of silence before a bar on a terminal, and before a line elsewhere


@contextmanager
def progress(
    color: bool | None, label: str = "", total: float | None = None, percent: bool = False, live: bool = True
) -> Iterator[Callable[..., None]]:
    """A bar with a label; what is given takes changes of both: advance=, completed=, total=, description=.

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
    shown: dict[str, Any] = {"description": label, "total": total, "completed": 0}
    due = monotonic() + FIRST_LINE

    def update(advance: float = 0, **changes: Any) -> None:
        nonlocal due
        shown.update(changes)
        shown["completed"] += advance
        if monotonic() >= due:
            due = monotonic() + NEXT_LINE
            done, of = shown["completed"], shown["total"]
            part = f"{done / of:.0%}" if percent and of else f"{done:g} of {of:g}" if of else f"{done:g}"
            print(f"{part}: {shown['description']}", file=sys.stderr, flush=True)

    return update


@contextmanager
def waiting() -> Iterator[Callable[[str, float], None]]:
    """Says what keeps a command waiting: on a terminal in a bar from the first second on, else in lines after five.

    What is given takes what is done, and which share of it was done since it took that last.
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

        def told(what: str, share: float) -> None:
            nonlocal doing, done
            doing, done = what, share + (done if what == doing else 0)
            if update is not None:
                update(description=doing, completed=done)

        bar = colourful(sys.stderr, None)
        timer = Timer(BAR if bar else LINE, show)
        timer.daemon = True  # Ctrl-C waits for none
        timer.start()
        try:
            yield told
        finally:
            timer.cancel()
            timer.join()


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C as a wish: what is given says whether it came, so that what was done can be shown; a second ends all.

    Where SIGINT is ignored or handled by someone else already, that stays as it is.
    """
    wished = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal wished
        if wished:
            raise KeyboardInterrupt
        wished = True

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before: Any = signal.signal(signal.SIGINT, note) if ours else None
    try:
        yield lambda: wished
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


def hidden(option: str) -> None:
    """Start again without an option's value on the command line, where every user of the machine could read it."""
    arguments, kept = iter(sys.orig_argv[1:]), []
    value = None
    for argument in arguments:
        if argument == option:
            value = next(arguments, "")
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
        else:
            kept.append(argument)
    if value is None:
        os.environ.pop(variable(option), None)
        return
    os.execve(sys.executable, [sys.executable, *kept], {**os.environ, variable(option): value})


def check_writable(out: Path, flag: str = "--out") -> None:
    """Raise ConfigurationError where the file could not be written; its folders are made."""
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


def write_text(out: Path, text: str, flag: str = "--out") -> None:
    """Write a file, or leave what was there and raise ConfigurationError: the disk may be full."""
    try:
        with replacing(out) as partial:
            partial.write_text(text, "utf-8", errors="replace")
    except OSError as error:
        raise ConfigurationError(f"{flag} {out} was not written: {error.strerror}; make room or name another") from None
