"""`draftwood compare`: several methods on one prompt, in turns, against plain decoding."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli import flags, prompt_flags
from draftwood.errors import RequestError
from draftwood.eval.interleaved import Entry, interleave, parse_methods, set_references

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.engine import Engine
    from draftwood.methods import Method
    from draftwood.results import GenerationResult

USUAL, USUAL_WITHOUT_DRAFT = "speculative,mcsd,lookup", "lookup"


def compare(
    prompt: prompt_flags.PromptArgument = None,
    prompt_file: prompt_flags.PromptFile = None,
    max_new_tokens: flags.MaxNewTokens = 128,
    stop: flags.Stop = None,
    ignore_eos: flags.IgnoreEos = False,
    target: flags.Target = None,
    draft: flags.Draft = None,
    dtype: flags.Dtype = "float32",
    device: flags.Device = None,
    quantize: flags.Quantize = None,
    compile: flags.Compile = False,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Methods, each with options if need be: 'lookup,mcsd:tree=4,2,2,1;verify=coupled'. A comma before a "
            "letter begins the next method. autoregressive is always among them.",
            rich_help_panel=flags.METHOD,
            show_default=USUAL,
        ),
    ] = None,
    settings: Annotated[list[str] | None, flags.setting(flags.OF_EVERY_METHOD)] = None,
    repeat: Annotated[
        int, typer.Option(metavar="N", help="Timed runs of each; medians count.", rich_help_panel=flags.METHOD)
    ] = 3,
    warmup: Annotated[
        int, typer.Option(metavar="N", help="Runs of each that do not count.", rich_help_panel=flags.METHOD)
    ] = 1,
    seed: flags.Seed = 0,
    temperature: flags.Temperature = 0.0,
    top_k: flags.TopK = 0,
    top_p: flags.TopP = 1.0,
    min_p: flags.MinP = 0.0,
    repetition_penalty: flags.RepetitionPenalty = 1.0,
    presence_penalty: flags.PresencePenalty = 0.0,
    frequency_penalty: flags.FrequencyPenalty = 0.0,
    logit_bias: flags.LogitBias = None,
    color: flags.Color = None,
    json: flags.Json = False,
) -> None:
    """Compare methods on one prompt.

    Methods take turns, so that a slow moment of the machine hits all alike, and
    medians are shown. Greedy by default: every method must give the same text.
    """
    from draftwood.explain.terminal import as_json, console, grown, visible

    text = prompt_flags.prompt_text(prompt, prompt_file)
    if repeat < 1 or warmup < 0:
        raise RequestError("compare needs --repeat 1 or more and --warmup 0 or more")
    models = flags.ModelFlags(target, draft, dtype, device, quantize, compile)
    names = methods if methods is not None else USUAL if models.drafts else USUAL_WITHOUT_DRAFT
    entries = [Entry(method) for method in parse_methods(names, settings or ())]
    params = flags.sampling(
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias
    )
    for entry in entries:
        entry.method.check(params)
    engine = models.load()
    for entry in entries:
        engine.method(entry.method)  # refused before anything runs

    def decode(method: Method) -> GenerationResult:
        return engine.generate(text, method, params, max_new_tokens, seed, stop or (), 0, ignore_eos)

    interrupted = False
    try:
        with _progress(len(entries) * (warmup + repeat), color) as advance:
            interleave(entries, decode, repeat, warmup, advance)
            set_references(entries, decode, params.greedy)
    except KeyboardInterrupt:  # what has been measured is shown
        interrupted = True
        entries = [entry for entry in entries if entry.runs]
        if not entries:
            raise
        set_references(entries, None, params.greedy)
    baseline = entries[0].first
    if json:
        print(as_json(_document(engine, entries, seed, max_new_tokens, repeat, warmup)))
    else:
        out = console(color)
        shown = visible(baseline.text) if out.is_terminal else baseline.text
        out.print(shown, style="dim", markup=False, soft_wrap=not out.is_terminal)
        out.print()
        out.print(table(entries))
        out.print()
        _footnotes(entries, engine.compile_seconds, out.print)
        for note in grown(engine.names):
            out.print(note, markup=False)
    if interrupted:
        sys.exit(130)


@contextmanager
def _progress(total: int, color: bool | None) -> Iterator[Callable[[str], None]]:
    """A bar on stderr that is redrawn between runs only, so that it costs the runs nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from draftwood.explain.terminal import console

    err = console(color, stderr=True)
    if not err.is_terminal:
        yield lambda name: None
        return
    columns = (BarColumn(30), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=total)
        done = iter(range(total))
        yield lambda name: bar.update(task, completed=next(done), description=name, refresh=True)


