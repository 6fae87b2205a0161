"""A bar on stderr for work whose amount is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def advancing(label: str, total: int, color: bool | None, percent: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar behind `label`, where stderr is a terminal; what is given is told how many of `total` were done now."""
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
    done = TaskProgressColumn() if percent else MofNCompleteColumn()
    columns = (TextColumn(label), BarColumn(30), done, TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.update(task, advance=count)
