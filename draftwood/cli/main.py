"""`draftwood`: finds the sub-command, turns every foreseen failure into one sentence, and sets the exit code.

Importing this module, and `draftwood --help`, import no torch: a command's module is imported when it is called for
and imports what it needs when it runs.

Exit codes: 0 done, 1 the reader of the pipe went away, or what was asked for is done with failures (certify, batch),
2 a bad flag or a DraftwoodError, 130 interrupted.
"""

from __future__ import annotations

import ast
import atexit
import errno
import gc
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from draftwood import __version__
from draftwood.cli.config_file import Defaults, files, read
from draftwood.errors import ConfigurationError, DraftwoodError, did_you_mean

BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 1

HOME = "draftwood.cli."
COMMANDS = {  # name -> module:function below HOME, in the order of the help page
    "generate": "generate:generate",
    "compare": "compare:compare",
    "bench": "bench:bench",
    "explain": "generate:explain",
    "chat": "chat:chat",
    "serve": "serve:serve",
    "batch": "batch:batch",
    "eval": "evaluate:evaluate",
    "report": "evaluate:report",
    "methods": "listings:methods",
    "tasks": "listings:tasks",
    "convert": "convert:convert",
    "tune method": "tune:tune",
    "tune skip": "tune:skip",
    "train decision": "train_drafts:decision",
    "train calibration": "train_drafts:calibration",
    "train corpus": "train_layers:corpus",
    "train eesd": "train_layers:eesd",
    "train medusa": "train_layers:medusa",
    "train eagle": "train_layers:eagle",
    "train dflash": "train_layers:dflash",
    "train draft": "train_layers:draft",
    "certify": "certify:certify",
    "plan": "plan:plan",
    "env": "env:env",
}
GROUPS = {
    "tune": "Find settings that are fastest on this machine.",
    "train": "Train exit layers, heads and predictors for drafting.",
}
DEFAULTS = {"tune": "method"}  # group -> its command when none is named

OUTPUT = "Output"  # the panel that --help is in
ONCE = ("--method", "--methods")  # of other options the last one counts
HELP_FLAGS = {"help_option_names": ["-h", "--help"]}


def _without_types(params: list[Any]) -> list[Any]:
    """Parameters whose help shows their metavar, but no Python type such as <str>."""
    for param in params:
        if not param.metavar or param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
    return params


