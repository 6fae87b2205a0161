"""A paper as its YAML file declares it: its tables transcribed, what its figures claim, what is measured for them."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from benchmarks.experiment import Strict, merged
from benchmarks.kinds.learned import Learned
from benchmarks.kinds.methods import Entry
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.eval.report.charts import Figure, Span, bars, stacks
from draftwood.eval.report.figures import file_name
from draftwood.eval.report.tables import Column, Table
from draftwood.util.plots import PALETTE
from draftwood.util.safe_parsing import parse_yaml

PAPERS = ("dsbd", "mcsd", "eesd")
Cell = str | float
Ends = tuple[float, float]


class Redrawn(Strict):
    """A grouped bar chart of a column: bars for each `label`, one for each combination of `group`."""

    value: str
    label: str
    group: tuple[str, ...] = ()
    where: dict[str, Cell] = Field(default_factory=dict)  # rows with these values only


class Chosen(Strict):
    """Methods by patterns of their labels and by options; `label` is a template over the options of each."""

    match: str | tuple[str, ...]
    where: dict[str, Any] = Field(default_factory=dict)
    label: str = "{label}"

    @model_validator(mode="before")
    @classmethod
    def _pattern(cls, given: Any) -> Any:
        return {"match": given} if isinstance(given, str | list) else given


class Drawn(Strict):
    """A figure of ours: bars of measure `y` by method and task, curves of it over option `x`, a Pareto front over
    measure `x`, or where the time goes."""

    kind: Literal["bars", "curves", "front", "time"] = "bars"
    title: str
    y: str = ""
    x: str = ""
    axis: str = ""  # what a curve's x is called
    levels: Chosen | None = None  # methods that do not depend on x
    methods: Chosen | None = None  # of bars; the exhibit's unless told
    tasks: tuple[str, ...] | None = None
    of: str = ""  # another evaluation


class Compared(Strict):
    """A quantity beside the paper's, for each task, or for all `together`: a measure of method `of`, or its speed over
    `over`. The paper gives a `range`, or `columns`: those of its method `row`, over those of `against`, or, of
    a measure, minus those.
    """

    what: str
    of: str
    over: str = ""
    measure: str = ""
    range: str = ""
    columns: tuple[str, ...] = ()
    row: str = ""
    against: str = ""
    where: dict[str, Cell] = Field(default_factory=dict)
    together: bool = False
    most: bool = False
    digits: int | None = None
    main: bool = True
    evaluation: str = ""  # another one


class Ranked(Strict):
    """An order of methods by a measure, beside that of the paper's column: `rows` has ours by the paper's `key`."""

    what: str
    measure: str
    column: str
    rows: dict[str, str]
    key: str = "Method"
    tasks: tuple[str, ...] | None = None
    main: bool = True


class Note(Strict):
    """A sentence for each method `of` on each task: {value} is a measure, or the speed over `over`, a label that may
    name options in braces, or a pattern, of which the fastest counts."""

    say: str
    of: Chosen
    over: str = ""
    measure: str = ""
    best: bool = False  # only of the method with most
    above: float | None = None  # only where the value is
    tasks: tuple[str, ...] | None = None
    together: bool = False


class EqualQuality(Strict):
    """The fastest of `ours` whose score is no less than that of each of `theirs`."""

    what: str
    ours: str
    theirs: str
    range: str
    energy: str


class Ours(Strict):
    """How an exhibit follows from an evaluation."""

    of: str = ""
    shows: Literal["", "training", "decisions"] = ""  # what was trained, in place of an evaluation
    needs: str = ""  # what is trained; where it is missing that is said, and nothing shown
    tasks: tuple[str, ...] | None = None
    methods: Chosen = Chosen(match="*")
    table: tuple[str, ...] = ()  # measures
    figures: tuple[Drawn, ...] = ()
    lines: dict[str, Chosen] = Field(default_factory=dict)  # curves, or families of dots
    compare: tuple[Compared, ...] = ()
    rank: tuple[Ranked, ...] = ()
    equal_quality: tuple[EqualQuality, ...] = ()
    trends: dict[str, str] = Field(default_factory=dict)  # measure -> the measure that it is put over
    say: tuple[Note, ...] = ()
    missing: tuple[str, ...] = ()  # what is said of, where it could not be trained
    notes: tuple[str, ...] = ()


class Exhibit(Strict):
    """A table or figure of a paper: what it claims, its numbers, and where they stand.

    `said` is what the text says of a figure that has no numbers; `ranges` are named values or ranges of the text.
    """

    id: str
    title: str
    source: str
    claim: str
    setting: str
    said: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    charts: tuple[Redrawn, ...] = ()
    stacks: tuple[str, ...] = ()  # columns that are parts of a whole; the others name the row
    ranges: dict[str, float | Ends] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ours: Ours

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row of {self.id} does not have as many cells as there are columns")
        if not self.rows and not self.said:
            raise ValueError(f"{self.id} has neither rows nor words")
        named = [name for chart in self.charts for name in (chart.value, chart.label, *chart.group, *chart.where)]
        named += [column for each in self.ours.compare for column in (*each.columns, *each.where)]
        if not {*named, *self.stacks, *(each.column for each in self.ours.rank)} <= {*self.columns}:
            raise ValueError(f"{self.id} names a column that it does not have")
        return self

    @property
    def short(self) -> str:
        """Table 1"""
        return self.source.partition(",")[0]

    def value(self, row: Sequence[Cell], column: str) -> Cell:
        """A cell by the name of its column."""
        return row[self.columns.index(column)]

    def number(self, column: str, **where: Cell) -> list[float]:
        """Numbers of a column, of the rows whose other cells are as told; spaces in names are underscores, and a text
        may be a pattern."""
        wanted = {name.replace("_", " "): cell for name, cell in where.items()}
        return [float(self.value(row, column)) for row in self._rows(wanted)]

    def _rows(self, wanted: dict[str, Cell]) -> list[tuple[Cell, ...]]:
        def fits(cell: Cell, given: Cell) -> bool:
            return cell == given or (isinstance(given, str) and fnmatchcase(str(cell), given))

        return [row for row in self.rows if all(fits(self.value(row, name), cell) for name, cell in wanted.items())]

    def ends(self, name: str) -> Ends:
        """A range of `ranges`; the ends of a single value are equal."""
        found = self.ranges[name]
        return found if isinstance(found, tuple) else (found, found)

    @property
    def table(self) -> Table | None:
        """The numbers as the paper gives them, those of a column with equally many decimals."""
        if not self.rows:
            return None
        digits = [
            max((len(f"{cell:g}".partition(".")[2]) for cell in column if not isinstance(cell, str)), default=0)
            for column in zip(*self.rows, strict=True)
        ]
        cells = [
            [cell if isinstance(cell, str) else f"{cell:.{most}f}" for cell, most in zip(row, digits, strict=True)]
            for row in self.rows
        ]
        return Table([Column(name, name) for name in self.columns], cells)

    def figures(self) -> list[Figure]:
        """The numbers redrawn."""
        charts = [(f"{each.value}, as the paper gives it", self._bars(each)) for each in self.charts]
        if self.stacks:
            names = [name for name in self.columns if name not in self.stacks]
            rows = [
                (
                    ", ".join(str(self.value(row, name)) for name in names),
                    [float(self.value(row, name)) for name in self.stacks],
                )
                for row in self.rows
            ]
            parts = list(zip(self.stacks, PALETTE, strict=False))
            charts.append(("As the paper gives it", stacks(self.setting.partition(",")[0], parts, rows)))
        return [
            Figure(file_name(self.id, f"paper-{place}"), title, "", chart)
            for place, (title, chart) in enumerate(charts, 1)
        ]

    def _bars(self, chart: Redrawn) -> Any:
        rows = self._rows(chart.where)
        varied = [name for name in chart.group if name not in chart.where]

        def part(row: Sequence[Cell]) -> str:
            return ", ".join(
                f"{name} {v}" if name == "Temperature" else str(v) for name in varied for v in [self.value(row, name)]
            )

        cells = {(str(self.value(row, chart.label)), part(row)): float(self.value(row, chart.value)) for row in rows}
        spans = {key: Span(number) for key, number in cells.items()}
        return grouped(chart.value, spans, 1.0 if "speed-up" in chart.value.lower() else None)


def grouped(axis: str, spans: dict[tuple[str, str], Span], reference: float | None) -> Any:
    """Bars by (label, part): a row for each label, a colour for each part."""
    parts = list(dict.fromkeys(part for _, part in spans))
    legend = [(name, PALETTE[place % len(PALETTE)]) for place, name in enumerate(parts)]
    rows = [
        (label, [(spans[label, name], colour, name) for name, colour in legend if (label, name) in spans])
        for label in dict.fromkeys(label for label, _ in spans)
    ]
    return bars(axis, rows, reference, [each for each in legend if each[0]])


class Scale(Strict):
    """How much is measured: items of each task, seeds of each item, most tokens of an answer, and what is trained."""

    items: int
    seeds: int
    tokens: int | None = None  # None: each task's own
    learn: Learned = Learned()

    @property
    def sizes(self) -> dict[str, int | None]:
        exits = self.learn.exits
        return self.model_dump(exclude={"learn"}) | ({"training_steps": exits.steps} if exits else {})


class Candidate(Entry):
    """A method of an evaluation, of one scale only if it is named."""

    scale: str = ""

    @property
    def method(self) -> str:
        """The method's name."""
        return str((self.model_extra or {})["name"])


