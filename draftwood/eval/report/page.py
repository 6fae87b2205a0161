"""The page: one HTML file with everything in it, and its figures as SVG and PNG files.

Knows the order of things on the page. Nothing in it is fetched: it can be mailed, and opened from a disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from draftwood.errors import ConfigurationError
from draftwood.eval.report import tables
from draftwood.eval.report.charts import Figure
from draftwood.eval.report.figures import Task, file_name
from draftwood.eval.report.naming import grown_line, method_names, models_line, sampling_line
from draftwood.eval.report.reading import directories, summary_of
from draftwood.eval.summary import understood
from draftwood.util import plots

PAGE, FIGURES = "report.html", "figures"
FILES = ("svg", "png", "pdf")
WORDS = (
    ("target", "the model whose text is wanted."),
    ("draft", "what a cheaper model (or a part of the target, or the text so far) guesses comes next."),
    ("plain decoding", "one forward of the target for each token: what all methods are compared with."),
    ("round", "one phase of drafting and one forward of the target, which judges all drafts at once."),
    ("accepted", "of a draft: kept, because the rule that compares draft and target let it pass."),
    ("lossless", "of a method: its text has exactly the distribution that its reference would give."),
    ("tau", "tokens per forward of the target. Speed-up is less than tau, since drafting takes time, too."),
    ("c", "how dear a forward of the draft is: its seconds over those of a forward of the target."),
    ("beam", "a hypothesis of the whole text; several are kept and extended side by side."),
    ("width, depth", "how many beams a layer holds; how many drafts in a row a round had accepted."),
    ("95% interval", "where the value would lie in 95% of repetitions with other items of the same kind (bootstrap)."),
    ("Pareto front", "methods that no other method beats in quality and speed at once."),
)


@dataclass(frozen=True, slots=True)
class Section:
    """One evaluation: a directory's summary with the name it has on the page."""

    name: str
    summary: Mapping[str, Any]

    @property
    def labels(self) -> list[str]:
        return method_names(self.summary["configuration"]["methods"])

    @property
    def tasks(self) -> list[Task]:
        """The tasks with their rows."""
        rows = self.summary["rows"]
        names = dict.fromkeys(row["task"] for row in rows)
        return [Task(name, [row for row in rows if row["task"] == name], self.labels) for name in names]


def write(
    place: Path, out: Path | None = None, on_figure: Callable[[str], None] = lambda title: None, kind: str = "svg"
) -> tuple[Path, list[Path]]:
    """The page about `place` (an evaluation, or a directory of several) and its figures: (page, figure files).

    They go to `out`, by default `place` itself; `kind` of the files is one of FILES. Raises ConfigurationError where
    there are no results, and without matplotlib.
    """
    if kind not in FILES:
        raise ConfigurationError(f"figures cannot be written as {kind!r}; choose one of {', '.join(FILES)}")
    out = place if out is None else out
    with understood(place):
        sections = [Section(found.resolve().name, summary_of(found)) for found in directories(place)]
        figures = {(section.name, task.name): task.figures() for section in sections for task in section.tasks}
        stems = {
            figure.name if len(sections) == 1 else file_name(name, figure.name): figure
            for (name, _), made in figures.items()
            for figure in made
        }
        files = save(stems, out / FIGURES, on_figure, kind)
        text = html(sections, figures)
    page = out / PAGE
    page.write_text(text, "utf-8", errors="replace")
    return page, files


def save(
    figures: Mapping[str, Figure], folder: Path, on_figure: Callable[[str], None], kind: str = "svg"
) -> list[Path]:
    """Figures as files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{stem}.{kind}" for stem in figures]
    for file, figure in zip(files, figures.values(), strict=True):
        on_figure(figure.title)
        if kind == "svg":
            file.write_text(plots.document(figure.svg), "utf-8")
        else:
            plots.save(figure.drawn(), file)
    return files


def html(sections: Sequence[Section], figures: Mapping[tuple[str, str], Sequence[Figure]]) -> str:
    """The page as text, with the figures of each section's tasks."""
    environment = Environment(
        loader=PackageLoader("draftwood.eval.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        sections=[_section(section, figures, number) for number, section in enumerate(sections, 1)],
        words=WORDS,
        plot_style=Markup(plots.STYLE),
    )


def _section(section: Section, figures: Mapping[tuple[str, str], Sequence[Figure]], number: int) -> dict[str, Any]:
    summary, tasks = section.summary, section.tasks
    configuration = summary["configuration"]
    energy = summary["energy"]
    seeds = len(configuration["seeds"])
    return {
        "id": f"e{number}",
        "name": section.name,
        "runs": summary["runs"],
        "complete": summary["complete"],
        "models": models_line(configuration["models"]),
        "grown": grown_line(configuration["models"]),
        "sampling": sampling_line(configuration["sampling"]),
        "seeds": f"{seeds} seed{'s' * (seeds != 1)}",
        "energy": energy if isinstance(energy, str) else None,
        "overview": tables.overview(tasks),
        "settings": tables.settings(tasks[0].rows, section.labels),
        "sessions": summary["sessions"],
        "tasks": [
            {
                "id": f"e{number}-{file_name(task.name, 'task')}",
                "name": task.name,
                "items": next(each["items"] for each in configuration["tasks"] if each["name"] == task.name),
                "conclusion": tables.conclusion(task),
                "table": tables.task_table(task),
                "errors": [(label, row["errors"]) for row, label, _ in task if row["errors"]],
                "figures": [
                    {"figure": figure, "svg": Markup(figure.svg)} for figure in figures[section.name, task.name]
                ],
            }
            for task in tasks
        ],
        "rows": [
            (f"{row['task']}: {label}", json.dumps({"method": row["method"], **row["configuration"]}, indent=1))
            for task in tasks
            for row, label, _ in task
        ],
    }
