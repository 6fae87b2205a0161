"""`draftwood compare`: several methods on one prompt, in interleaved runs, against plain decoding."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING

from draftwood.cli.groups import (
    METHOD,
    OF_EVERY_METHOD,
    ChatOptions,
    LimitOptions,
    ModelOptions,
    OutputOptions,
    StructuredOptions,
    about,
    seed,
    warn_if_foreign,
)
from draftwood.cli.options import flag
from draftwood.cli.running import progress
from draftwood.eval.interleaved import Entry, parse_methods
from draftwood.eval.interleaved import compare as run
from draftwood.explain.terminal import (
    SEPARATOR,
    compiled,
    console,
    method_label,
    origins,
    percent,
    simple_table,
    visible,
)
from draftwood.sampling.params import SamplingParams

if TYPE_CHECKING:
    from rich.table import Table


DEFAULT_METHODS, DEFAULT_WITHOUT_DRAFT = "speculative,mcsd,lookup", "lookup"


def compare(
    *,
    prompt: ChatOptions,
    limits: LimitOptions,
    structure: StructuredOptions,
    models: ModelOptions,
    methods: str | None = flag(
        None,
        "Methods, optionally with options: 'lookup,mcsd:tree=4,2,2,1;verify=coupled'. A comma before a "
        "letter begins the next method. autoregressive is always included.",
        "A,B,...",
        panel=METHOD,
        usual=DEFAULT_METHODS,
    ),
    settings: list[str] = flag([], OF_EVERY_METHOD, "KEY=VALUE", ("--set",), METHOD),
    repeat: int = flag(3, "Timed runs of each method; medians are shown.", panel=METHOD, ge=1),
    warmup: int = flag(1, "Warm-up runs of each method.", panel=METHOD, ge=0),
    seed: int = seed(),
    sampling: SamplingParams = SamplingParams(temperature=0.0),
    output: OutputOptions,
) -> None:
    """Compare methods on one prompt.

    Runs of the methods are interleaved, so that a slow moment of the machine
    affects all alike, and medians are shown. Greedy by default: every lossless
    method must give the same text.
    """
    text = prompt.conversation()
    names = methods if methods is not None else DEFAULT_METHODS if models.drafts else DEFAULT_WITHOUT_DRAFT
    chosen = parse_methods(names, settings)
    for method in chosen:
        method.check(sampling)
    structured = structure.chosen()
    engine = models.load(*chosen)
    warn_if_foreign(engine, text)
    with progress(output.color, total=len(chosen) * (warmup + repeat), live=False) as update:
        runs = count()
        comparison = run(
            engine,
            text,
            chosen,
            sampling,
            repeat,
            warmup,
            lambda name: update(completed=next(runs), description=name),
            bounds=output.json_,
            seed=seed,
            structured=structured,
            **limits.model_dump(),
        )
    document = {**about(engine), "max_new_tokens": limits.max_new_tokens, **comparison.as_dict()}
    if not output.json_:
        out = console(output.color)
        text_shown = visible(comparison.baseline.first.text) if out.is_terminal else comparison.baseline.first.text
        out.print(text_shown, style="dim", markup=False, soft_wrap=not out.is_terminal)
    notes = _footnotes(comparison.entries, engine.compile_seconds)
    output.give(document, "", table(comparison.entries, console().width), "", *notes, *origins(engine.names), wrap=True)
    if comparison.interrupted:
        sys.exit(130)


# Heading of a column -> columns of the terminal below which it is left out, so that methods keep their names.
COLUMNS = {
    "tokens/s": 0,
    "speed-up": 0,
    "tau": 50,
    "accept": 56,
    "c": 64,
    "draft/verify/\nsample/other %": 80,
    "same\ntext": 0,
}


def table(entries: Sequence[Entry], width: int = 80) -> Table:
    """Everything side by side, within `width` columns (44 at least) and 80 at most."""
    from rich.text import Text

    columns = [name for name, least in COLUMNS.items() if width >= least]
    made = simple_table("method", *(f">{name}" for name in columns), first=14)
    fastest = max(entry.rate for entry in entries)
    for entry in entries:
        metrics = entry.first.metrics
        gain = f"{entry.rate / entries[0].rate:.2f}×"
        values: Sequence[str | Text] = (
            f"{entry.rate:.1f}",
            Text(gain, "bold green" if entry.rate == fastest and len(entries) > 1 else ""),
            f"{metrics.tau:.2f}",
            percent(metrics.acceptance_rate) if metrics.drafted else "-",
            f"{c:.2f}" if (c := entry.over(lambda run: run.metrics.draft_cost_ratio)) else "-",
            "/".join(f"{100 * share:.0f}" for share in entry.split.values()),
            {None: Text("-"), True: Text("yes", "green"), False: Text("NO", "bold red")}[entry.same_text],
        )
        label = Text(method_label(entry.first.method) + ("" if entry.first.lossless else " (lossy)"))
        made.add_row(label, *(value for name, value in zip(COLUMNS, values, strict=True) if name in columns))
    return made


def _footnotes(entries: Sequence[Entry], compile_seconds: float) -> Iterator[str]:
    first = entries[0].first
    tokens = len(first.tokens)
    notes = [f"{tokens} token{'s' * (tokens != 1)}, finish {first.finish_reason}", f"seed {first.seed}"]
    notes.append(f"temperature {first.sampling['temperature']:g}")
    runs = len(entries[0].runs)
    notes += [f"median of {runs} runs" if runs > 1 else "one run", *compiled(compile_seconds)]
    yield SEPARATOR.join(notes)
    yield "tau: tokens per target forward; accept: accepted over drafted tokens;"
    yield "c: time of a draft forward over a target forward, without those that read the prompt"
    drawn = [entry.method for entry in entries if entry.same_text is None]
    if any("verify" in type(method).model_fields for method in drawn):
        yield "-: same distribution, other draws; verify=coupled repeats the text of plain decoding"
    if any("n_best" in type(method).model_fields for method in drawn):
        yield "-: beams are drawn; dsbd has the distribution of beam-sampling, not of plain decoding"
