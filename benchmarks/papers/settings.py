"""Settings of the papers as data: methods by label, tasks, sampling and scale (settings.yaml)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from benchmarks.experiment import HERE, Strict
from benchmarks.kinds.methods import MethodEntry, expanded
from draftwood.errors import ConfigurationError
from draftwood.util import config
from draftwood.util.safe_parsing import parse_yaml, read_text

FILE = HERE / "papers" / "settings.yaml"
PLAIN = "plain decoding"
PAPERS = "the paper's"
SIZED = "the paper's, sizes ours"
OURS = "ours"


class TaskUse(Strict):
    """The task that reads a data set, the embedded corpus's stand-in, and options of the task."""

    task: str
    embedded: str
    options: dict[str, Any] = Field(default_factory=dict)


class Scale(Strict):
    """How much a paper says that it measured; None where it says nothing."""

    items: int | dict[str, int] | None
    seeds: int | None
    tokens: int | None


class SweepSettings(Strict):
    """Methods that run in the same turns, and where the paper gives their options."""

    where: str
    sampling: dict[str, Any]
    tasks: list[str] | None = None  # names of the paper's data sets; None: all
    methods_of: str | None = None  # the sweep that has the same methods
    paper: list[MethodEntry] = Field(default_factory=list)
    ours: list[MethodEntry] = Field(default_factory=list)
    sized: list[str] = Field(default_factory=list)  # patterns of labels of the paper's of which it gives no sizes
    few: list[str] = Field(default_factory=list)  # patterns of labels that are measured without --full; none: all


class PaperSettings(Strict):
    """All that is measured for one paper."""

    title: str
    scale: Scale
    tasks: dict[str, TaskUse]
    sweeps: dict[str, SweepSettings]
    training: dict[str, Any] = Field(default_factory=dict)

    def methods(self, name: str, full: bool = True, only: Sequence[str] = ()) -> dict[str, PaperMethod]:
        """The methods of a sweep by label, plain decoding first; without `full` those that its `few` names.

        `only` are patterns of labels: those that none of them fits are left out, whatever `full` says.
        """
        sweep = self.sweeps[name]
        source = self.sweeps[sweep.methods_of] if sweep.methods_of else sweep
        papers = {
            each.label: PaperMethod(each.method, SIZED if _fits(each.label, source.sized) else PAPERS)
            for each in expanded(source.paper)
        }
        known = papers | {each.label: PaperMethod(each.method, OURS) for each in expanded(source.ours)}
        few = [PLAIN, *only] if only else ["*"] if full or not sweep.few else [PLAIN, *sweep.few]
        return {label: entry for label, entry in known.items() if _fits(label, few)}


def _fits(label: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(label, each) for each in patterns)


class PaperMethod(NamedTuple):
    """The options of a method, and whose settings they are."""

    options: dict[str, Any]
    whose: str = PAPERS


@cache
def _document() -> Mapping[str, Any]:
    document = parse_yaml(read_text(FILE))
    assert isinstance(document, dict)
    return document


@cache
def papers() -> dict[str, PaperSettings]:
    """The settings of each paper by its name."""
    return {
        name: config.parse(PaperSettings, values, f"{name} of {FILE.name}")
        for name, values in _document().items()
        if name != "data"
    }


def files(task: str, directory: Path) -> Path:
    """The file of a task's data set below a directory; raises ConfigurationError where none is there."""
    patterns = _document()["data"][task]
    for pattern in patterns:
        if found := sorted(directory.expanduser().glob(pattern)):
            return found[0]
    raise ConfigurationError(
        f"{directory} has no {' or '.join(patterns)}, the file of task {task}; put it there, or leave out --data"
    )
