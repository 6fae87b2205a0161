"""A search for the fastest options of a method on an engine: its checks, its runs and its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from draftwood.core.shape import Shape
from draftwood.engine.engine import Engine
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.methods import METHODS, Method
from draftwood.sampling.params import SamplingParams
from draftwood.tune.heatmap import HeatMap, option_map, tree_maps
from draftwood.tune.measuring import Standing, TuningBench, Workload, explore, guide, standings, tree_method
from draftwood.tune.search import Guided, pilot_shape
from draftwood.tune.settings import TREE_METHOD, TuneSettings
from draftwood.tune.shapes import Cost, shapes
from draftwood.tune.spaces import SPACES, GridSearch, TPESearch, combinations, size, space

MAX_MAPPED = 50_000  # trees in a heat map


def tune(
    engine: Engine,
    settings: TuneSettings | None = None,
    prompts: Sequence[str | Sequence[int]] = (),
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 64,
    seed: int = 0,
) -> Tuning:
    """Search the options of a method that decode these prompts fastest; `result.best.method` is the best one.

    Every measured run decodes all prompts, interleaved with decoding without drafts. Raises ConfigurationError for
    settings that do not go together.
    """
    tuning = Tuning(settings or TuneSettings())
    tokens = [engine.tokens(prompt) for prompt in prompts]
    tuning.run(engine, Workload(tokens, sampling or SamplingParams(), max_new_tokens, seed))
    return tuning


class Tuning:
    """A search. Making it checks the settings, `run` measures; an interrupted search keeps its finished runs."""

    def __init__(self, settings: TuneSettings) -> None:
        """Check all that can be checked without a model; raises ConfigurationError."""
        self.settings = settings
        self.interrupted = False
        self.bench: TuningBench | None = None
        self.costs: tuple[Cost, Cost] | None = None  # of forwards of the target and of the draft, by rows
        self.guided: Guided | None = None
        name, fixed = settings.method, settings.fixed
        known = [TREE_METHOD, *SPACES]
        if name not in known:
            there = f"method {name!r} has no options to tune" if name in METHODS else f"there is no method {name!r}"
            raise ConfigurationError(there + (did_you_mean(name, known) or f"; tune one of {', '.join(known)}"))
        if self.trees and (taken := {"tree", "initial"} & set(fixed)):
            raise ConfigurationError(f"{min(taken)} is what is tuned; use --initial, --widths, --rows and --max-depth")
        self.usual = Method.parse(name, fixed)
        self.plain = _reference(self.usual, settings.beams)
        self.tolerance = settings.tolerance if name == "dsbd" else math.inf
        if self.trees:
            self._check_trees()
        self._check_grid()

    @property
    def trees(self) -> bool:
        return self.settings.method == TREE_METHOD

    @property
    def options(self) -> list[str]:
        """The options that are tuned."""
        if self.trees:
            return ["tree", "initial"] if self.settings.initial != (1,) else ["tree"]
        return list(space(self.settings.method, self.settings.fixed))

    @property
    def lossy(self) -> bool:
        """True if some of the tried settings are lossy, so that quality matters."""
        return self.tolerance < math.inf or max(self.settings.initial) > 1 or not self.usual.lossless

    def _check_trees(self) -> None:
        s = self.settings
        min_width = s.widths[0] if s.widths else 1
        needed = Shape((min_width,), s.initial[-1]).rows
        if needed > s.rows:
            raise ConfigurationError(
                f"--rows {s.rows} cannot hold the tree's first tokens ({s.initial[-1]} of the target and "
                f"{min_width} below each); raise it to {needed} or more"
            )
        for count in s.initial:
            Method.parse(s.method, {**s.fixed, "tree": (min_width,), "initial": count})  # what does not go together

    def _check_grid(self) -> None:
        s = self.settings
        if s.search == "grid":
            if self.trees:
                count = sum(1 for _ in islice(self.shapes(), s.budget + 100_000))
            else:
                count = size(space(s.method, s.fixed))
            if count > s.budget:
                raise ConfigurationError(
                    f"the grid has {count} places, but --budget allows {s.budget} runs; raise it, narrow the grid with "
                    "--rows, --max-depth, --widths or --set, or use --search guided"
                )
        elif not self.trees:
            space(s.method, s.fixed)

    def shapes(self) -> Iterator[Shape]:
        """The trees of the space."""
        s = self.settings
        return (shape for shape in shapes(s.rows, s.max_depth, s.initial, s.widths) if shape.tree)

    def run(
        self,
        engine: Engine,
        workload: Workload,
        on_progress: Callable[[int, Method], None] = lambda run, method: None,
    ) -> None:
        """Spend the budget of runs; `on_progress` is called before each. Ctrl-C keeps the finished ones."""
        engine.method(self.usual)
        self.plain.check(workload.sampling)
        self.bench = TuningBench(engine, workload, self.plain)
        try:
            self._search(self.bench, workload.seed, on_progress)
        except KeyboardInterrupt:
            self.interrupted = True
            if not self.bench.trials:
                raise

    def _search(self, bench: TuningBench, seed: int, on_progress: Callable[[int, Method], None]) -> None:
        s = self.settings
        if self.trees and s.search == "guided":
            self.costs = bench.costs(s.rows)
            pilot = pilot_shape(s.rows, s.max_depth)
            self.guided = Guided(pilot, *self.costs, s.rows, s.max_depth, s.initial, s.widths)
            guide(bench, self.guided, s.budget, s.fixed, on_progress)
            return
        search: GridSearch | TPESearch
        if self.trees:
            search = GridSearch(({"tree": shape.tree, "initial": shape.initial} for shape in self.shapes()), seed)
        else:
            options = space(s.method, s.fixed)
            if s.search == "grid" or size(options) <= s.budget:
                search = GridSearch(combinations(options), seed)
            else:
                search = TPESearch(options, seed, s.budget, self.usual.as_dict())
        explore(bench, s.method, search, s.budget, s.fixed, self.tolerance, self._fits, on_progress)

    def _fits(self, method: Method) -> bool:
        """True if the target verifies at most `rows` tokens at once with this method."""
        values = method.as_dict()
        return method.name != "mcsd-fork" or 1 + values["width"] * values["gamma"] <= self.settings.rows

    @property
    def trials(self) -> TuningBench:
        """The bench with all finished runs."""
        assert self.bench is not None, "run it first"
        return self.bench

    @property
    def ranked(self) -> list[Standing]:
        """The measured methods, best first. Trees are ranked by measurement and prediction together."""
        ranked = standings(self.trials.trials, self.tolerance)
        if self.guided is None or not self.guided.runs:
            return ranked
        order = [tree_method(shape, self.settings.fixed) for _, shape in self.guided.ranked()]
        if not order:
            return ranked
        return sorted((one for one in ranked if one.method in order), key=lambda one: order.index(one.method))

    @property
    def best(self) -> Standing:
        return self.ranked[0]

    def heat_maps(self) -> list[HeatMap]:
        """Speed-ups: of trees by first width and depth, the best of each; of others by their first two options."""
        if self.trees:
            return tree_maps(self.ranked, self.guided, islice(self.shapes(), MAX_MAPPED))
        return [option_map(self.settings.method, self.ranked, self.options[:2])]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        from draftwood import __version__

        bench, costs = self.trials, self.costs
        work = bench.workload
        return {
            "draftwood": __version__,
            "models": {**bench.engine.names, "device": str(bench.engine.target.device)},
            "plain": self.plain.as_dict(),
            "budget": self.settings.budget,
            "search": self.settings.search,
            "interrupted": self.interrupted,
            "prompts": len(work.prompts),
            "max_new_tokens": work.max_new_tokens,
            "sampling": work.sampling.model_dump(mode="json"),
            "seed": work.seed,
            "tolerance": self.tolerance if self.tolerance < math.inf else None,
            "forward_seconds": costs and {"target": costs[0].as_dict(), "draft": costs[1].as_dict()},
            "acceptance": self.guided.tally.acceptance() if self.guided and self.guided.runs else None,
            "best": self.best.method.as_dict(),
            "ranked": [one.as_dict() for one in self.ranked],
            "runs": [trial.as_dict() for trial in bench.trials],
        }


def _reference(usual: Method, beams: int) -> Method:
    """The method that a method is compared with: beam sampling, beam search or plain decoding."""
    if usual.name == "dsbd":
        values = usual.as_dict()
        same = {key: values[key] for key in ("warp", "replacement", "length_penalty")}
        return Method.parse("beam-sampling", {**same, "width": beams})
    return usual.reference(True) or Method.parse("autoregressive")
