"""The page about evaluations: one HTML file with everything in it, and its figures as files. Nothing is fetched."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from draftwood.errors import ConfigurationError
from draftwood.eval.report.figures import Figure, IntervalFigures, energies, figures, file_name, known
from draftwood.eval.store import CONFIGURATION
from draftwood.eval.summary import ResultRow, summary_of, understood
from draftwood.explain.terminal import method_label, origins
from draftwood.sampling.params import SamplingParams
from draftwood.util import plots

PAGE, FIGURES = "report.html", "figures"
FILES = ("svg", "png", "pdf")
NONE = "–"
FEW_ITEMS = 10  # below which a bootstrap interval is too narrow
TEXTS = yaml.safe_load((files(__package__) / "texts.yaml").read_text("utf-8"))


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
        places, sections = directories(place), []
        writer = FigureWriter(out / FIGURES, kind, on_figure)
        for number, directory in enumerate(places, 1):
            name, summary = directory.resolve().name, summary_of(directory)
            prefix = (name,) if len(places) > 1 else ()
            sections.append(_section(f"e{number}", name, summary, partial(writer.write, prefix)))
        environment = Environment(
            loader=PackageLoader("draftwood.eval.report", "."), autoescape=True, undefined=StrictUndefined
        )
        text = environment.get_template("page.html").render(sections=sections, plot_style=Markup(plots.STYLE))
    page = out / PAGE
    page.write_text(text, "utf-8", errors="replace")
    return page, writer.files


@dataclass(slots=True)
class FigureWriter:
    """Writes figures into a folder as files of a kind."""

    folder: Path
    kind: str
    on_figure: Callable[[str], None]
    files: list[Path] = field(default_factory=list)

    def write(self, prefix: Sequence[str], figure: Figure) -> dict[str, Any]:
        """Write a figure, the file's name behind a prefix; the figure as the template shows it."""
        chart, _, counter = figure.kind.partition("energy-")
        texts = TEXTS["figures"][chart or "energy"]
        title = texts["title"] + f", {counter}" * bool(counter)
        self.on_figure(title)
        self.folder.mkdir(parents=True, exist_ok=True)
        image, file = figure.drawn(), self.folder / f"{file_name(*prefix, figure.name)}.{self.kind}"
        svg = plots.svg(image, title)
        if self.kind == "svg":
            file.write_text(plots.document(svg), "utf-8")
        else:
            plots.save(image, file)
        self.files.append(file)
        return {"title": title, "about": texts["about"], "svg": Markup(svg)}


def directories(place: Path) -> list[Path]:
    """`place` itself, or the evaluations right below it; ConfigurationError where there are none."""
    if not place.is_dir():
        raise ConfigurationError(f"{place} is not a directory; give one that `draftwood eval --out` wrote")
    if (place / CONFIGURATION).is_file():
        return [place]
    result = sorted(path.parent for path in place.glob(f"*/{CONFIGURATION}"))
    if not result:
        raise ConfigurationError(
            f"{place} holds no results ({CONFIGURATION}); give a directory that `draftwood eval --out` wrote, or one "
            "that holds several of these"
        )
    return result


def _section(
    id: str, name: str, summary: Mapping[str, Any], write_figure: Callable[[Figure], dict[str, Any]]
) -> dict[str, Any]:
    """An evaluation as the template shows it; its figures are written on the way."""
    configuration = summary["configuration"]
    models, energy, labels = configuration["models"], summary["energy"], names(configuration["methods"])
    drafts = ", ".join(map(str, models.get("draft") or ())) or "none"
    about = [f"target {models.get('target', 'unknown')}", f"draft {drafts}", str(models.get("device", ""))]
    tasks, speed_ups = [], dict[str, list[IntervalFigures | None]]()
    for task in configuration["tasks"]:
        rows = [row for row in summary["rows"] if row["task"] == task["name"]]
        for label, row in zip(labels, rows, strict=True):
            if row["paired"]:
                speed_ups.setdefault(label, []).append(row["paired"]["speed_up"])
        tasks.append(
            {
                "id": f"{id}-{file_name(task['name'], 'task')}",
                "name": task["name"],
                "items": task["items"],
                "conclusion": conclusion(rows, labels),
                "table": table(rows, labels),
                "errors": [(label, row["errors"]) for label, row in zip(labels, rows, strict=True) if row["errors"]],
                "figures": [write_figure(figure) for figure in figures(task["name"], rows, labels)],
                "rows": [
                    (label, json.dumps({"method": row["method"], **row["configuration"]}, indent=1))
                    for label, row in zip(labels, rows, strict=True)
                ],
            }
        )
    seeds = len(configuration["seeds"])
    return {
        "id": id,
        "name": name,
        "runs": summary["runs"],
        "complete": summary["complete"],
        "models": " · ".join(filter(None, [*about, *origins(models)])),
        "sampling": sampling_line(configuration["sampling"]),
        "seeds": f"{seeds} seed{'s' * (seeds != 1)}",
        "energy": energy if isinstance(energy, str) else None,
        "overview": [(label, [*map(cell, ratios), _mean(ratios)]) for label, ratios in speed_ups.items()],
        "sessions": summary["sessions"],
        "tasks": tasks,
    }