class Command(TyperCommand):
    """A command whose options in ONCE are not given twice."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def get_help_option(self, ctx: Any) -> Any:
        option: Any = super().get_help_option(ctx)
        option.rich_help_panel = OUTPUT
        return option

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for i, param in enumerate(order):
            if param in order[:i] and param.opts[0] in ONCE:
                raise ConfigurationError(f"{param.opts[0]} is given twice; give it once")
        return super().parse_args(ctx, args)


class LazyCommands(TyperGroup):
    """Sub-commands that are imported when they are run; a list of them takes their first lines from their source."""

    prefix = ""  # "train " in the group of that name

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        mine = (name.removeprefix(self.prefix) for name in COMMANDS if name.startswith(self.prefix))
        return list(dict.fromkeys(name.split()[0] for name in mine))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command's name and first line, for lists; `resolve_command` gives one that runs."""
        if cmd_name not in self.list_commands(ctx):
            return None
        return TyperCommand(cmd_name, help=GROUPS.get(cmd_name) or _first_line(self.prefix + cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args and args[0] not in known:
            if args[0].startswith("-"):
                return super().resolve_command(ctx, args)
            raise ConfigurationError(f"there is no command {args[0]!r}" + did_you_mean(args[0], known))
        return args[0], _group(args[0]) if args[0] in GROUPS else made(self.prefix + args[0]), args[1:]


def made(name: str) -> Any:
    """The command of a name in COMMANDS."""
    from draftwood.cli.groups import LogOptions
    from draftwood.cli.options import expanded

    module, _, attribute = (HOME + COMMANDS[name]).partition(":")
    function: Callable[..., Any] = getattr(import_module(module), attribute)
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    about = "\n\n".join(part.replace("\n", " ") for part in str(inspect.getdoc(function)).split("\n\n"))
    settings: Any = {"cls": Command, "context_settings": HELP_FLAGS, "help": about}
    alone.command(name.split()[-1], **settings)(expanded(function, {"log": LogOptions}))
    return typer.main.get_command(alone)


def _options() -> dict[str, dict[str, Any]]:
    """Command -> name of an option -> its parameter, of all commands."""
    return {
        name: {
            option.opts[0].removeprefix("--"): option
            for option in made(name).params
            if option.param_type_name == "option"
        }
        for name in COMMANDS
    }


def _defaults(arguments: Sequence[str]) -> Defaults:
    """The defaults from files of settings; help and versions do without them where they are wrong."""
    paths = files()
    only_help = {"-h", "--help", "--version"} & set(arguments) or not arguments
    return read(paths, _options()) if paths and not only_help else Defaults()


def _first_line(command: str) -> str:
    """The first line of a command's docstring, without importing its module."""
    module, _, name = (HOME + COMMANDS[command]).partition(":")
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text("utf-8")).body
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    return str(ast.get_docstring(function)).partition("\n")[0]


def _group(name: str) -> Any:
    """A group of commands, such as `train`; the first flag of one with a default names no command."""

    class Group(LazyCommands):
        prefix = f"{name} "

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if name in DEFAULTS and args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
                args = [DEFAULTS[name], *args]
            parsed: list[str] = super().parse_args(ctx, args)
            return parsed

    settings: Any = {"add_completion": False, "rich_markup_mode": "rich", "context_settings": HELP_FLAGS}
    alone = typer.Typer(cls=Group, no_args_is_help=True, **settings)
    alone.callback(help=GROUPS[name])(lambda: None)
    group = typer.main.get_command(alone)
    group.name = name  # or the help page lists it without one
    return group


app = typer.Typer(
    cls=LazyCommands,
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=HELP_FLAGS,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"draftwood {__version__}")
        raise typer.Exit()


@app.callback()
def draftwood(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Speculative decoding for open-weight language models, exactly.

    Without --target, commands use the pair of small models included in the package.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())  # typer prints the coloured one itself and returns an empty text


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (default: the process's own arguments) and exit."""
    gc.set_threshold(10_000)  # importing torch makes millions of objects that stay, so looking for garbage is in vain;
    atexit.register(gc.freeze)  # and at the end the interpreter would look through all of them three times
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character is no reason to stop
            stream.reconfigure(errors="replace")
    try:
        command = typer.main.get_command(app)
        given = list(sys.argv[1:] if arguments is None else arguments)
        defaults = _defaults(given)
        code = command.main(given, "draftwood", standalone_mode=False, default_map=defaults.values, obj=defaults)
        sys.stdout.flush()
    except DraftwoodError as error:
        _fail(str(error), BAD_INPUT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        sys.exit(BROKEN_PIPE)
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        if error.filename is None:  # of standard output; the interpreter must not try again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"{error.filename or 'the output cannot be written'}: {error.strerror}", BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", INTERRUPTED)
    except Exception as error:
        sentence = _usage_error(error)
        if type(error).__name__ == "SafetensorError":  # by name: safetensors may not be imported yet
            sentence = f"weights cannot be read or written: {error}"
        if sentence is None:
            raise  # a bug: its traceback is the report
        _fail(sentence, BAD_INPUT)
    if code == INTERRUPTED:  # typer's word for a KeyboardInterrupt
        _fail("interrupted", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _usage_error(error: Exception) -> str | None:
    """The sentence about wrong flags; None where the error is about something else.

    Asked by its shape, not its class: typer has its own copy of click in newer versions.
    """
    describe = getattr(error, "format_message", None)
    if describe is None:
        return None
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        return f"there is no option {option}" + _nearest_flag(option, getattr(error, "ctx", None))
    sentence = str(describe()).strip().rstrip(".")
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is not None and parameter is not None:
        from draftwood.cli.options import origin

        sentence += origin(context, parameter.name)
    return sentence[:1].lower() + sentence[1:]


def _nearest_flag(option: str, context: Any) -> str:
    """A hint at the flag that may have been meant; a command has too many to list them all."""
    known = [flag for parameter in context.command.params for flag in parameter.opts] if context else []
    nearest = get_close_matches(option, [flag for flag in known if flag.startswith("--")], 1)
    if nearest:
        return f" (did you mean {nearest[0]!r}?)"
    where = context.command_path if context else "draftwood"
    return f"; see {where} --help (a prompt that begins with - goes after --)"


def _fail(sentence: str, code: int) -> NoReturn:
    """One line on stderr, then out."""
    from draftwood.explain.terminal import visible

    begin = "\n" if code == INTERRUPTED else ""  # after the terminal's ^C
    with suppress(OSError):  # the exit code tells it too
        print(begin + "error: " + visible(" ".join(sentence.split())), file=sys.stderr)
    sys.exit(code)
