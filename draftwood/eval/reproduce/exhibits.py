"""Our side of a paper's exhibits: figures, tables, comparisons and sentences, as their declarations ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from statistics import fmean
from typing import Any

from benchmarks.kinds.learned import Places
from draftwood.eval.energy import ESTIMATED
from draftwood.eval.report.charts import UNBOUNDED, Curve, Dot, Figure, Span, curves, scatter
from draftwood.eval.report.figures import file_name, times
from draftwood.eval.report.measures import JOULES, MEASURES, NONE, PERPLEXITY, SCORE, cell, ends, exact
from draftwood.eval.report.naming import LOWER_IS_BETTER, score_bounds, score_name
from draftwood.eval.report.tables import METHOD, Column, Table
from draftwood.eval.reproduce.comparison import Comparison, Finding, Order
from draftwood.eval.reproduce.paper import (
    Chosen,
    Compared,
    Drawn,
    Ends,
    EqualQuality,
    Exhibit,
    Note,
    Ours,
    Paper,
    Ranked,
    grouped,
)
from draftwood.eval.reproduce.results import Measured, Results
from draftwood.util.plots import PALETTE


@dataclass(frozen=True, slots=True)
class Shown:
    """An exhibit of the paper, and ours."""

    paper: Exhibit
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()


def shown(paper: Paper, results: Results, made: Places) -> list[Shown]:
    """All exhibits in the paper's order; ours are empty where nothing has been measured yet."""
    return [_shown(exhibit, paper, results, made) for exhibit in paper.exhibits]


def _shown(exhibit: Exhibit, paper: Paper, results: Results, made: Places) -> Shown:
    ours = exhibit.ours
    if ours.needs in made.missing:
        return Shown(exhibit, notes=[made.missing[ours.needs]])
    if ours.shows == "training":
        tables = [made_of(rows) for rows, made_of in ((made.rows, trained), (made.costs, costs)) if rows]
        return Shown(exhibit, tables=tables, notes=ours.notes)
    if ours.shows == "decisions":
        figures = [
            Figure(file_name(exhibit.id, f"1-{place}"), f"Predicted acceptance, {row['kind']}", "", overlapping(row))
            for place, row in enumerate(made.judged, 1)
        ]
        return Shown(exhibit, figures, [decisions(made.judged)] if made.judged else (), notes=ours.notes)
    found = results.get(ours.of)
    if found is None:
        return Shown(exhibit)
    tasks = list(ours.tasks or found.tasks)
    findings: list[Finding] = [
        comparison
        for each in ours.compare
        if (of := results.get(each.evaluation or ours.of)) is not None
        for comparison in compared(each, exhibit, paper, of, tasks)
    ]
    findings += [order for each in ours.rank for order in ranked(each, exhibit, paper, found)]
    notes = [made.missing[name] for name in ours.missing if name in made.missing]
    for equal, task in product(ours.equal_quality, tasks):
        comparisons, more = equal_quality(equal, exhibit, found, task)
        findings += comparisons
        notes.append(more)
    labels = found.choose(ours.methods)
    notes += [trend(found, y, x, task, labels) for y, x in ours.trends.items() for task in tasks]
    notes += [sentence for each in ours.say for sentence in sentences(each, found, tasks)]
    if JOULES.title in ours.table and not any(JOULES.of(row) for row in found.summary["rows"]):
        notes.append(f"Energy is {ESTIMATED}; see the documentation of evaluations.")
    figures = [
        Figure(file_name(exhibit.id, f"{place}-{part}"), title, "", chart)
        for place, each in enumerate(ours.figures, 1)
        if (of := results.get(each.of or ours.of)) is not None
        for part, (title, chart) in enumerate(drawn(each, of, ours), 1)
    ]
    tables = [table(found, ours)] if ours.table else []
    return Shown(exhibit, figures, tables, findings, [*notes, *ours.notes])


def main_findings(exhibits: Sequence[Shown]) -> list[tuple[str, Finding]]:
    """(source, finding) of all exhibits, the main ones."""
    return [(each.paper.short, one) for each in exhibits for one in each.findings if one.main]


# -- tables and figures ------------------------------------------------------------------------------------------------


