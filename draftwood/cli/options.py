"""Command-line options from pydantic models: each field is an option, the same one in every command that has the model.

A command is a function. A parameter that is a pydantic model becomes one option for each field; one whose default is
made by `flag` becomes an option of its own, and its constraints are checked alike. `expanded` makes of the function
what typer reads. Values come from the command line, else from DRAFTWOOD_<OPTION>, else from draftwood.toml
(config_file.py), else from the defaults. Imports no torch.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from draftwood.errors import ConfigurationError
from draftwood.util import config

METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


class OptionGroup(BaseModel):
    """Options that commands share; `title` of the configuration is their panel on the help page."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    left_out: ClassVar[frozenset[str]] = frozenset()  # fields of the bases that are no options, but have their defaults

    def apply(self) -> None:
        """Apply the options to the process before the command runs; most groups do nothing."""


def flag(
    default: Any,
    help: str,
    metavar: str | None = None,
    names: tuple[str, ...] = (),
    panel: str | None = None,
    usual: str | None = None,
    argument: bool = False,
    **constraints: Any,
) -> Any:
    """An option (or argument) of a command, or of an OptionGroup: `...` as the default makes it required.

    `names` replace --name-of-the-field, `usual` is what the help page gives as the default, and `constraints` are
    those of `pydantic.Field`, such as ge=1.
    """
    about: dict[str, Any] = {"metavar": metavar, "names": names, "panel": panel, "usual": usual, "argument": argument}
    return Field(default, description=help, json_schema_extra=about, **constraints)


