"""What the papers say: their tables transcribed, and what their figures claim."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftwood.eval.report.charts import Figure, Group, Groups, Span, Stack, Stacks
from draftwood.eval.report.figures import file_name
from draftwood.eval.report.tables import Column, Table
from draftwood.plots import PALETTE
from draftwood.reading import parse_yaml

Cell = str | float
Ends = tuple[float, float]


class Redrawn(BaseModel):
    """A grouped bar chart of a column: bars for each `label`, one for each combination of `group`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: str
    label: str
    group: tuple[str, ...] = ()
    where: dict[str, Cell] = Field(default_factory=dict)  # rows with these values only


class Exhibit(BaseModel):
    """A table or figure of a paper: what it claims, its numbers, and where they stand.

    `said` is what the text says of a figure that has no numbers; `ranges` are named values or ranges of the text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row of {self.id} does not have as many cells as there are columns")
        if not self.rows and not self.said:
            raise ValueError(f"{self.id} has neither rows nor words")
        named = [name for chart in self.charts for name in (chart.value, chart.label, *chart.group, *chart.where)]
        if not {*named, *self.stacks} <= {*self.columns}:
            raise ValueError(f"{self.id} draws a column that it does not have")
        return self

    def value(self, row: Sequence[Cell], column: str) -> Cell:
        """A cell by the name of its column."""
        return row[self.columns.index(column)]

    def number(self, column: str, **where: Cell) -> list[float]:
        """Numbers of a column, of the rows whose other cells are as told; spaces in names are underscores."""
        wanted = {name.replace("_", " "): cell for name, cell in where.items()}
        return [
            float(self.value(row, column))
            for row in self.rows
            if all(self.value(row, name) == cell for name, cell in wanted.items())
        ]

    def ends(self, name: str) -> Ends:
        """A range of `ranges`; the ends of a single value are equal."""
        found = self.ranges[name]
        return found if isinstance(found, tuple) else (found, found)

    @property
    def table(self) -> Table | None:
        """The numbers as the paper gives them."""
        if not self.rows:
            return None
        digits = [_decimals(column) for column in zip(*self.rows, strict=True)]
        cells = [[said(cell, most) for cell, most in zip(row, digits, strict=True)] for row in self.rows]
        return Table([Column(name, name) for name in self.columns], cells)

    def figures(self) -> list[Figure]:
        """The numbers redrawn."""
        found = [
            Figure(
                file_name(self.id, f"paper-{number}"), f"{chart.value}, as the paper gives it", "", self._bars(chart)
            )
            for number, chart in enumerate(self.charts, 1)
        ]
        if self.stacks:
            rows = [
                Stack(
                    ", ".join(str(self.value(row, name)) for name in self.columns if name not in self.stacks),
                    [float(self.value(row, name)) for name in self.stacks],
                )
                for row in self.rows
            ]
            parts = list(zip(self.stacks, PALETTE, strict=False))
            chart = Stacks(self.setting.partition(",")[0], parts, rows)
            found.append(Figure(file_name(self.id, "paper"), "As the paper gives it", "", chart))
        return found

    def _bars(self, chart: Redrawn) -> Groups:
        rows = [row for row in self.rows if all(self.value(row, name) == cell for name, cell in chart.where.items())]
        varied = [name for name in chart.group if name not in chart.where]

        def part(row: Sequence[Cell]) -> str:
            return ", ".join(
                f"{name} {v}" if name == "Temperature" else str(v) for name in varied for v in [self.value(row, name)]
            )

        parts = list(dict.fromkeys(map(part, rows)))
        labels = list(dict.fromkeys(str(self.value(row, chart.label)) for row in rows))
        cells = {(str(self.value(row, chart.label)), part(row)): float(self.value(row, chart.value)) for row in rows}
        return Groups(
            chart.value,
            [(name, PALETTE[i % len(PALETTE)]) for i, name in enumerate(parts)],
            [
                Group(label, [Span(cells[label, name]) if (label, name) in cells else None for name in parts])
                for label in labels
            ],
            1.0 if "speed-up" in chart.value.lower() else None,
        )


class Paper(BaseModel):
    """A paper's exhibits, in its order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    authors: str
    setting: str
    notes: tuple[str, ...] = ()
    exhibits: tuple[Exhibit, ...]

    def exhibit(self, name: str) -> Exhibit:
        """An exhibit by its id."""
        return next(each for each in self.exhibits if each.id == name)


def said(cell: Cell, digits: int) -> str:
    """A cell as text."""
    return cell if isinstance(cell, str) else f"{cell:.{digits}f}"


def _decimals(column: Sequence[Cell]) -> int:
    """Of the number in a column that has most of them, as all of its numbers are printed."""
    return max((len(f"{cell:g}".partition(".")[2]) for cell in column if not isinstance(cell, str)), default=0)


def load(name: str) -> Paper:
    """dsbd, mcsd or eesd."""
    text = (files("draftwood.eval.reproduce") / "papers" / f"{name}.yaml").read_text("utf-8")
    return Paper.model_validate(parse_yaml(text))
