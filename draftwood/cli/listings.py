"""`draftwood methods` and `draftwood tasks`: a registry as a table, or the options of one of its entries."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from draftwood.cli.groups import OutputOptions
from draftwood.cli.options import flag
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.explain.terminal import SEPARATOR, option_text, simple_table

if TYPE_CHECKING:
    from rich.table import Table


def methods(
    *, name: str | None = flag(None, "Show this method's options.", "NAME", argument=True), output: OutputOptions
) -> None:
    """List the decoding methods, or one method's options."""
    from draftwood.methods import METHODS

    found = _found("method", METHODS, name)
    if name is None:
        rows = [
            (one["name"], one["summary"], "yes" if one["lossless"] else "no", _drafts(*one["draft_models"]))
            for one in found
        ]
        table = _table("method", "what it does", "loss-\nless", "draft\nmodels", rows=rows)
        output.give(found, table, "", "draftwood methods NAME shows a method's options.")
        return
    (one,) = found
    first = one["options"][0]
    facts = ["lossless" if one["lossless"] else "lossy", f"draft models: {_drafts(*one['draft_models'])}"]
    usage = f"draftwood generate PROMPT --method {name} --set {first['name']}={option_text(first['default'])}"
    output.give(one, *_details(one, SEPARATOR.join(facts)), "", usage, wrap=True)


def tasks(
    *, name: str | None = flag(None, "Show this task's options.", "NAME", argument=True), output: OutputOptions
) -> None:
    """List the tasks of `draftwood eval`, or one task's options."""
    from draftwood.eval.tasks import TASKS

    found = _found("task", TASKS, name)
    if name is None:
        rows = [(one["name"], one["summary"], one["metric"]) for one in found]
        table = _table("task", "what it asks", "score", rows=rows)
        output.give(found, table, "", "draftwood tasks NAME shows a task's options.")
        return
    code = ["runs programs that the model wrote: needs --run-code"] if found[0]["runs_code"] else []
    output.give(found[0], *_details(found[0], *code), wrap=True)


def _found(what: str, registry: Mapping[str, type[Any]], name: str | None) -> list[dict[str, Any]]:
    """One entry of a registry, or all of them."""
    if name is not None and name not in registry:
        raise ConfigurationError(f"there is no {what} {name!r}" + did_you_mean(name, registry))
    return [describe(registry[each]) for each in ([name] if name else registry)]


def describe(entry: type[Any]) -> dict[str, Any]:
    """A method or a task as plain data."""
    facts: dict[str, Any] = {"name": entry.name, "summary": entry.summary, "about": inspect.getdoc(entry) or ""}
    if hasattr(entry, "draft_models"):
        facts |= {"lossless": entry.model_construct().lossless, "draft_models": list(entry.draft_models)}
    else:
        facts |= {"metric": entry.metric, "runs_code": entry.runs_code}
    return {**facts, "options": _options(entry)}


def _options(entry: type[Any]) -> list[dict[str, Any]]:
    """Name, type, default and description of each option, its own ones first, those of all its kind last."""
    schema = entry.model_json_schema(mode="serialization")
    usual = entry.model_construct().model_dump(mode="json")
    required = {name for name, info in entry.model_fields.items() if info.is_required()}
    options = [
        {
            "name": name,
            "type": kind(about, schema.get("$defs", {})),
            "default": None if name in required else usual[name],
            "required": name in required,
            "description": about.get("description", ""),
        }
        for name, about in schema["properties"].items()
    ]

    def ancestry(option: Mapping[str, Any]) -> int:
        """How many classes up an option was first declared."""
        bases = enumerate(entry.__mro__)
        return max(place for place, base in bases if option["name"] in vars(base).get("__annotations__", ()))

    return sorted(options, key=ancestry)


def kind(entry: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """A JSON schema in words that fit a table: 'integer 0..64', 'rejection or coupled'."""
    if "$ref" in entry:
        return kind(definitions.get(entry["$ref"].rpartition("/")[2], {}), definitions)
    if "enum" in entry:
        return " or ".join(map(str, entry["enum"]))
    if "const" in entry:
        return str(entry["const"])
    for choice in ("anyOf", "oneOf"):
        if choice in entry:
            return " or ".join(kind(part, definitions) for part in entry[choice])
    if entry.get("type") == "array":
        return f"{kind(entry.get('items', {}), definitions)}, ..."
    name = str(entry.get("type", "value"))
    return {"boolean": "true or false", "string": "text"}.get(name, name) + _bounds(entry)


def _bounds(entry: Mapping[str, Any]) -> str:
    low, high = entry.get("minimum"), entry.get("maximum")
    if low is not None and high is not None:
        return f" {low:g}..{high:g}"
    signs = [("≥", low), (">", entry.get("exclusiveMinimum")), ("≤", high), ("<", entry.get("exclusiveMaximum"))]
    return ",".join(f" {sign} {value:g}" for sign, value in signs if value is not None)


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
    return [head, entry["about"], *facts, "", _table("option", "type", "default", "what it means", rows=rows, words=20)]
