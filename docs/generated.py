"""Parts of the pages that are made from the package, so that they cannot go stale: options, tasks, commands.

A page asks for one with a comment on a line of its own: `<!-- generated: methods speculative mcsd -->`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping

import typer
from pydantic import BaseModel
from typer.cli import get_docs_for_click

from draftwood import Metrics, SamplingParams, load
from draftwood.cli.main import COMMANDS, made
from draftwood.depth import CONTROLLERS
from draftwood.eval.tasks import TASKS
from draftwood.explain.tree import FATES
from draftwood.methods import METHODS
from draftwood.util.schema_text import kind


def fill(page: str) -> str:
    """The page with its generated parts in place."""
    marker = re.compile(r"^<!-- generated: (\w+)((?: [\w-]+)*) -->$", re.MULTILINE)
    return marker.sub(lambda match: PARTS[match[1]](*match[2].split()), page)


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def options(model: type[BaseModel]) -> str:
    """The fields of a pydantic model: name, type, default, meaning."""
    schema = model.model_json_schema(mode="serialization")
    rows = [
        (f"`{name}`", kind(entry, schema.get("$defs", {})), _default(model, name), entry.get("description", ""))
        for name, entry in schema["properties"].items()
    ]
    return table(("option", "type", "default", "meaning"), rows) if rows else "No options."


def _default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, tuple | list):
        value = ",".join(map(str, value))
    return f"`{'null' if value is None else str(value).lower() if isinstance(value, bool) else value}`"


def _about(kind: type) -> str:
    """The class's own docstring."""
    return inspect.cleandoc(kind.__doc__ or "") if "__doc__" in vars(kind) else ""


def methods(*names: str) -> str:
    parts = []
    for name in names:
        method = METHODS[name]
        fewest, most = method.draft_models
        models = "no draft model" if not most else f"{fewest} to {most} draft models" if most > 1 else "one draft model"
        facts = f"{'Lossless' if method.model_construct().lossless else 'Lossy'} with these defaults; {models}."
        parts += [f"### `{name}`", f"{method.summary[:1].upper()}{method.summary[1:]}. {facts}", _about(method)]
        parts.append(options(method))
    return "\n\n".join(parts)


def controllers() -> str:
    parts = []
    for name, settings in CONTROLLERS.items():
        parts += [f"### `{name}`", _about(settings), options(settings)]
    return "\n\n".join(filter(None, parts))


def metrics() -> str:
    """The ratios of `Metrics`, each with the first paragraph of its docstring."""
    found = {name: value for name, value in vars(Metrics).items() if isinstance(value, property)}
    rows = [
        (f"`{name}`", inspect.getdoc(value).partition("\n\n")[0].replace("\n", " ")) for name, value in found.items()
    ]
    return table(("metric", "meaning"), rows)


def rounds() -> str:
    """The page of an answer of the embedded pair, in a frame."""
    answer = load().explain(
        "Story: In Corfe there lived a sailor called",
        method={"name": "mcsd", "tree": [3, 2, 1]},
        sampling={"temperature": 0.7},
        seed=1,
        max_new_tokens=24,
    )
    return answer._repr_html_().replace("\n", "&#10;")  # a blank line would end the HTML


def tasks() -> str:
    rows = [(f"`{name}`", task.summary, task.metric) for name, task in TASKS.items()]
    return table(("task", "what it asks", "score"), rows)


def commands() -> str:
    """Every command with its flags, as typer documents them."""
    parts = []
    for name in COMMANDS:
        group, _, each = f" {name}".rpartition(" ")
        command = made(name)
        context = typer.Context(command, info_name=each)
        parts.append(get_docs_for_click(obj=command, ctx=context, indent=1, name=each, call_prefix=f"draftwood{group}"))
    return re.sub(r"\[/?[a-z][a-z ]*\]", "", "\n\n".join(parts))  # without rich's colours


PARTS: Mapping[str, Callable[..., str]] = {
    "methods": methods,
    "controllers": controllers,
    "sampling": lambda: options(SamplingParams),
    "fates": lambda: table(("fate", "meaning"), [(name, fate.meaning) for name, fate in FATES.items()]),
    "metrics": metrics,
    "rounds": rounds,
    "tasks": tasks,
    "commands": commands,
}
