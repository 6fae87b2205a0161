"""Our side of a paper, declared: which evaluations are run, and how its exhibits follow from their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftwood.engine import Engine
from draftwood.eval.experiments.learned import Learned, Places
from draftwood.eval.report.charts import Figure
from draftwood.eval.report.tables import Table
from draftwood.eval.reproduce.comparison import Comparison, Order
from draftwood.eval.reproduce.paper import Exhibit
from draftwood.eval.reproduce.results import Results
from draftwood.eval.running import Plan
from draftwood.eval.tasks import Task, parse
from draftwood.methods import Method
from draftwood.params import SamplingParams

PLAIN = "plain decoding"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: items of each task, seeds of each item, most tokens of an answer, and whether sweeps are
    the paper's (`whole`) or cut to a few values."""

    items: int
    seeds: int
    tokens: int | None = None  # None: each task's own
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One run of `draftwood eval`, with names for its methods; the first method is plain decoding."""

    name: str
    methods: Mapping[str, Mapping[str, Any]]  # name on the page -> the method with its options
    tasks: Sequence[str]
    size: Size
    sampling: Mapping[str, Any]

    def plan(self, engine: Engine) -> Plan:
        """What is to be measured."""
        chat = engine.tokenizer is not None and bool(engine.tokenizer.templates)
        methods = [Method.parse(dict(method)) for method in self.methods.values()]
        asked = [(task, task.instances(self.size.items, chat)) for task in map(self._task, self.tasks)]
        return Plan(methods, asked, SamplingParams(**self.sampling), range(self.size.seeds))

    def _task(self, name: str) -> Task:
        return parse(name, {} if self.size.tokens is None else {"max_new_tokens": self.size.tokens})


@dataclass(frozen=True, slots=True)
class Shown:
    """An exhibit's side of ours."""

    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    comparisons: Sequence[Comparison | Order] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Experiment:
    """A paper's reproduction. `exhibits` has an entry for each exhibit of the paper."""

    paper: str
    sizes: Mapping[str, Size]
    learn: Callable[[Size], Learned]
    evaluations: Callable[[Size, Places], Sequence[Evaluation]]
    exhibits: Mapping[str, Callable[[Exhibit, Results, Size, Places], Shown]]
