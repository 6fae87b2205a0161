"""Heat maps of speeds: shaded numbers for terminals, with or without colour, and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.color import ColorSystem
from rich.style import Style

from draftwood.util import plots

if TYPE_CHECKING:
    from draftwood.core.shape import Shape
    from draftwood.tune.measuring import Standing
    from draftwood.tune.search import Guided

MAX_PREDICTED_WIDTH = 12  # first widths that are shown where nothing was measured
SHADES = " ░▒▓█"
COLOURS = ("on grey93", "on light_goldenrod2", "on sandy_brown", "on orange3", "on dark_orange3")  # dark: fast


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A speed, measured or predicted."""

    value: float
    measured: bool = True


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Cells by (row, column), the values of two options; `best` is the place to mark."""

    title: str
    down: str  # what rows are
    across: str  # what columns are
    cells: Mapping[tuple[Any, Any], HeatCell]
    best: tuple[Any, Any] | None = None

    @property
    def rows(self) -> list[Any]:
        return sorted({row for row, _ in self.cells})

    @property
    def columns(self) -> list[Any]:
        return sorted({column for _, column in self.cells})

    def shade(self, value: float) -> int:
        """0..4, from the slowest cell to the fastest."""
        values = [cell.value for cell in self.cells.values()]
        low, high = min(values), max(values)
        return min(int((value - low) / (high - low) * len(SHADES)), len(SHADES) - 1) if high > low else 0


def tree_maps(ranked: Sequence[Standing], guided: Guided | None, shapes: Iterable[Shape]) -> list[HeatMap]:
    """One map for each number of initial tokens: by k_1 and layers, the best of each, measured or predicted."""
    by_initial: dict[int, dict[tuple[int, int], HeatCell]] = {}
    for one in ranked:
        values = one.method.as_dict()
        place = values["tree"][0], len(values["tree"])
        by_initial.setdefault(values["initial"], {}).setdefault(place, HeatCell(one.speed_up))
    if guided is not None:
        best: dict[tuple[int, tuple[int, int]], float] = {}
        for shape in shapes:
            key = shape.initial, (shape.tree[0], len(shape.tree))
            best[key] = max(best.get(key, 0.0), guided.predicted(shape))
        for (initial, place), value in best.items():
            if place[0] <= MAX_PREDICTED_WIDTH:
                by_initial.setdefault(initial, {}).setdefault(place, HeatCell(value, False))
    top = ranked[0].method.as_dict()
    maps = []
    for initial, cells in sorted(by_initial.items()):
        title = "speed-up by k_1 (down) and layers (across), the best tree of each"
        title += f"; initial {initial}, lossy" if initial > 1 else ""
        mark = (top["tree"][0], len(top["tree"])) if top["initial"] == initial else None
        maps.append(HeatMap(title, "k_1", "layers", cells, mark))
    return maps


def option_map(name: str, ranked: Sequence[Standing], options: Sequence[str]) -> HeatMap:
    """A map over one option or two: the best measured speed-up of each place."""
    down, across = options[0], options[1] if len(options) > 1 else None
    cells: dict[tuple[Any, Any], HeatCell] = {}
    for one in ranked:
        values = one.method.as_dict()
        cells.setdefault((values[down], values[across] if across else ""), HeatCell(one.speed_up))
    top = ranked[0].method.as_dict()
    title = f"speed-up of {name} by {down} (down)" + (f" and {across} (across)" if across else "")
    return HeatMap(title, down, across or "", cells, (top[down], top[across] if across else ""))


def lines(heat_map: HeatMap, width: int = 80, colour: bool = False) -> list[str]:
    """The map as text of at most `width` columns: [1.23] is the best, ~1.23 predicted; blocks where it is too wide."""
    rows, columns = heat_map.rows, heat_map.columns
    label = max(len(heat_map.down), *(len(str(row)) for row in rows))
    cell = max(8, *(len(str(column)) + 1 for column in columns))
    fit = max(1, (width - label) // cell)
    out = [heat_map.title]
    for start in range(0, len(columns), fit):
        block = columns[start : start + fit]
        if heat_map.across or start:
            out.append(" " * label + "  " + heat_map.across if start == 0 else "")
        out.append(heat_map.down.rjust(label) + "".join(str(column).rjust(cell) for column in block))
        for row in rows:
            out.append(
                str(row).rjust(label) + "".join(_cell(heat_map, (row, column), cell, colour) for column in block)
            )
    return [line.rstrip() for line in out]


def _cell(heat_map: HeatMap, place: tuple[Any, Any], width: int, colour: bool) -> str:
    one = heat_map.cells.get(place)
    if one is None:
        return " " * width
    shade = heat_map.shade(one.value)
    number = f"{one.value:.2f}"
    best, sign = place == heat_map.best, "" if one.measured else "~"
    text = f"[{number}]" if best else f"{sign}{number} "
    if not colour:
        return (text + SHADES[shade]).rjust(width)
    style = Style.parse(f"black {COLOURS[shade]}" + (" bold" if best else ""))
    return " " + style.render(text.rjust(width - 1), color_system=ColorSystem.EIGHT_BIT)


def picture(maps: Sequence[HeatMap], path: Path) -> bool:
    """Draw the maps side by side into a file, .svg or .png; False where matplotlib (extra plots) is missing."""
    if not plots.available():
        return False
    width = 1.5 + sum(1.2 + 0.75 * len(heat_map.columns) for heat_map in maps)
    height = 1.5 + 0.4 * max(len(heat_map.rows) for heat_map in maps)
    plots.save(plots.figure(lambda canvas: _draw(maps, canvas), width, height), path, maps[0].title)
    return True


def _draw(maps: Sequence[HeatMap], canvas: Any) -> None:
    panels = canvas.subplots(1, len(maps), squeeze=False)[0]
    values = [cell.value for heat_map in maps for cell in heat_map.cells.values()]
    low, high = min(values), max(values)
    for axes, heat_map in zip(panels, maps, strict=True):
        rows, columns, nothing = heat_map.rows, heat_map.columns, HeatCell(math.nan)
        grid = [[heat_map.cells.get((row, column), nothing).value for column in columns] for row in rows]
        image = axes.pcolormesh(grid, cmap="viridis", vmin=low, vmax=high)
        axes.grid(visible=False)
        axes.set_xticks([place + 0.5 for place in range(len(columns))], columns)
        axes.set_yticks([place + 0.5 for place in range(len(rows))], rows)
        axes.invert_yaxis()
        axes.set(xlabel=heat_map.across, ylabel=heat_map.down, title=heat_map.title)
        for (row, column), cell in heat_map.cells.items():
            axes.text(
                columns.index(column) + 0.5,
                rows.index(row) + 0.5,
                ("" if cell.measured else "~") + f"{cell.value:.2f}",
                ha="center",
                va="center",
                fontweight="bold" if (row, column) == heat_map.best else "normal",
                color="black" if cell.value > (low + high) / 2 else "white",
            )
    canvas.colorbar(image, ax=list(panels), label="speed-up over plain decoding")
