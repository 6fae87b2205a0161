"""`draftwood methods` and `draftwood tasks`: a registry as a table, or the options of one of its entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from draftwood.cli.groups import OutputOptions
from draftwood.cli.options import flag
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.explain.terminal import SEPARATOR, option_text, simple_table
from draftwood.util.schema_text import describe

if TYPE_CHECKING:
    from rich.table import Table


def methods(
    *, name: str | None = flag(None, "Show this method's options.", "NAME", argument=True), output: OutputOptions
) -> None:
    """List the decoding methods, or one method's options."""
    from draftwood.methods import METHODS

    entries = _entries("method", METHODS, name)
    if name is None:
        rows = [
            (one["name"], one["summary"], "yes" if one["lossless"] else "no", _drafts(*one["draft_models"]))
            for one in entries
        ]
        table = _table("method", "what it does", "loss-\nless", "draft\nmodels", rows=rows)
        output.give(entries, table, "", "draftwood methods NAME shows a method's options.")
        return
    (one,) = entries
    first = next((option for option in one["options"] if option["default"] is not None), one["options"][0])
    facts = ["lossless" if one["lossless"] else "lossy", f"draft models: {_drafts(*one['draft_models'])}"]
    usage = f"draftwood generate PROMPT --method {name} --set {first['name']}={option_text(first['default'])}"
    output.give(one, *_details(one, SEPARATOR.join(facts)), "", usage, wrap=True)


def tasks(
    *, name: str | None = flag(None, "Show this task's options.", "NAME", argument=True), output: OutputOptions
) -> None:
    """List the tasks of `draftwood eval`, or one task's options."""
    from draftwood.eval.tasks import TASKS

    entries = _entries("task", TASKS, name)
    if name is None:
        rows = [(one["name"], one["summary"], one["metric"]) for one in entries]
        table = _table("task", "what it asks", "score", rows=rows)
        output.give(entries, table, "", "draftwood tasks NAME shows a task's options.")
        return
    code = ["runs programs that the model wrote: needs --run-code"] if entries[0]["runs_code"] else []
    output.give(entries[0], *_details(entries[0], *code), wrap=True)


def _entries(what: str, registry: Mapping[str, type[Any]], name: str | None) -> list[dict[str, Any]]:
    """One entry of a registry, or all of them."""
    if name is not None and name not in registry:
        raise ConfigurationError(f"there is no {what} {name!r}" + did_you_mean(name, registry))
    return [describe(registry[each]) for each in ([name] if name else registry)]


def _drafts(fewest: int, most: int) -> str:
    return "none" if most == 0 else str(most) if fewest == most else f"{fewest} to {most}"


def _table(*headings: str, rows: Sequence[Sequence[str]], words: int = 0) -> Table:
    made = simple_table(*headings, rows=rows)
    made.columns[0].style, made.columns[0].no_wrap = "cyan", True
    made.columns[-1].min_width = words
    return made


def _details(entry: Mapping[str, Any], *facts: str) -> list[Any]:
    """One entry: its name, what it is, and its options."""
    from rich.text import Text

    rows = [
        (
            option["name"],
            option["type"],
            "required" if option["required"] else option_text(option["default"]),
            option["description"],
        )
        for option in entry["options"]
    ]
    head = Text.assemble((entry["name"], "bold cyan"), f": {entry['summary']}")
    about = "\n\n".join(" ".join(part.split()) for part in entry["about"].split("\n\n"))
    return [head, about, *facts, "", _table("option", "type", "default", "what it means", rows=rows, words=20)]
