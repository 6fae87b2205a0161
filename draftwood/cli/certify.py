"""`draftwood certify`: whether methods are as exact as they claim, on small cases and on the loaded models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.certify.checks import CHECKS, Budget
from draftwood.cli.groups import METHOD, OUTPUT, MethodOptions, ModelOptions, OutputOptions
from draftwood.cli.options import flag
from draftwood.cli.running import check_writable, interruptible, progress, write_text
from draftwood.errors import ConfigurationError
from draftwood.explain.terminal import as_json, method_label, simple_table
from draftwood.sampling.params import SamplingParams

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.certify import Certificate

STYLES = {"PASS": "green", "FAIL": "bold red", "LOSSY": "yellow", "N/A": "dim"}
INTERRUPTED = 130


def certify(
    *,
    decoding: MethodOptions,
    every: bool = flag(False, "All methods, on as many processes as threads.", names=("--all",), panel=METHOD),
    models: ModelOptions,
    pair: bool = flag(True, "Check the loaded models too, or only tabular models.", panel=CHECKS),
    checks: Budget,
    prompts: Path | None = flag(None, "Prompts, one per line. Default: held-out documents.", "FILE", panel=CHECKS),
    temperature: float = flag(1.0, "Of sampled tokens of the loaded models.", panel=CHECKS, gt=0, allow_inf_nan=False),
    out: Path | None = flag(None, "Write the certificate as JSON.", "FILE", panel=OUTPUT),
    output: OutputOptions,
) -> None:
    """Certify that a method is exact.

    Small cases are enumerated, whole outputs sampled, greedy text compared, and
    the loaded models' tokens tested against the target's distribution. Exit code 1
    if a check fails. Methods that are lossy by design are measured instead. Ctrl-C
    keeps finished checks.
    """
    import torch

    from draftwood.certify import certify_each, every_method
    from draftwood.methods.default import default_method
    from draftwood.train.prompts import corpus_prompts, fitted, read_prompts

    if every and (decoding.method is not None or decoding.settings):
        raise ConfigurationError("give --all or one --method with its options, not both")
    one = decoding.chosen(models.drafts) or default_method(models.drafts)[0]
    chosen = every_method() if every else [one]
    texts = corpus_prompts(2) if prompts is None else read_prompts(prompts)
    check_writable(out)
    engine = models.load(*([] if every else [one])) if pair else None
    if engine is not None and not every:
        engine.method(chosen[0])  # refused before anything runs
    fitted_prompts = [] if engine is None else fitted(engine, texts, checks.max_new_tokens)
    params = SamplingParams(temperature=temperature)
    with interruptible() as wanted, progress(output.color) as update:

        def watch(what: str, done: int, steps: int | None) -> bool:
            update(completed=done, total=steps, description=what)
            return not wanted()

        processes = min(len(chosen), torch.get_num_threads()) if every else 0
        report = certify_each(chosen, engine, fitted_prompts, checks, params, watch, processes)
    document = report.as_dict()
    partial = "" if report.complete else f"; interrupted, {len(report.certificates)} of {len(chosen)} methods begun"
    written = f"; written to {out}" if out is not None else ""
    output.give(
        document,
        table(report.certificates),
        "",
        *([] if every else exercised(report.certificates)),
        "LOSSY: not exact by design, distances are measured; N/A: does not apply.",
        f"verdict: {report.verdict}{partial}{written}",
    )
    if out is not None:
        write_text(out, as_json(document) + "\n")
    if not report.complete:
        sys.exit(INTERRUPTED)
    if report.verdict == "FAIL":
        sys.exit(1)


def table(certificates: Sequence[Certificate]) -> Table:
    """One line of reason per check, within 80 columns."""
    from rich.text import Text

    made = simple_table("method", "verdict", "check", first=12)
    made.columns[0].max_width, made.columns[1].no_wrap = 20, True
    for certificate in certificates:
        label = Text(method_label(certificate.method))
        whole = "overall" if certificate.complete else "overall, of the checks that were done"
        made.add_row(label, Text(certificate.verdict, STYLES[certificate.verdict]), Text(whole, "bold"))
        for check in certificate.checks:
            words = Text.assemble((check.name, "bold"), f": {check.reason}")
            made.add_row("", Text(check.verdict, STYLES[check.verdict]), words)
    return made


def exercised(certificates: Sequence[Certificate]) -> list[Table | str]:
    """Tables of how often each rule occurred in the exact checks; rules that never did are listed too."""
    figures = [check.figures for one in certificates for check in one.checks if "rules" in check.figures]
    if not figures:
        return []
    never = dict.fromkeys(figures[0]["rules_not_exercised"], 0)
    rows = ((rule, f"{times:,}") for rule, times in {**never, **figures[0]["rules"]}.items())
    return [simple_table("exercised", ">rounds", rows=rows), ""]
