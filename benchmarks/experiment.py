"""An experiment as its YAML file declares it: what kind of measurement, on which models, which tables follow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.util.safe_parsing import parse_yaml, read_text

if TYPE_CHECKING:
    from benchmarks.bench import Bench

HERE = Path(__file__).parent
M = TypeVar("M", bound=BaseModel)
Rows = list[dict[str, Any]]  # flat: labels, numbers, and intervals {value, low, high, n}

KINDS = {  # kind -> the class that measures it
    "methods": "methods:Methods",
    "requests": "requests:Requests",
    "loop": "loop:Loop",
    "forwards": "forwards:Forwards",
    "serving": "serving:Serving",
    "fairness": "fairness:Fairness",
    "http": "http:Http",
    "http-peers": "http_peers:HttpPeers",
    "load-tool": "load_tool:LoadTool",
    "scale": "scale:Scale",
    "peers": "peers:Peers",
    "quantisation": "quantisation:Quantisation",
    "controllers": "controllers:Controllers",
    "grammars": "grammars:Grammars",
    "matchers": "matchers:Matchers",
    "sampled": "sampled:Sampled",
    "search": "search:Search",
    "defaults": "defaults:Defaults",
    "drafters": "drafters:Drafters",
    "rules": "rules:Rules",
    "training": "training:Training",
}


class Strict(BaseModel):
    """Plain data whose unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Kind(Strict):
    """The settings of one kind of measurement, and how it is made."""

    @abstractmethod
    def measure(self, bench: Bench) -> dict[str, Rows]:
        """Named tables of rows."""


class Run(Strict):
    """One result file: the models, and settings that differ from the experiment's."""

    pair: str | None = "embedded"
    draft_of: str | None = None  # another pair, whose draft is taken
    dtype: str = "float32"
    quantize: str | None = None
    threads: int = Field(1, ge=1)
    settings: dict[str, Any] = Field(default_factory=dict)


class Best(Strict):
    """Keep the row whose `of` is greatest among those that agree in the fields `by`."""

    by: tuple[str, ...]
    of: str


class Pivot(Strict):
    """A column for each value of `by`, with a cell of the row that has this value."""

    by: str
    cell: str


class Selection(Strict):
    """Rows of result files: field -> a value, a list of values, or a pattern with a star."""

    rows: str
    where: dict[str, Any] = Field(default_factory=dict)  # that a row must have
    without: dict[str, Any] = Field(default_factory=dict)  # of rows that are left out


class Fact(Selection):
    """The values of a field, of which a sentence names the least and the greatest."""

    of: str


class Table(Selection):
    """A Markdown table: a template for each column, see tables.py."""

    title: str
    columns: dict[str, str]
    about: str = ""
    pivot: Pivot | None = None
    best: Best | None = None
    marker: str = ""  # of this table in other pages that show it, too


class Drawing(Strict):
    """Curves of a run beneath its tables: a point for each row whose `x` is a number, a curve for each `label`."""

    title: str
    rows: str
    x: str
    y: str
    label: str  # a template, as of a column
    colour: str  # curves that agree in this field have one colour


class Experiment(Strict):
    """A YAML file of benchmarks/experiments/."""

    title: str
    kind: str
    order: int = 0  # of its section among the results
    about: str = ""
    conclusions: str = ""  # behind the tables; numbers are those of facts, in braces
    facts: dict[str, Fact] = Field(default_factory=dict)
    made_by: str = ""  # where another command makes the results
    settings: dict[str, Any] = Field(default_factory=dict)
    smoke: dict[str, Any] = Field(default_factory=dict)  # settings of a run that only shows that everything works
    runs: dict[str, Run]
    tables: tuple[Table, ...] = ()
    drawings: dict[str, Drawing] = Field(default_factory=dict)  # by the end of their files' names

    def measure(self, run: Run, smoke: bool = False) -> Kind:
        """What is to be measured in a run; raises ConfigurationError for settings that its kind does not have."""
        if self.kind not in KINDS:
            raise ConfigurationError(f"there is no kind of experiment {self.kind!r}" + did_you_mean(self.kind, KINDS))
        module, _, name = KINDS[self.kind].partition(":")
        made: type[Kind] = getattr(import_module(f"benchmarks.kinds.{module}"), name)
        settings = merged(self.settings, run.settings)
        return validated(made, merged(settings, self.smoke) if smoke else settings, f"settings of {self.title!r}")


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """`one` with the values of `other`, mappings merged in depth."""
    found = dict(one)
    for key, value in other.items():
        mine = found.get(key)
        found[key] = merged(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return found


def validated(kind: type[M], value: Any, what: str) -> M:
    """An instance of a model, or ConfigurationError in one sentence."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{what}: {where}: {first['msg'].lower()}") from None


def parsed(path: Path) -> Any:
    """What a YAML file holds."""
    try:
        return parse_yaml(read_text(path))
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error.strerror}); give a file such as benchmarks/experiments/engine.yaml"
        ) from None
    except ValueError:
        raise ConfigurationError(f"{path} is not YAML; see benchmarks/experiments/engine.yaml for one") from None


def find(name: str) -> Path:
    """The file of an experiment, of which the path or the name is given; raises ConfigurationError where it is not."""
    file = HERE / "experiments" / f"{name}.yaml"
    if file.is_file() or Path(name).suffix:
        return file if file.is_file() else Path(name)
    known = sorted(path.stem for path in file.parent.glob("*.yaml"))
    raise ConfigurationError(f"there is no experiment {name!r}" + did_you_mean(name, known))


def load(path: Path) -> Experiment:
    """The experiment of a YAML file, which is read anew when it changed."""
    return _loaded(path, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(64)
def _loaded(path: Path, changed: int) -> Experiment:
    return validated(Experiment, parsed(path), str(path))
