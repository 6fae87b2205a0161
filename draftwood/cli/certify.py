"""`draftwood certify`: whether methods are as exact as they say, on small cases and on the pair."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli import flags
from draftwood.errors import ConfigurationError, RequestError

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.certify import Certificate
    from draftwood.engine import Engine
    from draftwood.methods import Method

CHECKS = "Checks"
STYLES = {"PASS": "green", "FAIL": "bold red", "LOSSY": "yellow", "N/A": "dim"}

Begin = Callable[[str, int | None], None]
Advance = Callable[[], None]


def certify(
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="The method to certify; file:PATH reads name and options. Default: speculative with a draft model.",
            rich_help_panel=flags.METHOD,
            show_default=False,
        ),
    ] = None,
    settings: flags.MethodOptions = None,
    every: Annotated[
        bool, typer.Option("--all", metavar="", help="Every method there is.", rich_help_panel=flags.METHOD)
    ] = False,
    target: flags.Target = None,
    draft: flags.Draft = None,
    dtype: flags.Dtype = "float32",
    device: flags.Device = None,
    quantize: flags.Quantize = None,
    compile: flags.Compile = False,
    pair: Annotated[
        bool,
        typer.Option(
            "--pair/--no-pair",
            metavar="",
            help="Also check the models themselves, or tabular models alone.",
            rich_help_panel=CHECKS,
        ),
    ] = True,
    runs: Annotated[
        int,
        typer.Option(
            metavar="N", help="Generations per combination of warp and batch on tabular models.", rich_help_panel=CHECKS
        ),
    ] = 1000,
    pair_runs: Annotated[
        int, typer.Option(metavar="N", help="Sampled generations of the pair.", rich_help_panel=CHECKS)
    ] = 600,
    replays: Annotated[
        int, typer.Option(metavar="N", help="Most outcomes of an enumerated case.", rich_help_panel=CHECKS)
    ] = 1000,
    prompts: Annotated[
        Path | None,
        flags.prompts_file("Prompts for the pair, one a line. Default: held-out documents of every domain.", CHECKS),
    ] = None,
    position: Annotated[
        int,
        typer.Option(
            metavar="N", help="The law of the pair is checked up to this token, from 0.", rich_help_panel=CHECKS
        ),
    ] = 2,
    max_new_tokens: flags.MaxNewTokens = 64,
    temperature: flags.Temperature = 1.0,
    seed: flags.Seed = 1,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the certificate as JSON.", rich_help_panel=flags.OUTPUT),
    ] = None,
    color: flags.Color = None,
    json: flags.Json = False,
) -> None:
    """Certify that a method is exact.

    Small cases are enumerated, whole outputs sampled, greedy text compared, and
    the pair's own tokens tested against the target's distribution. Exit code 1 if
    a check fails. A method that is lossy by design is measured instead.
    """
    from draftwood.certify import Budget, certify
    from draftwood.cli.prompts import token_prompts
    from draftwood.explain.terminal import as_json, console
    from draftwood.methods import METHODS, Method

    if every and (method is not None or settings):
        raise ConfigurationError("give --all or one --method with its options, not both")
    if min(runs, pair_runs, replays, max_new_tokens) < 1 or position < 0:
        raise RequestError("certify needs --runs, --pair-runs, --replays and --max-new-tokens of 1 or more")
    models = flags.ModelFlags(target, draft, dtype, device, quantize, compile)
    params = flags.sampling(temperature)
    if params.greedy:
        raise ConfigurationError(
            "certify samples the pair, so --temperature must be above 0; greedy text is checked too"
        )
    chosen = [Method.parse(name) for name in METHODS] if every else [flags.method(method, settings, models.drafts)]
    engine = models.load() if pair else None
    asked = token_prompts(engine, prompts, 2, max_new_tokens) if engine is not None else []
    budget = Budget(runs, replays, 200, pair_runs, max_new_tokens, position, seed)
    found: list[Certificate] = []
    with _progress(color) as steps:
        for one in chosen:
            begin, advance = steps(one)
            found.append(certify(one, _fit(engine, one, every), asked, budget, params, begin, advance))
    document = _document(found, engine)
    if out is not None:
        out.write_text(as_json(document) + "\n", "utf-8")
    if json:
        print(as_json(document))
    else:
        show = console(color).print
        show(table(found))
        show()
        show("LOSSY: not exact by design, distances are measured; N/A: means nothing here.", markup=False)
        show(f"verdict: {document['verdict']}" + (f"; written to {out}" if out else ""), markup=False, soft_wrap=True)
    if document["verdict"] == "FAIL":
        sys.exit(1)


def _fit(engine: Engine | None, method: Method, every: bool) -> Engine | None:
    """The engine, if it has the models that the method needs; with --all, others are checked without it."""
    if engine is None:
        return None
    try:
        engine.method(method)
    except ConfigurationError:
        if not every:
            raise
        return None
    return engine


def _document(found: Sequence[Certificate], engine: Engine | None) -> dict[str, Any]:
    from draftwood import __version__

    verdicts = [certificate.verdict for certificate in found]
    overall = next((word for word in ("FAIL", "PASS", "LOSSY") if word in verdicts), "N/A")
    return {
        "draftwood": __version__,
        "models": None if engine is None else engine.names,
        "verdict": overall,
        "certificates": [certificate.as_dict() for certificate in found],
    }


def table(found: Sequence[Certificate]) -> Table:
    """One line of reason per check, within 80 columns."""
    from rich.text import Text

    from draftwood.explain.terminal import method_label, simple_table

    made = simple_table()
    made.add_column("method", overflow="fold", min_width=12, max_width=20)
    made.add_column("verdict", no_wrap=True)
    made.add_column("check", overflow="fold")
    for certificate in found:
        label = Text(method_label(certificate.method))
        made.add_row(label, Text(certificate.verdict, STYLES[certificate.verdict]), Text("overall", "bold"))
        for check in certificate.checks:
            words = Text.assemble((check.name, "bold"), f": {check.reason}")
            made.add_row("", Text(check.verdict, STYLES[check.verdict]), words)
    return made


@contextmanager
def _progress(color: bool | None) -> Iterator[Callable[[Method], tuple[Begin, Advance]]]:
    """A bar on stderr per check, where stderr is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from draftwood.explain.terminal import console

    err = console(color, stderr=True)
    if not err.is_terminal:
        yield lambda method: (lambda name, steps: None, lambda: None)
        return
    columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=None)

        def steps(method: Method) -> tuple[Begin, Advance]:
            def begin(name: str, count: int | None) -> None:
                bar.reset(task, total=count, description=f"{method.name}: {name}")

            return begin, lambda: bar.advance(task)

        yield steps
