"""`draftwood certify`: whether methods are as exact as they claim, on small cases and on the loaded models."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ConfigDict

from draftwood.certify.checks import CHECKS, Budget
from draftwood.certify.server.budget import PANEL, ServerBudget
from draftwood.cli.groups import METHOD, OUTPUT, MethodOptions, ModelOptions, OutputOptions
from draftwood.cli.options import OptionGroup, flag
from draftwood.cli.running import check_writable, hidden, interruptible, progress, write_text
from draftwood.errors import ConfigurationError
from draftwood.explain.terminal import as_json, method_label, simple_table, visible
from draftwood.sampling.params import SamplingParams

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.certify import Certificate
    from draftwood.certify.checks import Check, CheckVerdict

ADDRESS = ("http://", "https://")
STYLES = {"PASS": "green", "FAIL": "bold red", "LOSSY": "yellow", "N/A": "dim"}
INTERRUPTED = 130


class CertifiedServer(OptionGroup):
    """A server to certify, and what it is compared with."""

    model_config = ConfigDict(title=PANEL)

    url: str | None = flag(None, "The server's address, such as http://localhost:8000. Nothing else is asked.", "URL")
    model: str | None = flag(None, "The model's name there. Default: the first that it lists.", "NAME")
    against: str | None = flag(
        None, "Compare with another server, or a model that is loaded here without drafts.", "URL|MODEL"
    )
    api_key: str | None = flag(None, "The server's key; better in DRAFTWOOD_API_KEY.", "KEY")
    against_api_key: str | None = flag(None, "The other server's; better in DRAFTWOOD_AGAINST_API_KEY.", "KEY")
    journal: Path | None = flag(None, "Keep answers here; the command goes on from them when it runs again.", "FILE")
    page: Path | None = flag(None, "Write the certificate as a page, too.", "FILE")
    skip: list[str] = flag([], "Leave a check out, such as one that the server dies of. Repeatable.", "CHECK")

    def given(self, decoding: MethodOptions, every: bool) -> bool:
        """Whether a server is to be certified; ConfigurationError where options of both kinds are given."""
        if self.url is None:
            for name in ("model", "against", "against_api_key", "journal", "page"):
                if getattr(self, name) is not None:
                    raise ConfigurationError(f"--{name.replace('_', '-')} is for a server; give its --url, too")
            return False
        if every or decoding.method is not None or decoding.settings:
            raise ConfigurationError("--url certifies a server as it is; leave --method, --set and --all out")
        return True


def certify(
    *,
    server: CertifiedServer,
    asking: ServerBudget,
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
    """Certify that a method, or somebody's server, is exact.

    Small cases are enumerated, whole outputs sampled, greedy text compared, and
    the loaded models' tokens tested against the target's distribution. Exit code 1
    if a check fails. Methods that are lossy by design are measured instead. Ctrl-C
    keeps finished checks.

    With --url the server there is tested instead, whatever its engine, by its
    answers alone.
    """
    if server.given(decoding, every):
        certify_server(server, asking, models, prompts, out, output)
        return
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
        table((method_label(one.method), one.verdict, one.complete, one.checks) for one in report.certificates),
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


def table(certificates: Iterable[tuple[str, CheckVerdict, bool, Sequence[Check]]]) -> Table:
    """One line of reason per check, within 80 columns; of each certificate label, verdict, completeness and checks."""
    from rich.text import Text

    made = simple_table("certified", "verdict", "check", first=12)
    made.columns[0].max_width, made.columns[1].no_wrap = 20, True
    for label, verdict, complete, checks in certificates:
        whole = "overall" if complete else "overall, of the checks that were done"
        made.add_row(Text(visible(label)), Text(verdict, STYLES[verdict]), Text(whole, "bold"))
        for check in checks:
            words = Text.assemble((check.name, "bold"), f": {visible(check.reason)}")
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


def certify_server(
    server: CertifiedServer,
    asking: ServerBudget,
    models: ModelOptions,
    prompts: Path | None,
    out: Path | None,
    output: OutputOptions,
) -> None:
    """Certify a server: a table on standard output, files where they are asked for, 1 where it does not pass."""
    from contextlib import ExitStack

    from draftwood.certify.server import LocalModel, Server, certify_server, page
    from draftwood.certify.server.prompts import PROMPTS
    from draftwood.train.prompts import plain_texts, read_prompts
    from draftwood.util.jsonl import Journal

    hidden("--api-key", "--against-api-key")
    texts = PROMPTS if prompts is None else plain_texts(read_prompts(prompts))
    for path, name in ((out, "--out"), (server.page, "--page")):
        check_writable(path, name)
    with ExitStack() as stack:
        journal = None if server.journal is None else stack.enter_context(Journal(server.journal))
        assert server.url is not None
        certified = Server(server.url, server.model, server.api_key, asking.limits(), journal)
        other: Server | LocalModel | None = None
        if server.against is not None and server.against.startswith(ADDRESS):
            other = Server(server.against, None, server.against_api_key, asking.limits(), journal)
        elif server.against is not None:
            other = LocalModel(models.model_copy(update={"target": server.against, "draft": []}).load())
        wanted = stack.enter_context(interruptible())
        update = stack.enter_context(progress(output.color))

        def watch(check: str, requests: int) -> bool:
            update(completed=requests, description=f"requests; {check}")
            return not wanted()

        result = certify_server(certified, other, texts, asking, watch, server.skip)
    document = result.as_dict()
    rows = [(f"{result.server['url']} {result.server['model']}", result.verdict, result.complete, result.checks)]
    closing = f"verdict: {result.verdict} after {result.requests:,} requests" + (
        "" if result.complete else "; not all checks were done"
    )
    output.give(document, table(rows), "", result.drafted, closing)
    if out is not None:
        write_text(out, as_json(document) + "\n")
    if server.page is not None:
        write_text(server.page, page(document), "--page")
    if wanted():
        sys.exit(INTERRUPTED)
    if result.verdict != "PASS" or not result.complete:
        sys.exit(1)
