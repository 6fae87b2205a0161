"""The page: the paper's exhibits beside ours, and behind them the ordinary report of the evaluations.

Knows the order of things on the page. Nothing in it is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from draftwood.eval.experiments import execute
from draftwood.eval.experiments.execute import SCHEMA
from draftwood.eval.experiments.experiment import Rows
from draftwood.eval.experiments.learned import Places
from draftwood.eval.report import page as report
from draftwood.eval.report.charts import Figure
from draftwood.eval.report.figures import file_name
from draftwood.eval.report.naming import grown_line, models_line
from draftwood.eval.reproduce.comparison import Comparison, Order
from draftwood.eval.reproduce.experiment import Experiment, Shown, Size
from draftwood.eval.reproduce.paper import Exhibit, Paper
from draftwood.eval.reproduce.results import Results

PAGE, FIGURES, RESULTS = "reproduction.html", "figures", "results.json"


@dataclass(frozen=True, slots=True)
class Beside:
    """An exhibit of the paper and ours."""

    paper: Exhibit
    ours: Shown


def exhibits(paper: Paper, experiment: Experiment, results: Results, size: Size, made: Places) -> list[Beside]:
    """All exhibits in the paper's order; ours are empty where nothing has been measured yet."""
    return [Beside(each, experiment.exhibits[each.id](each, results, size, made)) for each in paper.exhibits]


def comparisons(shown: Sequence[Beside]) -> list[tuple[str, Comparison | Order]]:
    """(source, comparison) of all exhibits, the main ones."""
    return [(each.paper.source.partition(",")[0], one) for each in shown for one in each.ours.comparisons if one.main]


def document(
    paper: str, scale: str, compared: Rows, measured: Mapping[str, tuple[Sequence[str], Mapping[str, Any]]]
) -> dict[str, Any]:
    """A result file as the experiments': comparisons, and a row for each method on each task.

    `measured` has for each evaluation the names of its methods and its summary.
    """
    rows: Rows = []
    first: Mapping[str, Any] = next((summary for _, summary in measured.values()), {})
    for name, (methods, summary) in measured.items():
        for number, row in enumerate(summary["rows"]):
            quality, counts, paired = row["quality"], row["decoding"], row["paired"] or {}
            known = {
                "score": quality.get(quality["metric"]),
                "perplexity": quality["perplexity"],
                "tokens_per_second": row["timing"]["tokens_per_second"],
                "speed_up": paired.get("speed_up"),
                **{key: counts[key] for key in ("tau", "acceptance_rate", "alpha", "harmonic_mean", "mean_width")},
            }
            head = {"evaluation": name, "task": row["task"], "method": methods[number % len(methods)]}
            rows.append({**head, "lossy": not row["lossless"], **{key: each for key, each in known.items() if each}})
    return {
        "schema": SCHEMA,
        "experiment": "reproductions",
        "run": paper,
        "complete": bool(measured) and all(summary["complete"] for _, summary in measured.values()),
        "made_by": f"draftwood reproduce {paper} --scale {scale}",
        "environment": dict(first["sessions"][-1]) if first and first["sessions"] else {},
        "models": {"pair": models_line(first["configuration"]["models"]) if first else ""},
        "settings": {"scale": scale},
        "tables": {"comparisons": compared, "methods": rows},
    }


def write(
    paper: Paper,
    shown: Sequence[Beside],
    results: Results,
    out: Path,
    scale: str,
    told: Callable[[str], None] = lambda what: None,
) -> tuple[Path, list[Path]]:
    """The page and its figures: (page, figure files)."""
    sections = [report.Section(name, found.summary) for name, found in results.measured.items()]
    figures = {(section.name, task.name): task.figures() for section in sections for task in section.tasks}
    stems: dict[str, Figure] = {}
    for each in shown:
        stems |= {figure.name: figure for figure in (*each.paper.figures(), *each.ours.figures)}
    for (name, _), drawn in figures.items():
        stems |= {file_name(name, figure.name): figure for figure in drawn}
    files = report.save(stems, out / FIGURES, told)
    first = next(iter(results.measured.values()), None)
    configuration: Mapping[str, Any] = first.summary["configuration"] if first else {}
    session = first.summary["sessions"][-1] if first and first.summary["sessions"] else {}
    text = report.html(
        sections,
        figures,
        ("draftwood.eval.reproduce", "reproduction.html"),
        paper=paper,
        scale=scale,
        models=models_line(configuration["models"]) if first else "",
        grown=grown_line(configuration["models"]) if first else None,
        machine=f"{session.get('processor', '')}, {session.get('device', '')}" if session else "",
        complete=bool(sections) and all(section.summary["complete"] for section in sections),
        shown=[_exhibit(each) for each in shown],
        main=comparisons(shown),
    )
    compared = [
        {"exhibit": source, "what": one.what, "paper": one.theirs, "here": one.here, "verdict": one.verdict}
        for source, one in comparisons(shown)
    ]
    measured = {name: (found.methods, found.summary) for name, found in results.measured.items()}
    execute.write(out / RESULTS, document(paper.name.lower(), scale, compared, measured))
    page = out / PAGE
    page.write_text(text, "utf-8", errors="replace")
    return page, files


def _exhibit(each: Beside) -> dict[str, Any]:
    return {
        "paper": each.paper,
        "table": each.paper.table,
        "theirs": [_drawn(figure) for figure in each.paper.figures()],
        "ours": each.ours,
        "drawn": [_drawn(figure) for figure in each.ours.figures],
        "measured": bool(each.ours.figures or each.ours.tables),
    }


def _drawn(figure: Figure) -> dict[str, Any]:
    return {"figure": figure, "svg": Markup(figure.svg)}
