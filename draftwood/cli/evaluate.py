"""`draftwood eval` and `draftwood report`: quality, speed and energy of methods on tasks, and pages about them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.cli.groups import (
    LIMITS,
    OF_EVERY_METHOD,
    OUTPUT,
    ColorOptions,
    ModelOptions,
    OutputOptions,
    seed,
    warn_if_foreign,
)
from draftwood.cli.options import flag
from draftwood.cli.running import progress
from draftwood.cli.scaling import RayOptions
from draftwood.eval.interleaved import parse_methods
from draftwood.explain.terminal import SEPARATOR, method_label, origins, simple_table
from draftwood.sampling.params import SamplingParams

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from draftwood.eval.tasks import Task

DEFAULT_METHODS, DEFAULT_WITHOUT_DRAFT = "speculative,mcsd", "lookup"
DEFAULT_TASKS = "qa,sql,math,summaries"
TASKS = "Methods and tasks"


def evaluate(
    *,
    out: Path = flag(..., "Directory of results; the same command resumes.", "DIR", panel=OUTPUT),
    methods: str | None = flag(
        None, "Methods, as in `draftwood compare`.", "A,B,...", panel=TASKS, usual=DEFAULT_METHODS
    ),
    settings: list[str] = flag([], OF_EVERY_METHOD, "KEY=VALUE", ("--set",), TASKS),
    tasks: str = flag(
        DEFAULT_TASKS,
        "Tasks, optionally with options: 'qa,squad:path=dev.json;shots=1'. `draftwood tasks` lists them.",
        "A,B,...",
        panel=TASKS,
    ),
    limit: int = flag(20, "Items per task.", panel=TASKS, ge=1),
    seeds: int = flag(1, "Runs per item, with consecutive seeds from --seed.", panel=TASKS, ge=1),
    run_code: bool = flag(False, "Run programs that the model wrote, in a sandbox.", panel=TASKS),
    warmup: int = flag(1, "Warm-up runs of each method.", panel=TASKS, ge=0),
    models: ModelOptions,
    scaling: RayOptions,
    plain: bool = flag(False, "Plain prompts, no chat template.", names=("--no-chat",), panel=LIMITS),
    max_new_tokens: int | None = flag(None, "Most tokens of each answer.", panel=LIMITS, usual="the task's own", ge=1),
    seed: int = seed(),
    sampling: SamplingParams = SamplingParams(temperature=0.0),
    output: OutputOptions,
) -> None:
    """Measure methods on tasks: quality, speed and energy.

    Methods are interleaved on each item, through the same loop. The same command
    resumes where it was stopped; failing items are recorded, never skipped. With
    --replicas 4 --ray four engines share the items; only times and energy depend
    on it.
    """
    from draftwood.eval import evaluation
    from draftwood.eval.running import EvalPlan
    from draftwood.eval.store import check_writable
    from draftwood.eval.tasks import parse_all

    names = methods if methods is not None else DEFAULT_METHODS if models.drafts else DEFAULT_WITHOUT_DRAFT
    chosen = parse_methods(names, settings)
    wanted = [limited(task, max_new_tokens) for task in parse_all(tasks)]
    evaluation.check_code(wanted, run_code)
    for method in chosen:
        method.check(sampling)
    check_writable(out)
    engine = models.load(*chosen)
    chat = not plain and engine.tokenizer is not None and bool(engine.tokenizer.templates)
    instances_of = [(task, task.instances(limit, chat)) for task in wanted]
    warn_if_foreign(engine, *(instances[0].turns[0] for _, instances in instances_of if instances))
    plan = EvalPlan(chosen, instances_of, sampling, range(seed, seed + seeds), warmup)
    interrupted = False
    try:
        with progress(output.color, live=False) as update, scaling.engines(models) as engines:
            document = evaluation.evaluate(
                engine,
                plan,
                out,
                lambda done, expected: update(completed=done, total=expected),
                lambda job: update(advance=1, description=f"{job.task.name}: {job.method.name}"),
                engines,
            )
    except KeyboardInterrupt:  # what has been measured is shown
        interrupted = True
        document = read_summary(out)
    output.give(document, *([] if output.json_ else tables(document)), wrap=True)
    if not output.json_:
        output.say(f"{out}: summary.json, items.jsonl, run.json")
    if interrupted:
        sys.exit(130)


def report(
    *,
    directory: Path = flag(..., "What `draftwood eval --out` wrote, or a directory of such.", "DIR", argument=True),
    out: Path | None = flag(None, "Page and figures go here.", "DIR", panel=OUTPUT, usual="DIR itself"),
    figures: str = flag("svg", "Format of the figures.", "svg|png|pdf", panel=OUTPUT),
    output: ColorOptions,
) -> None:
    """Write a page of tables and figures about an evaluation.

    One self-contained HTML file, which works offline, and its figures as separate
    files. An unfinished evaluation is reported as far as it got.
    """
    from draftwood.eval.report import page
    from draftwood.explain.terminal import console

    err = console(output.color, stderr=True)
    with err.status("reading") as status:
        written, files = page.write(directory, out, status.update, figures)
    folder = files[0].parent if files else None
    print(written)
    if folder is not None:
        print(f"{len(files)} figures in {folder}")


def limited(task: Task, most: int | None) -> Task:
    """A task whose answers end after so many tokens, if the flag says so and its own options do not."""
    if most is None or task.max_new_tokens is not None:
        return task
    return task.model_copy(update={"max_new_tokens": most})


def read_summary(out: Path) -> Any:
    """The summary that an interrupted evaluation left."""
    from draftwood.eval.store import SUMMARY
    from draftwood.util.safe_parsing import parse_json, read_text

    path = out / SUMMARY
    if not path.is_file():
        raise KeyboardInterrupt
    return parse_json(read_text(path))


def tables(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """A table for each task, with footnotes."""
    from rich.text import Text

    rows, configuration = document["rows"], document["configuration"]
    for task in configuration["tasks"]:
        items = f"  {task['metric']}, {task['items']} item{'s' * (task['items'] != 1)}"
        yield Text.assemble((task["name"], "bold"), items)
        yield table([row for row in rows if row["task"] == task["name"]])
        yield ""
    runs, energy, count = document["runs"], document["energy"], len(configuration["seeds"])
    notes = [f"{runs['made']} of {runs['expected']} runs", f"{runs['failed']} failed"]
    notes += [f"temperature {configuration['sampling']['temperature']:g}", f"{count} seed{'s' * (count != 1)}"]
    yield SEPARATOR.join(notes)
    yield "energy: " + (energy if isinstance(energy, str) else "see joules in summary.json")
    yield "in brackets: 95% bootstrap intervals over items; speed-up: paired with the baseline"
    frequent = sum((Counter(row["errors"]) for row in rows), Counter[str]()).most_common(5)
    yield from (f"{times}× {error}" for error, times in frequent)
    yield from origins(configuration["models"])


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The methods of one task side by side, within 80 columns."""
    from rich.text import Text

    failed = [row["runs"]["failed_to_decode"] + row["runs"]["failed_to_score"] for row in rows]
    numbers = (">score", ">tokens/s", ">speed-up", ">tau", ">failed" if any(failed) else ">accept")
    made = simple_table("method", *numbers, first=14)
    for row, failures in zip(rows, failed, strict=True):
        quality, decoding = row["quality"], row["decoding"]
        speed_up = row["paired"]["speed_up"] if row["paired"] else None
        rate = row["timing"]["tokens_per_second"]["value"]
        made.add_row(
            Text(method_label(row["method"]) + ("" if row["lossless"] else " (lossy)")),
            bracketed(quality.get(quality["metric"]), 2),
            "-" if rate is None else f"{rate:.0f}",
            "1" if row["baseline"] and rate else bracketed(speed_up, 2),
            number(decoding["tau"]["value"], 2),
            Text(str(failures), "bold red" if failures else "")
            if any(failed)
            else number(decoding["acceptance_rate"]["value"], 2),
        )
    return made


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def bracketed(interval: Mapping[str, Any] | None, digits: int) -> str:
    """0.81 [0.70, 0.92]"""
    if interval is None or interval["value"] is None:
        return "-"
    value = number(interval["value"], digits)
    if interval["low"] is None:
        return value
    return rf"{value} \[{number(interval['low'], digits)}, {number(interval['high'], digits)}]"