def table(found: Measured, ours: Ours) -> Table:
    """A row for each method, and for each task its measures; those that nothing has are left out."""
    columns: list[tuple[Column, list[str]]] = []
    labels = found.choose(ours.methods)
    for task in ours.tasks or found.tasks:
        for measure in map(MEASURES.__getitem__, ours.table):
            if measure is PERPLEXITY and SCORE.title in ours.table and found.metric(task) in LOWER_IS_BETTER:
                continue  # it is the score
            title = score_name(found.metric(task)) if measure is SCORE else measure.title
            cells = [measure.cell(found.row(task, label)) for label in labels]
            if {*cells} != {NONE}:
                columns.append((Column(f"{task}: {title}", measure.about), cells))
    rows = [[_labelled(found, label), *(cells[i] for _, cells in columns)] for i, label in enumerate(labels)]
    return Table([METHOD, *(column for column, _ in columns)], rows)


def trained(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What training the exits took."""
    columns = [METHOD, Column("Trained", "Weights that training changes."), Column("Steps", "Steps of training.")]
    columns.append(Column("Seconds/batch", "Wall time of training over its steps."))
    cells = [
        [row["exit"], f"{row['parameters'] / 1e6:.2f}M", str(row["steps"]), cell(exact(row.get("seconds_per_step")))]
        for row in rows
    ]
    return Table(columns, cells)


def costs(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What a step of training costs for each kind of drafter."""
    columns = [METHOD, Column("Loaded", "Weights that a step needs."), Column("Trained", "Weights that it changes.")]
    columns += [Column("Seconds/batch", "Median of the timed steps."), Column("Batch", "Rows and their length.")]
    sizes = [[f"{row[name] / 1e6:.2f}M" for name in ("loaded", "trained")] for row in rows]
    return Table(
        columns,
        [
            [row["method"], *size, cell(exact(row["seconds"]), 3), row["step"]]
            for row, size in zip(rows, sizes, strict=True)
        ],
    )


def decisions(rows: Sequence[Mapping[str, Any]]) -> Table:
    """How well decision models predict on prompts that they did not see."""
    numbers = {
        "ROC area": ("auc", "Chance that an accepted draft is ranked above a rejected one."),
        "Overlap": ("overlap", "Common area of both histograms; 0 separates them, 1 says nothing."),
        "Log loss": ("log_loss", "Nats for each draft."),
        "Log loss of the share": ("base_loss", "The same of always predicting the share of accepted drafts."),
    }
    columns = [Column("Inputs", "What the model reads of the draft."), Column("Drafts", "That were held out.")]
    columns += [Column(name, about) for name, (_, about) in numbers.items()]
    cells = [[row["kind"], str(row["examples"]), *(f"{row[key]:.3f}" for key, _ in numbers.values())] for row in rows]
    return Table(columns, cells)


def overlapping(row: Mapping[str, Any]) -> Any:
    """Shares of accepted and of rejected drafts by predicted chance (MCSD Figure 7)."""
    lines = [
        Curve(name, [((place + 0.5) / len(shares), Span(share)) for place, share in enumerate(shares)], colour)
        for name, shares, colour in zip(("accepted", "rejected"), row["histograms"], PALETTE, strict=False)
    ]
    return curves("predicted acceptance", "share of drafts", lines, bounds=(0.0, 1.0))


def _labelled(found: Measured, label: str) -> str:
    """A method's name, and that it is lossy if it is."""
    row = found.row(found.tasks[0], label)
    return label if row is None or row["lossless"] else f"{label} (lossy)"


def drawn(asked: Drawn, found: Measured, ours: Ours) -> Iterator[tuple[str, Any]]:
    """(title, chart): one chart, or one for each task."""
    tasks = asked.tasks or ours.tasks or found.tasks
    if asked.kind == "time":
        labels = found.choose(asked.methods or ours.methods)
        rows = [(f"{task}, {label}", row) for task in tasks for label in labels if (row := found.row(task, label))]
        yield asked.title, times([(label, row) for label, row in rows if row["decoding"]["tokens"]])
        return
    y = MEASURES[asked.y]
    if asked.kind == "bars":
        spans = {
            (_labelled(found, label), task): span
            for label in found.choose(asked.methods or ours.methods)
            for task in tasks
            if (span := y.span(found.row(task, label)))
        }
        if spans:
            yield asked.title, grouped(y.title, spans, y.even)
        return
    for task in tasks:
        metric = {SCORE: found.metric(task), PERPLEXITY: "perplexity"}.get(y, "")
        name = score_name(metric) or y.title
        made = _front if asked.kind == "front" else _curves
        if (chart := made(asked, ours, found, task, name, metric)) is not None:
            yield f"{asked.title}: {task}", chart


def _front(asked: Drawn, ours: Ours, found: Measured, task: str, name: str, metric: str) -> Any:
    x, y = MEASURES[asked.x], MEASURES[asked.y]
    families = list(zip(ours.lines, PALETTE, strict=False))
    dots = [
        Dot(chosen.label.format(**found.options(label)), at, height, colour)
        for chosen, (_, colour) in zip(ours.lines.values(), families, strict=True)
        for label in found.choose(chosen)
        if (at := x.span(row := found.row(task, label))) and (height := y.span(row))
    ]
    bounds = score_bounds(metric) if metric else UNBOUNDED
    return scatter(x.title, name, dots, metric not in LOWER_IS_BETTER, families, bounds) if dots else None


def _curves(asked: Drawn, ours: Ours, found: Measured, task: str, name: str, metric: str) -> Any:
    y, colours = MEASURES[asked.y], iter(PALETTE * 3)
    lines = []
    for line, chosen in ours.lines.items():
        points: dict[float, Span] = {
            float(found.options(label)[asked.x]): span
            for label in found.choose(chosen)
            if (span := y.span(found.row(task, label)))
        }
        if points:
            lines.append(Curve(line, sorted(points.items()), next(colours)))
    levels = found.choose(asked.levels) if asked.levels else []
    flat = [(label, span, next(colours)) for label in levels if (span := y.span(found.row(task, label)))]
    return curves(asked.axis, name, lines, flat, score_bounds(metric) if metric else UNBOUNDED) if lines else None


# -- comparisons -------------------------------------------------------------------------------------------------------


def compared(
    asked: Compared, exhibit: Exhibit, paper: Paper, found: Measured, tasks: Sequence[str]
) -> Iterator[Comparison]:
    """A comparison for each task, or one; none of methods that the evaluation does not have."""
    over = asked.over
    of = next(iter(found.choose(Chosen(match=asked.of))), "")
    if of:
        over = over.format(**found.options(of))
    if not {of, over or of} <= {*found.settings}:
        return
    measure = MEASURES[asked.measure] if asked.measure else None
    for task in [""] if asked.together else tasks:
        yield Comparison(
            what=asked.what.format(task=task or "all tasks", of=of, over=over),
            main=asked.main,
            paper=theirs(asked, exhibit, paper, task),
            ours=found.interval(task, of, measure) if measure else found.faster(of, over, [task] if task else None),
            unit=measure.unit if measure else "×",
            even=measure.even if measure else 1.0,
            most=asked.most,
            digits=asked.digits if asked.digits is not None else measure.digits if measure else 2,
        )


def theirs(asked: Compared, exhibit: Exhibit, paper: Paper, task: str) -> Ends:
    """The ends of what the paper gives."""
    if asked.range:
        return exhibit.ends(asked.range)
    where = {**asked.where, **_data_set(exhibit, paper, task)}
    numbers: list[float] = []
    for column in asked.columns:
        mine = exhibit.number(column, **where, **({"Method": asked.row} if asked.row else {}))
        if asked.against:
            other = exhibit.number(column, **where, Method=asked.against)
            mine = [a - b if asked.measure else a / b for a, b in zip(mine, other, strict=True)]
        numbers += mine
    return min(numbers), max(numbers)


def _data_set(exhibit: Exhibit, paper: Paper, task: str) -> dict[str, str]:
    return {"Data set": paper.tasks[task]} if task and "Data set" in exhibit.columns else {}


def ranked(asked: Ranked, exhibit: Exhibit, paper: Paper, found: Measured) -> Iterator[Order]:
    """An order for each task; the paper's values are means over its models."""
    for task in asked.tasks or found.tasks:
        data = _data_set(exhibit, paper, task)
        numbers = {name: exhibit.number(asked.column, **data, **{asked.key: name}) for name in asked.rows}
        yield Order(
            what=asked.what.format(task=task),
            main=asked.main,
            paper={asked.rows[name]: fmean(each) for name, each in numbers.items()},
            ours={label: found.interval(task, label, MEASURES[asked.measure]) for label in asked.rows.values()},
        )


def equal_quality(asked: EqualQuality, exhibit: Exhibit, found: Measured, task: str) -> tuple[list[Comparison], str]:
    """The fastest of our methods that is no worse, for each of theirs; compared with the best of these that has one."""

    def score(label: str) -> float:
        return -1.0 if (known := found.value(task, label, SCORE)) is None else known

    ours = found.choose(Chosen(match=asked.ours))
    matched = {
        other: found.fastest([label for label in ours if score(label) >= score(other)], task)
        for other in found.choose(Chosen(match=asked.theirs))
    }
    best = max(reversed([other for other, match in matched.items() if match] or list(matched)), key=score)
    match = matched[best]
    per_joule = "tokens per joule" + " (estimate)" * (not any(JOULES.of(row) for row in found.summary["rows"]))
    ratios = [("speed", asked.range, found.faster), (per_joule, asked.energy, found.thriftier)]
    comparisons = [
        Comparison(
            what=asked.what.format(task=task, measure=measure, over=best),
            paper=exhibit.ends(ends_of),
            ours=ratio(match, best, [task]) if match else None,
            absent="no setting is as good here",
        )
        for measure, ends_of, ratio in ratios
    ]
    fastest = "; ".join(f"as {other}: {each or 'no setting'}" for other, each in matched.items())
    what = comparisons[0].what
    return comparisons, f"{what}: as good or better, and fastest: {fastest}. Chosen after the fact, which flatters it."


# -- sentences ---------------------------------------------------------------------------------------------------------


def sentences(asked: Note, found: Measured, tasks: Sequence[str]) -> Iterator[str]:
    """A sentence for each method and task that has the numbers."""
    measure = MEASURES[asked.measure] if asked.measure else None
    for task in ["all tasks"] if asked.together else asked.tasks or tasks:
        labels = found.choose(asked.of)
        if asked.best:
            labels = [fastest] if (fastest := found.fastest(labels, task)) else []
        for of in labels:
            over = asked.over.format(**found.options(of))
            if "*" in over:
                over = found.fastest(found.choose(Chosen(match=over)), task) or ""
            if asked.over and over not in found.settings:
                continue
            if measure and over:
                mine, other = (found.value(task, label, measure) for label in (of, over))
                ours = exact(mine / other if mine and other else None)
            elif measure:
                ours = found.interval(task, of, measure) or exact(None)
            else:
                ours = found.faster(of, over, None if asked.together else [task]) or exact(None)
            number = ours["value"]
            if number is None or (asked.above is not None and number <= asked.above):
                continue
            low, high = (number if end is None else end for end in (ours["low"], ours["high"]))
            word = "faster" if low > 1 else "slower" if high < 1 else "no clear difference"
            yield asked.say.format(task=task, of=of, over=over, value=number, ends=ends(ours), word=word)


def trend(found: Measured, y: str, x: str, task: str, labels: Sequence[str]) -> str:
    """Whether a measure rises with another over settings, as a rank correlation (Kendall's tau)."""
    points = [tuple(found.value(task, label, MEASURES[name]) for name in (x, y)) for label in labels]
    known = [(a, b) for a, b in points if a is not None and b is not None]
    if len(known) < 3:
        return f"{y} over {x.lower()}: too few settings to tell."
    tau = fmean(_sign((a - c) * (b - d)) for (a, b), (c, d) in combinations(known, 2))
    words = "rises with" if tau > 0.3 else "falls with" if tau < -0.3 else "shows no clear trend with"
    return f"{y} {words} the {x.lower()} over these {len(known)} settings (Kendall's tau {tau:.2f})."


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)
