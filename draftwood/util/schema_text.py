"""Entries of a registry, methods or tasks, as plain data: what they are, and their options with help and ranges."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


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
    defaults = entry.model_construct().model_dump(mode="json")
    required = {name for name, info in entry.model_fields.items() if info.is_required()}
    options = [
        {
            "name": name,
            "type": kind(about, schema.get("$defs", {})),
            "default": None if name in required else defaults[name],
            "required": name in required,
            "description": about.get("description", ""),
            **limits(about, schema.get("$defs", {})),
        }
        for name, about in schema["properties"].items()
    ]

    def ancestry(option: Mapping[str, Any]) -> int:
        """The number of classes between the entry and the one that first declared the option."""
        bases = enumerate(entry.__mro__)
        return max(place for place, base in bases if option["name"] in vars(base).get("__annotations__", ()))

    return sorted(options, key=ancestry)


def limits(entry: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The limits in a JSON schema that an input form needs: `choices`, or `minimum` and `maximum`."""
    if "$ref" in entry:
        return limits(definitions.get(entry["$ref"].rpartition("/")[2], {}), definitions)
    bounds = {key: entry[key] for key in ("minimum", "maximum") if key in entry}
    choices = [*entry.get("enum", ()), *([entry["const"]] if "const" in entry else ())]
    for part in (*entry.get("anyOf", ()), *entry.get("oneOf", ())):
        more = limits(part, definitions)
        choices += more.pop("choices", ())
        bounds |= more
    return bounds | ({"choices": choices} if choices else {})


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
