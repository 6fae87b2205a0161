"""What `draftwood tune` is asked to search: checked before a model is loaded, then carried out.

Knows spaces, references and budgets. Refuses to know terminals and files of results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from draftwood.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from draftwood.core.shape import Shape
    from draftwood.methods import Method
    from draftwood.tune.measuring import Bench, Standing
    from draftwood.tune.search import Guided
    from draftwood.tune.shapes import Cost
    from draftwood.tune.spaces import GridSearch, TPESearch

TREES = "mcsd"


def _numbers(flag: str, text: str) -> tuple[int, ...]:
    """1,2,4 of a flag, each 1 or more."""
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 1:
        raise ConfigurationError(f"{flag} takes whole numbers of 1 or more with commas between, not {text!r}")
    return found


@dataclass(slots=True)
class Plan:
    """A checked search."""

    name: str
    budget: int
    grid: bool
    fixed: dict[str, Any]
    rows: int
    max_depth: int
    widths: tuple[int, ...] | None
    initial: tuple[int, ...]
    tolerance: float
    usual: Method  # what the fixed options alone make
    plain: Method  # what speed and quality are compared with
    costs: tuple[Cost, Cost] | None = field(init=False, default=None)
    guided: Guided | None = field(init=False, default=None)

    @property
    def judges_quality(self) -> bool:
        return self.tolerance != float("inf")

    @property
    def lossy(self) -> bool:
        """Whether some of what is tried is lossy, so that quality is worth showing."""
        return self.judges_quality or max(self.initial) > 1 or not self.usual.lossless

    def shapes(self) -> Iterator[Shape]:
        """The trees of the space."""
        from draftwood.tune.shapes import shapes

        return (shape for shape in shapes(self.rows, self.max_depth, self.initial, self.widths) if shape.tree)

    def search(self, bench: Bench, seed: int, told: Callable[[int, Method], None]) -> None:
        """Spend the budget; what was measured is in the bench."""
        from draftwood.tune.measuring import explore, guide
        from draftwood.tune.search import Guided, pilot_shape
        from draftwood.tune.spaces import GridSearch, TPESearch, combinations, size, space

        if self.name == TREES and not self.grid:
            self.costs = bench.costs(self.rows)
            self.guided = Guided(
                pilot_shape(self.rows, self.max_depth),
                *self.costs,
                self.rows,
                self.max_depth,
                self.initial,
                self.widths,
            )
            guide(bench, self.guided, self.budget, self.fixed, told)
            return
        search: GridSearch | TPESearch
        if self.name == TREES:
            search = GridSearch(({"tree": shape.tree, "initial": shape.initial} for shape in self.shapes()), seed)
        else:
            options = space(self.name, self.fixed)
            if self.grid or size(options) <= self.budget:
                search = GridSearch(combinations(options), seed)
            else:
                search = TPESearch(options, seed, self.budget, self.usual.as_dict())
        explore(bench, self.name, search, self.budget, self.fixed, self.tolerance, self.fits, told)

    def fits(self, method: Method) -> bool:
        """Whether the target verifies few enough tokens at once."""
        values = method.as_dict()
        return self.name != "mcsd-fork" or 1 + values["width"] * values["gamma"] <= self.rows

    def ranked(self, bench: Bench) -> list[Standing]:
        """What was measured, best first; of trees in the light of what is predicted too."""
        from draftwood.tune.measuring import standings, tree_method

        found = standings(bench.trials, self.tolerance)
        if self.guided is None or not self.guided.runs:
            return found
        order = [tree_method(shape, self.fixed) for _, shape in self.guided.ranked()]
        return sorted(
            (one for one in found if one.method in order) if order else found,
            key=lambda one: order.index(one.method) if order else 0,
        )


def make_plan(
    name: str,
    budget: int,
    search: str,
    settings: Sequence[str] | None,
    rows: int,
    max_depth: int,
    widths: str | None,
    initial: str,
    beams: int,
    tolerance: float,
) -> Plan:
    """Check everything that needs no model."""
    from draftwood import config
    from draftwood.core.shape import Shape
    from draftwood.methods import METHODS, Method
    from draftwood.tune.search import pilot_shape
    from draftwood.tune.spaces import SPACES, size, space

    known = [TREES, *SPACES]
    if name not in known:
        there = f"method {name!r} has no options to tune" if name in METHODS else f"there is no method {name!r}"
        raise ConfigurationError(there + (did_you_mean(name, known) or f"; tune one of {', '.join(known)}"))
    if budget < 2:
        raise ConfigurationError(f"--budget is {budget}, but a choice takes at least 2 measured runs")
    if search not in ("guided", "grid"):
        raise ConfigurationError(f"there is no search {search!r}" + did_you_mean(search, ["guided", "grid"]))
    fixed = config.assignments(settings or ())
    if name == TREES and (taken := {"tree", "initial"} & set(fixed)):
        raise ConfigurationError(f"{min(taken)} is what is tuned; use --initial, --widths, --rows and --max-depth")
    usual = Method.parse(name, fixed)
    plain = _plain(usual, beams)
    if name == "dsbd" and not tolerance >= 0:
        raise ConfigurationError(f"--tolerance is {tolerance}, but cannot be negative")
    judged = tolerance if name == "dsbd" else float("inf")
    chosen = None if widths is None else _numbers("--widths", widths)
    counts = _numbers("--initial", initial)
    plan = Plan(name, budget, search == "grid", fixed, rows, max_depth, chosen, counts, judged, usual, plain)
    if name == TREES:
        least = chosen[0] if chosen else 1
        if max_depth < 1:
            raise ConfigurationError(f"--max-depth is {max_depth}, but a tree has at least one layer of drafts")
        if Shape((least,), counts[-1]).rows > rows:
            raise ConfigurationError(
                f"--rows {rows} cannot hold the tree's first tokens ({counts[-1]} of the target and "
                f"{least} below each); raise it to {Shape((least,), counts[-1]).rows} or more"
            )
        pilot_shape(rows, max_depth)
        for count in counts:
            Method.parse(name, {**fixed, "tree": (least,), "initial": count})  # what does not go together
        count = sum(1 for _ in islice(plan.shapes(), budget + 100_000)) if plan.grid else 0
    else:
        count = size(space(name, fixed)) if plan.grid else 0
    if count > budget:
        raise ConfigurationError(
            f"the grid has {count} places, but --budget allows {budget} runs; raise it, narrow the grid with --rows, "
            "--max-depth, --widths or --set, or use --search guided"
        )
    return plan


def _plain(usual: Method, beams: int) -> Method:
    """What a method is compared with: beam sampling, beam search, else plain decoding."""
    from draftwood.methods import Method

    if usual.name == "dsbd":
        values = usual.as_dict()
        same = {key: values[key] for key in ("warp", "replacement", "length_penalty")}
        return Method.parse("beam-sampling", {**same, "width": beams})
    return usual.reference(True) or Method.parse("autoregressive")