class Declared(Strict):
    """One run of `draftwood eval`; the first method is plain decoding."""

    methods: tuple[Candidate, ...]
    sampling: dict[str, Any]
    tasks: tuple[str, ...] | None = None  # all unless told
    times: int = 1  # as many items as the scale has


class Paper(Strict):
    """A paper's exhibits, in its order, and the evaluations that they are made of."""

    name: str
    title: str
    authors: str
    setting: str
    notes: tuple[str, ...] = ()
    tasks: dict[str, str]  # ours -> the data set that it stands for
    scales: dict[str, Scale]
    evaluations: dict[str, Declared]
    exhibits: tuple[Exhibit, ...]

    @model_validator(mode="before")
    @classmethod
    def _alike(cls, given: Any) -> Any:
        """Give exhibits whose `ours` are `like` another's what that one has."""
        by_id = {each["id"]: each["ours"] for each in given["exhibits"]}
        exhibits = []
        for each in given["exhibits"]:
            own = dict(each["ours"])
            like = own.pop("like", None)
            exhibits.append({**each, "ours": merged(by_id[like], own) if like else own})
        return {**given, "exhibits": exhibits}

    def resized(self, scale: str, training_steps: int | None = None, **sizes: int | None) -> Self:
        """The same with other `items`, `seeds`, `tokens` or steps of training of a scale, where they are given."""
        given: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
        if training_steps is not None:
            learn = self.scales[scale].learn
            if learn.exits is None:
                raise ConfigurationError("only eesd --scale full trains exits; leave --training-steps out")
            exits = learn.exits.model_copy(update={"steps": training_steps})
            given["learn"] = learn.model_copy(update={"exits": exits})
        return self.model_copy(update={"scales": {**self.scales, scale: self.scales[scale].model_copy(update=given)}})

    def exhibit(self, name: str) -> Exhibit:
        """An exhibit by its id."""
        return next(each for each in self.exhibits if each.id == name)


@cache
def load(name: str) -> Paper:
    """dsbd, mcsd or eesd; raises ConfigurationError for any other."""
    if name not in PAPERS:
        raise ConfigurationError(f"there is no paper {name!r} to reproduce" + did_you_mean(name, PAPERS))
    text = (files("draftwood.eval.reproduce") / "papers" / f"{name}.yaml").read_text("utf-8")
    return Paper.model_validate(parse_yaml(text))