def expanded(function: Callable[..., None], always: Mapping[str, type[OptionGroup]]) -> Callable[..., None]:
    """A command for typer: `function` with options for its parameters. Groups in `always` are applied to all commands.

    Raises ConfigurationError when called with a value that a model refuses.
    """
    groups: dict[str, type[BaseModel]] = {}
    own: dict[str, Any] = {}
    parameters = [inspect.Parameter("typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind, default = parameter.annotation, parameter.default
        if isinstance(default, FieldInfo):
            own[name] = (kind, default)
            parameters.append(_parameter(name, FieldInfo.from_annotated_attribute(kind, default), None, {}))
            continue
        groups[name] = kind
        defaults = {} if default is inspect.Parameter.empty else default.model_dump(exclude_unset=True)
        parameters += _parameters(kind, defaults)
    settings = create_model("Settings", **own)
    for kind in always.values():
        parameters += _parameters(kind, {})

    def call(typer_context: Any, **values: Any) -> None:
        made = {name: _made(kind, values, typer_context) for name, kind in {**groups, **always}.items()}
        for group in made.values():
            if isinstance(group, OptionGroup):
                group.apply()
        checked = _made(settings, values, typer_context)
        function(**{name: made[name] for name in groups}, **{name: getattr(checked, name) for name in own})

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__doc__ = function.__doc__
    return call


def _parameters(kind: type[BaseModel], defaults: Mapping[str, Any]) -> list[inspect.Parameter]:
    """The options of a model, some with other defaults; each in the panel of the class that declares it."""
    made = []
    for name, field in kind.model_fields.items():
        if name not in getattr(kind, "left_out", ()):
            owner: Any = next(base for base in kind.__mro__ if name in vars(base).get("__annotations__", ()))
            panel = owner.model_config.get("title") or kind.model_config.get("title")
            made.append(_parameter(name, field, panel, defaults))
    return made


def _parameter(name: str, field: FieldInfo, panel: str | None, defaults: Mapping[str, Any]) -> inspect.Parameter:
    """The option of a field, as typer reads it from a signature."""
    extra = field.json_schema_extra
    about: Mapping[str, Any] = extra if isinstance(extra, dict) else {}
    type_, choices, metavar = _plain(field.annotation)
    default = defaults.get(name, ... if field.is_required() else field.get_default(call_default_factory=True))
    if default in ([], {}):
        default = None
    if type_ is str and isinstance(default, tuple):
        default = ",".join(map(str, default))
    shows_default: bool | str = about.get("usual") or not (default is None or default is False)
    more: dict[str, Any] = {
        "help": field.description,
        "metavar": "" if bool in (type_, *get_args(type_)) else about.get("metavar") or metavar,
        "show_default": shows_default,
        "rich_help_panel": about.get("panel") or panel,
    }
    if choices:
        more["autocompletion"] = lambda incomplete: [word for word in choices if word.startswith(incomplete)]
    info: Any
    if about.get("argument"):
        more.pop("rich_help_panel")
        info = typer.Argument(**more)
    else:
        names = about.get("names") or (_option(name, field),)
        if bool in (type_, *get_args(type_)) and default is not False and "/" not in names[0]:
            names = (f"{names[0]}/--no-{names[0].removeprefix('--')}",)
        info = typer.Option(*names, envvar=variable(names[0]), show_envvar=False, **more)
    absent = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=absent, annotation=Annotated[type_, info])


def _plain(annotation: Any) -> tuple[Any, tuple[str, ...], str]:
    """The type that typer parses for a field (pydantic checks the rest), the words to choose from, and a metavar."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        inner = next(part for part in get_args(annotation) if part is not type(None))
        type_, choices, metavar = _plain(inner)
        return type_ | None, choices, metavar
    if get_origin(annotation) is Literal:
        choices = tuple(map(str, get_args(annotation)))
        return str, choices, "|".join(choices)
    if get_origin(annotation) is dict:
        return list[str] | None, (), "ID=X" if get_args(annotation)[0] is int else "KEY=VALUE"
    if get_origin(annotation) is tuple and get_args(annotation)[1:] == (...,):
        return str, (), "A,B,..."
    if get_origin(annotation) is list:
        type_, choices, metavar = _plain(get_args(annotation)[0])
        return list[type_], choices, metavar  # type: ignore[valid-type]
    return annotation, (), METAVARS.get(annotation, "")


def _made(kind: type[BaseModel], values: Mapping[str, Any], context: Any) -> BaseModel:
    """The model of what was given; ConfigurationError with one sentence that names the flag."""
    given: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        value = values.get(name)
        if getattr(kind, "keeps_unset", False) and _is_default(context, name):
            continue
        if get_origin(field.annotation) is dict:
            value = config.assignments(value or (), _option(name, field))
        if value is not None or field.is_required():
            given[name] = value
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first, message = error.errors()[0], config.reason(error)
        if first["loc"]:  # else options do not go together
            name = str(first["loc"][0])
            message = f"--{name.replace('_', '-')} is {first['input']}, but {message}{origin(context, name)}"
        raise ConfigurationError(message) from None


def _option(name: str, field: FieldInfo) -> str:
    """--top-k of top_k; a mapping of options is given as --set KEY=VALUE."""
    options = get_origin(field.annotation) is dict and get_args(field.annotation)[0] is str
    return "--set" if options else f"--{name.replace('_', '-')}"


def variable(option: str) -> str:
    """The environment variable of an option: DRAFTWOOD_TOP_K of --top-k."""
    return "DRAFTWOOD_" + option.partition("/")[0].removeprefix("--").replace("-", "_").upper()


def _is_default(context: Any, name: str) -> bool:
    return getattr(context.get_parameter_source(name), "name", "") == "DEFAULT"


def origin(context: Any, name: str) -> str:
    """' (from DRAFTWOOD_SEED)' or ' (from draftwood.toml)', where a value was not given on the command line."""
    source = getattr(context.get_parameter_source(name), "name", "")
    if source == "ENVIRONMENT":
        return f" (from {variable(name)})"
    command = context.command_path.partition(" ")[2]
    return f" (from {context.obj.homes[command, name]})" if source == "DEFAULT_MAP" else ""