def names(methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label for each method, with its options that are not the usual ones; no two are equal."""
    labels = [method_label(method) for method in methods]
    return [label if labels.count(label) == 1 else f"{label} ({place})" for place, label in enumerate(labels)]


def sampling_line(sampling: Mapping[str, Any]) -> str:
    """The temperature and the sampling options that are set."""
    changed = SamplingParams(**sampling).model_dump(exclude_defaults=True, exclude={"temperature"})
    return ", ".join(
        [f"temperature {sampling['temperature']:g}", *(f"{key} {value}" for key, value in changed.items())]
    )


def cell(interval: IntervalFigures | None, digits: int = 2) -> str:
    """0.81 [0.70, 0.92]"""
    if interval is None or interval["value"] is None:
        return NONE
    text, low, high = f"{interval['value']:.{digits}f}", interval["low"], interval["high"]
    return text if low is None or high is None else f"{text} [{low:.{digits}f}, {high:.{digits}f}]"


def _mean(ratios: Sequence[IntervalFigures | None]) -> str:
    """The geometric mean of speed-ups over tasks."""
    values = [one["value"] for one in ratios if one is not None and one["value"]]
    return f"{math.prod(values) ** (1 / len(values)):.2f}" if values and len(values) == len(ratios) else NONE


def columns(rows: Sequence[ResultRow]) -> dict[str, Callable[[ResultRow], str]]:
    """The columns of a task's table, each with the text of its cells: quality, speed, and what explains the speed."""
    metric = rows[0]["quality"]["metric"]
    others = dict.fromkeys(name for row in rows for name in row["quality"] if name not in ("metric", metric))
    scores = [metric, *(name for name in others if any(known(row["quality"].get(name)) for row in rows))]

    def of_rounds(name: str, needs: str) -> Callable[[ResultRow], str]:
        return lambda row: cell(row["decoding"][name]) if row["decoding"][needs] else NONE

    def failed(row: ResultRow) -> str:
        decoding, scoring = row["runs"]["failed_to_decode"], row["runs"]["failed_to_score"]
        return f"{decoding} + {scoring} of {row['runs']['made']}" if decoding or scoring else "0"

    def cost(row: ResultRow) -> str:
        c = row["timing"]["draft_cost_ratio"]
        return NONE if c is None else f"{c:.2f}"

    return {
        **{name: _quality(name) for name in scores},
        "Tokens/s": lambda row: cell(row["timing"]["tokens_per_second"], 0),
        "Speed-up": lambda row: cell(row["paired"]["speed_up"]) if row["paired"] else "1",
        "tau": of_rounds("tau", "rounds"),
        "Accepted": of_rounds("acceptance_rate", "drafted"),
        "One of n": of_rounds("bounded_rate", "bounded"),
        "alpha*(n)": of_rounds("acceptance_bound", "bounded"),
        "c": cost,
        **{f"J/token, {name}": _energy(name) for name in dict.fromkeys(name for row in rows for name in energies(row))},
        "Same text": lambda row: cell(row["paired"]["same_tokens"]) if row["paired"] else NONE,
        "Exact": lambda row: "yes" if row["lossless"] else "no",
        "Failed": failed,
    }


def _quality(name: str) -> Callable[[ResultRow], str]:
    return lambda row: cell(row["quality"].get(name))


def _energy(counter: str) -> Callable[[ResultRow], str]:
    return lambda row: cell(energies(row).get(counter, {}).get("joules_per_token"), 4)


def table(rows: Sequence[ResultRow], labels: Sequence[str]) -> dict[str, Any]:
    """Headings with their meanings, and the cells of each method."""
    made, meanings = columns(rows), TEXTS["columns"]
    return {
        "columns": [(title, meanings.get(title.partition(",")[0], "Mean score.")) for title in ("Method", *made)],
        "rows": [[label, *(text(row) for text in made.values())] for label, row in zip(labels, rows, strict=True)],
    }


def conclusion(rows: Sequence[ResultRow], labels: Sequence[str]) -> str:
    """One sentence: which lossless method was fastest, and whether that is beyond doubt."""
    compared = [
        (row["paired"]["speed_up"], label)
        for label, row in zip(labels, rows, strict=True)
        if row["lossless"] and row["paired"] and known(row["paired"]["speed_up"])
    ]
    if not compared:
        return "No lossless method was measured beside plain decoding."
    best, label = max(compared, key=lambda one: one[0]["value"])
    fastest = f"{label} was the fastest lossless method: {cell(best)} times plain decoding"
    if best["low"] is None:
        return f"{fastest}, on a single item: no interval can be given."
    if best["low"] > 1:
        few = f", but of {best['n']} items no interval says much." if best["n"] < FEW_ITEMS else ", so it is faster."
        return f"{fastest}; the interval lies above 1{few}"
    if best["high"] < 1:
        return f"{fastest}: nothing was faster than plain decoding."
    return f"{fastest}; the interval spans 1, so this measurement does not show that it is faster."
