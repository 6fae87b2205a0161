"""A bar on stderr, where that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(
    color: bool | None, label: str = "", total: float | None = None, percent: bool = False, live: bool = True
) -> Iterator[Callable[..., None]]:
    """A bar with a label; what is given takes changes of both: advance=, completed=, total=, description=.

    Where not `live`, the bar is redrawn by changes only, so that it costs what is timed between them nothing.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    from draftwood.explain.terminal import console

    err = console(color, stderr=True)
    if not err.is_terminal:
        yield lambda **changes: None
        return
    done = TaskProgressColumn() if percent else MofNCompleteColumn()
    columns = (BarColumn(24), done, TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, auto_refresh=live, transient=True) as bar:
        task = bar.add_task(label, total=total)

        def update(**changes: Any) -> None:
            bar.update(task, refresh=not live, **changes)

        yield update