def table(entries: Sequence[Entry]) -> Table:
    """Everything side by side, within 80 columns."""
    from rich.text import Text

    from draftwood.explain.terminal import method_label, percent, simple_table

    made = simple_table()
    made.add_column("method", overflow="fold", min_width=14)
    for name in ("tokens/s", "speed-up", "tau", "accept", "c", "draft/verify/\nsample/other %", "same\ntext"):
        made.add_column(name, justify="right", no_wrap=True)
    fastest = max(entry.rate for entry in entries)
    for entry in entries:
        metrics = entry.first.metrics
        gain = f"{entry.rate / entries[0].rate:.2f}×"
        same = {None: Text("-"), True: Text("yes", "green"), False: Text("NO", "bold red")}[entry.same_text]
        split = [f"{100 * share:.0f}" for share in entry.split.values()]
        made.add_row(
            Text(method_label(entry.first.method) + ("" if entry.first.lossless else " (lossy)")),
            f"{entry.rate:.1f}",
            Text(gain, "bold green" if entry.rate == fastest and len(entries) > 1 else ""),
            f"{metrics.tau:.2f}",
            percent(metrics.acceptance_rate) if metrics.drafted else "-",
            f"{entry.over(lambda run: run.metrics.draft_cost_ratio):.2f}" if metrics.draft_forwards else "-",
            "/".join(split),
            same,
        )
    return made


def _footnotes(entries: Sequence[Entry], compile_seconds: float, show: Callable[..., Any]) -> None:
    from draftwood.explain.terminal import SEPARATOR, compiled

    first = entries[0].first
    count = len(first.tokens)
    notes = [f"{count} token{'s' * (count != 1)}, finish {first.finish_reason}", f"seed {first.seed}"]
    notes.append(f"temperature {first.sampling['temperature']:g}")
    runs = len(entries[0].runs)
    notes += [f"median of {runs} runs" if runs > 1 else "one run", *compiled(compile_seconds)]
    show(SEPARATOR.join(notes), markup=False)
    show("tau: tokens per target forward; accept: accepted over drafted tokens;", markup=False)
    show("c: time of a draft forward over a target forward", markup=False)
    drawn = [entry.method for entry in entries if entry.same_text is None]
    if any("verify" in type(method).model_fields for method in drawn):
        show("-: same distribution, other draws; verify=coupled repeats the text of plain decoding", markup=False)
    if any("n_best" in type(method).model_fields for method in drawn):
        show("-: beams are drawn; dsbd has the law of beam-sampling, not of plain decoding", markup=False)


def _document(
    engine: Engine, entries: Sequence[Entry], seed: int, limit: int, repeat: int, warmup: int
) -> dict[str, object]:
    from draftwood import __version__

    first = entries[0].first
    return {
        "draftwood": __version__,
        "models": {**engine.names, "device": str(engine.target.device)},
        **({"compile_seconds": engine.compile_seconds} if engine.names.get("compiled") else {}),
        "prompt_tokens": first.prompt_tokens,
        "sampling": first.sampling,
        "seed": seed,
        "max_new_tokens": limit,
        "repeat": repeat,
        "warmup": warmup,
        "text": first.text,
        "methods": [_entry_document(entry, entries[0].rate) for entry in entries],
    }


def _entry_document(entry: Entry, baseline: float) -> Mapping[str, object]:
    metrics = entry.first.metrics
    return {
        "method": entry.first.method,
        "lossless": entry.first.lossless,
        "tokens_per_second": entry.rate,
        "speedup": entry.rate / baseline if baseline else None,
        "tau": metrics.tau,
        "acceptance_rate": metrics.acceptance_rate if metrics.drafted else None,
        "draft_cost_ratio": entry.over(lambda run: run.metrics.draft_cost_ratio) if metrics.draft_forwards else None,
        "time_split": entry.split,
        "same_text": entry.same_text,
        "finish_reason": entry.first.finish_reason,
        "text": entry.first.text,
        "tokens": entry.first.tokens,
        "runs": [run.metrics.as_dict() for run in entry.runs],
    }
