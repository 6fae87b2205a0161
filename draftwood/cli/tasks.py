"""`draftwood tasks`: what `draftwood eval` can measure methods on, or one task's options."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from draftwood.cli.groups import OutputOptions
from draftwood.cli.methods import kind
from draftwood.cli.options import flag
from draftwood.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from draftwood.eval.tasks import Task


def tasks(
    *, name: str | None = flag(None, "Show this task's options.", "NAME", argument=True), output: OutputOptions
) -> None:
    """List the tasks of `draftwood eval`, or one task's options."""
    from draftwood.eval.tasks import TASKS
    from draftwood.explain.terminal import as_json, console

    if name is not None and name not in TASKS:
        raise ConfigurationError(f"there is no task {name!r}" + did_you_mean(name, TASKS))
    found = [describe(TASKS[each]) for each in ([name] if name else TASKS)]
    if output.json_:
        print(as_json(found[0] if name else found))
        return
    out = console(output.color)
    if name is not None:
        _show_one(found[0], out.print)
        return
    _table(
        ("task", "what it asks", "score"), [(one["name"], one["summary"], one["metric"]) for one in found], out.print
    )
    out.print("draftwood tasks NAME shows a task's options.", markup=False)


def describe(task: type[Task]) -> dict[str, Any]:
    """A task as plain data."""
    schema = task.model_json_schema()
    options = [
        {
            "name": name,
            "type": kind(entry, schema.get("$defs", {})),
            "default": entry.get("default"),
            "description": entry.get("description", ""),
        }
        for name, entry in schema["properties"].items()
    ]
    return {
        "name": task.name,
        "summary": task.summary,
        "about": inspect.getdoc(task) or "",
        "metric": task.metric,
        "runs_code": task.runs_code,
        "options": options,
    }


def _show_one(entry: dict[str, Any], show: Any) -> None:
    from draftwood.explain.terminal import option_text

    show(f"[bold cyan]{entry['name']}[/]: {entry['summary']}")
    show(entry["about"], markup=False)
    if entry["runs_code"]:
        show("runs programs that the model wrote: needs --run-code", markup=False)
    show()
    rows = [(one["name"], one["type"], option_text(one["default"]), one["description"]) for one in entry["options"]]
    _table(("option", "type", "default", "what it means"), rows, show)


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], show: Any) -> None:
    from draftwood.explain.terminal import simple_table

    made = simple_table()
    made.add_column(columns[0], style="cyan", no_wrap=True)
    for column in columns[1:]:
        made.add_column(column)
    for row in rows:
        made.add_row(*row)
    show(made)
    show()
