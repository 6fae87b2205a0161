"""`python -m benchmarks.papers`: a paper's tables and figures measured again, beside what the paper gives."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from benchmarks import pairs
from benchmarks.command import check_kernels, started
from benchmarks.execute import read, write
from benchmarks.papers.models import Models
from benchmarks.papers.page import RESULTS, findings
from benchmarks.papers.settings import papers
from benchmarks.papers.study import Study
from draftwood.engine.loading import load
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.train.prompts import CORPUS

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Count = Annotated[int | None, typer.Option(min=1)]
MODELS, LEARNING = "Models", "Training"


@app.command()
def measure(
    paper: Literal["dsbd", "mcsd", "eesd"],
    full: Annotated[bool, typer.Option("--full", help="All of the paper's settings, on more items.")] = False,
    part: Annotated[list[str] | None, typer.Option(help="Measure this part only. Repeatable. Default: all.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only methods whose label this pattern fits.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Begin no run or step later; a further call goes on.")] = None,
    items: Annotated[list[str] | None, typer.Option(help="Of each task, or NAME=N of one. Repeatable.")] = None,
    seeds: Count = None,
    max_new_tokens: Count = None,
    data: Annotated[Path | None, typer.Option(help="Directory of the papers' data sets. Default: own corpus.")] = None,
    pair: Annotated[
        str, typer.Option(help="embedded, grown-12x768, smollm2, ...", rich_help_panel=MODELS)
    ] = "embedded",
    target: Annotated[Path | None, typer.Option(help="Target in place of the pair's.", rich_help_panel=MODELS)] = None,
    draft: Annotated[Path | None, typer.Option(help="Draft in place of the pair's.", rich_help_panel=MODELS)] = None,
    drafter: Annotated[
        Literal["model", "exit", "eagle", "lookup", "skip"], typer.Option(help="What drafts.", rich_help_panel=MODELS)
    ] = "model",
    exit: Annotated[
        Path | None, typer.Option(help="Of --drafter exit; of eesd in place of one to train.", rich_help_panel=MODELS)
    ] = None,
    head: Annotated[Path | None, typer.Option(help="Of --drafter eagle.", rich_help_panel=MODELS)] = None,
    heads: Annotated[Path | None, typer.Option(help="Directory of Medusa heads.", rich_help_panel=MODELS)] = None,
    dtype: Annotated[str, typer.Option(rich_help_panel=MODELS)] = "auto",
    draft_dtype: Annotated[str | None, typer.Option(rich_help_panel=MODELS)] = None,
    quantize: Annotated[str | None, typer.Option(rich_help_panel=MODELS)] = None,
    device: Annotated[str | None, typer.Option(rich_help_panel=MODELS)] = None,
    name: Annotated[str | None, typer.Option(help="Of the models, in results. Default: --pair, or --target's.")] = None,
    prompts: Annotated[str, typer.Option(help="Prompts to learn from.", rich_help_panel=LEARNING)] = CORPUS,
    given: Annotated[str, typer.Option(help="Texts to learn from.", rich_help_panel=LEARNING)] = CORPUS,
    texts: Annotated[
        Path | None, typer.Option(help="Of the target, from `draftwood train corpus`.", rich_help_panel=LEARNING)
    ] = None,
    seen: Annotated[
        list[Path] | None, typer.Option(help="More texts that drafts learnt from.", rich_help_panel=LEARNING)
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Of an exit.", rich_help_panel=LEARNING)] = None,
    batch: Annotated[int, typer.Option(min=1, help="Rows of 256 tokens per step.", rich_help_panel=LEARNING)] = 16,
    out: Annotated[Path | None, typer.Option(help="Default: paper-PAPER-NAME.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Put the results where docs/papers.md takes them from.")] = False,
) -> None:
    """Measure a paper's tables and figures and compare them with the paper's.

    Runs are those of `draftwood eval`, in directories below --out. The same command goes on after Ctrl-C, or with
    more --items or --seeds.
    """
    check_kernels()
    script, settings = import_module(f"benchmarks.papers.{paper}"), papers()[paper]
    asked = {"items": counted(items or (), settings.tasks), "seeds": seeds, "tokens": max_new_tokens}
    size = replace(
        script.SIZES["full" if full else "small"], **{key: count for key, count in asked.items() if count is not None}
    )
    known = pairs.pair(pair) if target is None else None
    name = name or (pair if target is None else target.stem.lower())
    out = out or Path(f"paper-{paper}-{name}")
    checkpoint = known.target if known is not None else target
    assert checkpoint is not None
    beside: Any = known.draft if known is not None and known.draft is not None else []
    types = {"dtype": dtype, "draft_dtype": draft_dtype, "quantize": quantize, "device": device}
    engine = load(checkpoint, beside if draft is None else draft, **types)  # type: ignore[arg-type]
    if head is not None and drafter != "eagle":
        raise ConfigurationError(f"--head is what --drafter eagle drafts from, not {drafter}; say --drafter eagle")
    file = {"exit": exit, "eagle": head}.get(drafter)
    drafts: dict[str, str] = {} if drafter == "model" else {"drafter": drafter}
    if file is not None:
        drafts["exit" if drafter == "exit" else "head"] = str(file)
    heads_at, exit_at = (None if each is None else str(each) for each in (heads, exit))
    own = Models(name, engine, checkpoint, data, prompts, given, texts, heads_at, exit_at, drafts, seen or ())
    own.check()
    listed = list(script.measure(Study(settings, own, size, out)))
    usual = [each for each in listed if full or each not in getattr(script, "ASKED_FOR", ())]
    check_target(out, listed, own.origins)
    until = time.monotonic() + 60 * minutes if minutes is not None else math.inf
    with Console(stderr=True).status("preparing") as status:
        for each in chosen(listed, part or usual):
            taught = steps or (1500 if full else 300)
            study = Study(settings, own, size, out, full, taught, batch, method or (), status.update, until)
            if study.over:
                break
            try:
                script.measure(study)[each]()
            except ConfigurationError as error:
                if not (study.over and any((out / "parts").glob("*.json"))):
                    raise
                status.console.print(f"{each} is left out: {error}", soft_wrap=True)  # finished parts are merged
                break
            about = {"items": size.items, "seeds": size.seeds, "tokens": size.tokens}
            by = {"made_by": made_by(sys.argv[1:]), "origins": own.origins}
            result = {"part": each, **by, "size": about, **study.tables()}
            write(out / "parts" / f"{each}.json", result)
    document = merged(paper, name, out, listed)
    place = RESULTS / f"{paper}-{name}.json" if keep else out / "results.json"
    write(place, document)
    notes = [note for each in document["parts"] for note in each["notes"]] + document["notes"]
    print(findings([document]), "\n".join(dict.fromkeys(notes)), place, sep="\n")


def counted(items: Sequence[str], tasks: Collection[str]) -> int | dict[str, int] | None:
    """What --items says: a number for all tasks, or one for each that is named; ConfigurationError for other words."""
    result: dict[str, int] = {}
    for each in sorted(items, key=lambda each: "=" in each):  # a number for all first, whatever the order
        task, _, count = each.rpartition("=")
        if (task and task not in tasks) or not count.isdecimal() or not int(count):
            example = next(iter(tasks))
            raise ConfigurationError(
                f"--items {each} is neither a number from 1 nor one of a task of this paper ({', '.join(tasks)}); "
                f"say --items 30 or --items {example}=30"
            )
        result |= dict.fromkeys([task] if task else tasks, int(count))
    return result.popitem()[1] if len({*result.values()}) == 1 and len(result) == len(tasks) else result or None


def chosen(parts: Sequence[str], wanted: Sequence[str]) -> Sequence[str]:
    """The parts that are asked for; raises ConfigurationError for one that the paper does not have."""
    for each in wanted:
        if each not in parts:
            raise ConfigurationError(f"there is no part {each!r}" + did_you_mean(each, parts))
    return wanted


def made_by(arguments: Sequence[str]) -> str:
    """The command, with the last name of each absolute path in place of the whole."""
    short = [Path(each).name if each.startswith(("/", "~")) else each for each in arguments]
    return f"python -m benchmarks.papers {shlex.join(short)}"


def parts_of(out: Path, order: Sequence[str]) -> list[dict[str, Any]]:
    """The results of the parts that were measured into a directory."""
    files = [out / "parts" / f"{part}.json" for part in order]
    return [read(file) for file in files if file.is_file()]


def check_target(out: Path, order: Sequence[str], origins: Mapping[str, str]) -> None:
    """Raise ConfigurationError where a directory has a part of another target."""
    for part in parts_of(out, order):
        if (other := part["origins"]["target"]) != origins["target"]:
            raise ConfigurationError(
                f"{out} holds {part['part']} of the target {other}, not {origins['target']}; choose another --out"
            )


def differing(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each role that not the same models play in all parts."""
    result = []
    for role in ("draft", "drafter", "exit", "heads"):
        played = {part["part"]: part["origins"][role] or "none" for part in parts}
        if len({*played.values()}) > 1:
            each = ", ".join(f"{model} in {part}" for part, model in played.items())
            result.append(f"Parts have different models as {role}: {each}.")
    return result


def merged(paper: str, name: str, out: Path, order: Sequence[str]) -> dict[str, Any]:
    """The result file of all parts that were measured into a directory."""
    parts = parts_of(out, order)
    tables = {key: [row for part in parts for row in part["tables"][key]] for key in ("findings", "learned", "rows")}
    learned = [row for i, row in enumerate(tables["learned"]) if row not in tables["learned"][:i]]
    about = [{key: part[key] for key in ("part", "made_by", "environment", "size", "notes")} for part in parts]
    tables["learned"] = learned
    return {"paper": paper, "pair": name, "notes": differing(parts), "parts": about, "tables": tables}


if __name__ == "__main__":
    sys.exit(started(app, "benchmarks.papers"))
