"""`draftwood methods`: the registry as a table, or one method's options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from draftwood.cli.groups import OutputOptions
from draftwood.cli.options import flag
from draftwood.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from draftwood.methods import Method


def methods(
    *, name: str | None = flag(None, "Show this method's options.", "NAME", argument=True), output: OutputOptions
) -> None:
    """List the decoding methods, or one method's options."""
    from draftwood.explain.terminal import as_json, console
    from draftwood.methods import METHODS

    if name is not None and name not in METHODS:
        raise ConfigurationError(f"there is no method {name!r}" + did_you_mean(name, METHODS))
    if output.json_:
        found = [describe(method) for method in METHODS.values()] if name is None else describe(METHODS[name])
        print(as_json(found))
        return
    out = console(output.color)
    if name is None:
        _show_all([describe(method) for method in METHODS.values()], out.print)
    else:
        _show_one(describe(METHODS[name]), out.print)


def describe(method: type[Method]) -> dict[str, Any]:
    """A method as plain data."""
    fewest, most = method.draft_models
    return {
        "name": method.name,
        "summary": method.summary,
        "about": inspect.getdoc(method) or "",
        "lossless": method.model_construct().lossless,
        "draft_models": [fewest, most],
        "options": _options(method),
    }


def _options(method: type[Method]) -> list[dict[str, Any]]:
    """Name, type, default and description of each option, the method's own ones first, those of all methods last."""
    schema = method.model_json_schema(mode="serialization")
    usual = method.model_construct().model_dump(mode="json")
    required = {name for name, info in method.model_fields.items() if info.is_required()}
    options = [
        {
            "name": name,
            "type": kind(entry, schema.get("$defs", {})),
            "default": None if name in required else usual[name],
            "required": name in required,
            "description": entry.get("description", ""),
        }
        for name, entry in schema["properties"].items()
    ]
    return sorted(options, key=lambda option: _ancestry(method, str(option["name"])))


def _ancestry(method: type[Method], option: str) -> int:
    """How many classes up an option was first declared."""
    return max(place for place, base in enumerate(method.__mro__) if option in vars(base).get("__annotations__", ()))


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
    above, below = entry.get("exclusiveMinimum"), entry.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f" {low:g}..{high:g}"
    signs = [("≥", low), (">", above), ("≤", high), ("<", below)]
    return ",".join(f" {sign} {value:g}" for sign, value in signs if value is not None)


def _drafts(fewest: int, most: int) -> str:
    return "none" if most == 0 else str(most) if fewest == most else f"{fewest} to {most}"


def _show_all(found: list[dict[str, Any]], show: Any) -> None:
    from draftwood.explain.terminal import simple_table

    made = simple_table()
    made.add_column("method", style="cyan", no_wrap=True)
    made.add_column("what it does", overflow="fold")
    made.add_column("loss-\nless", no_wrap=True)
    made.add_column("draft\nmodels", no_wrap=True)
    for entry in found:
        made.add_row(
            entry["name"], entry["summary"], "yes" if entry["lossless"] else "no", _drafts(*entry["draft_models"])
        )
    show(made)
    show()
    show("draftwood methods NAME shows a method's options.", markup=False)


def _show_one(entry: dict[str, Any], show: Any) -> None:
    from draftwood.explain.terminal import SEPARATOR, option_text, simple_table

    show(f"[bold cyan]{entry['name']}[/]: {entry['summary']}")
    show(entry["about"], markup=False)
    facts = ["lossless" if entry["lossless"] else "lossy", f"draft models: {_drafts(*entry['draft_models'])}"]
    show(SEPARATOR.join(facts), markup=False)
    show()
    made = simple_table()
    made.add_column("option", style="cyan", no_wrap=True)
    made.add_column("type", overflow="fold")
    made.add_column("default", overflow="fold")
    made.add_column("what it means", overflow="fold", min_width=20)
    for option in entry["options"]:
        default = "required" if option["required"] else option_text(option["default"])
        made.add_row(option["name"], option["type"], default, option["description"])
    show(made)
    show()
    example = entry["options"][0]
    usage = f"draftwood generate PROMPT --method {entry['name']}"
    show(f"{usage} --set {example['name']}={option_text(example['default'])}", markup=False)
