"""`draftwood certify`: whether methods are as exact as they say, on small cases and on the pair."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.cli.groups import METHOD, OUTPUT, MethodOptions, ModelOptions, OutputOptions
from draftwood.cli.options import flag
from draftwood.cli.output_file import check_writable, write_text
from draftwood.errors import ConfigurationError
from draftwood.params import SamplingParams

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
    *,
    decoding: MethodOptions,
    every: bool = flag(False, "Every method there is.", names=("--all",), panel=METHOD),
    models: ModelOptions,
    pair: bool = flag(True, "Also check the models themselves, or tabular models alone.", panel=CHECKS),
    runs: int = flag(1000, "Generations per combination of warp and batch on tabular models.", panel=CHECKS, ge=1),
    pair_runs: int = flag(600, "Sampled generations of the pair.", panel=CHECKS, ge=1),
    replays: int = flag(1000, "Most outcomes of an enumerated case.", panel=CHECKS, ge=1),
    prompts: Path | None = flag(
        None, "Prompts for the pair, one a line. Default: held-out documents of every domain.", "FILE", panel=CHECKS
    ),
    position: int = flag(2, "The law of the pair is checked up to this token, from 0.", panel=CHECKS, ge=0),
    max_new_tokens: int = flag(64, "Most tokens to generate.", panel=CHECKS, ge=1),
    temperature: float = flag(1.0, "Of the pair's samples.", panel=CHECKS, gt=0, allow_inf_nan=False),
    seed: int = flag(1, "The same seed gives the same certificate.", panel=CHECKS),
    out: Path | None = flag(None, "Write the certificate as JSON.", "FILE", panel=OUTPUT),
    output: OutputOptions,
) -> None:
    """Certify that a method is exact.

    Small cases are enumerated, whole outputs sampled, greedy text compared, and
    the pair's own tokens tested against the target's distribution. Exit code 1 if
    a check fails. A method that is lossy by design is measured instead.
    """
    from draftwood.certify import Budget, certify
    from draftwood.explain.terminal import as_json, console
    from draftwood.methods import METHODS, Method
    from draftwood.prompts import corpus_prompts, fitted, read_prompts

    if every and (decoding.method is not None or decoding.settings):
        raise ConfigurationError("give --all or one --method with its options, not both")
    params = SamplingParams(temperature=temperature)
    chosen = [Method.parse(name) for name in METHODS] if every else [decoding.chosen(models.drafts)]
    texts = corpus_prompts(2) if prompts is None else read_prompts(prompts)
    if out is not None:
        check_writable(out)
    engine = models.load() if pair else None
    asked = [] if engine is None else fitted(engine, texts, max_new_tokens)
    budget = Budget(runs, replays, 200, pair_runs, max_new_tokens, position, seed)
    found: list[Certificate] = []
    with _progress(output.color) as steps:
        for one in chosen:
            begin, advance = steps(one)
            found.append(certify(one, _fit(engine, one, every), asked, budget, params, begin, advance))
    document = _document(found, engine)
    if output.json_:
        print(as_json(document), flush=True)
    else:
        show = console(output.color).print
        show(table(found))
        show()
        show("LOSSY: not exact by design, distances are measured; N/A: means nothing here.", markup=False)
        show(f"verdict: {document['verdict']}", markup=False)
    if out is not None:
        write_text(out, as_json(document) + "\n")
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
