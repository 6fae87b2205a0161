"""The page: the paper's exhibits beside ours, and behind them the ordinary report of the evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from benchmarks import execute
from benchmarks.execute import SCHEMA
from benchmarks.experiment import Rows
from benchmarks.kinds.learned import Places
from draftwood.eval.provenance import machine
from draftwood.eval.report import page as report
from draftwood.eval.report.charts import Figure
from draftwood.eval.report.figures import file_name
from draftwood.eval.report.naming import grown_line, models_line
from draftwood.eval.reproduce.exhibits import Shown, main_findings
from draftwood.eval.reproduce.paper import Paper
from draftwood.eval.reproduce.results import Results

PAGE, FIGURES, RESULTS = "reproduction.html", "figures", "results.json"


def write(
    paper: Paper,
    name: str,
    exhibits: Sequence[Shown],
    results: Results,
    out: Path,
    scale: str,
    made: Places,
    told: Callable[[str], None] = lambda what: None,
) -> tuple[Path, list[Path]]:
    """The page, its figures and results.json: (page, figure files)."""
    sections = [report.Section(each, found.summary, list(found.settings)) for each, found in results.items()]
    figures = {(section.name, task.name): task.figures() for section in sections for task in section.tasks}
    stems = {figure.name: figure for each in exhibits for figure in (*each.paper.figures(), *each.figures)}
    stems |= {file_name(part, figure.name): figure for (part, _), drawn in figures.items() for figure in drawn}
    files = report.save(stems, out / FIGURES, told)
    summaries = [found.summary for found in results.values()]
    models = summaries[0]["configuration"]["models"] if summaries else None
    session: dict[str, Any] = next((each for summary in summaries[:1] for each in summary["sessions"][-1:]), {})
    complete = bool(summaries) and all(summary["complete"] for summary in summaries)
    findings = main_findings(exhibits)
    text = report.html(
        sections,
        figures,
        ("draftwood.eval.reproduce", "reproduction.html"),
        paper=paper,
        scale=scale,
        size=paper.scales[scale],
        models=models_line(models) if models else "",
        grown=grown_line(models) if models else None,
        machine=machine(session),
        complete=complete,
        shown=[_exhibit(each) for each in exhibits],
        main=findings,
    )
    compared = [
        {"exhibit": source, "what": one.what, "paper": one.theirs, "here": one.here, "verdict": one.verdict}
        for source, one in findings
    ]
    size = paper.scales[scale]
    command = f"draftwood reproduce {name} --scale {scale} --limit {size.items} --seeds {size.seeds}"
    command += f" --max-new-tokens {size.tokens}" if size.tokens else ""
    command += f" --training-steps {size.learn.exits.steps}" if size.learn.exits else ""
    run = name
    if made.pair not in ("", "embedded"):
        run += f"-{made.pair.removeprefix('grown-')}"
        command += f" --target {made.pair}/target --draft {made.pair}/draft"
    if models and models["dtype"] != "float32":
        command += f" --dtype {models['dtype']}"
    document = {  # as the experiments' result files
        "schema": SCHEMA,
        "experiment": "reproductions",
        "run": run,
        "complete": complete,
        "made_by": command,
        "environment": dict(session),
        "models": {"pair": made.pair or (models_line(models) if models else "")},
        "settings": {"scale": scale, **size.sizes},
        "tables": {"comparisons": compared, "methods": _rows(results), "learned": [*made.rows, *made.judged]},
    }
    execute.write(out / RESULTS, document)
    page = out / PAGE
    page.write_text(text, "utf-8", errors="replace")
    return page, files


def _rows(results: Results) -> Rows:
    """A row for each method on each task of each evaluation."""
    rows: Rows = []
    for name, found in results.items():
        labels = list(found.settings)
        for number, row in enumerate(found.summary["rows"]):
            quality, counts, paired = row["quality"], row["decoding"], row["paired"] or {}
            known = {
                "score": quality.get(quality["metric"]),
                "perplexity": quality["perplexity"],
                "tokens_per_second": row["timing"]["tokens_per_second"],
                "speed_up": paired.get("speed_up"),
                **{key: counts[key] for key in ("tau", "acceptance_rate", "alpha", "harmonic_mean", "mean_width")},
            }
            head = {"evaluation": name, "task": row["task"], "method": labels[number % len(labels)]}
            rows.append({**head, "lossy": not row["lossless"], **{key: each for key, each in known.items() if each}})
    return rows


def _exhibit(each: Shown) -> dict[str, Any]:
    return {
        "paper": each.paper,
        "table": each.paper.table,
        "theirs": [_drawn(figure) for figure in each.paper.figures()],
        "ours": each,
        "drawn": [_drawn(figure) for figure in each.figures],
        "measured": bool(each.figures or each.tables),
    }


def _drawn(figure: Figure) -> dict[str, Any]:
    return {"figure": figure, "svg": Markup(figure.svg)}
