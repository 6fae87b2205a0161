"""The models of a study, what drafts where no draft model is there, and the data sets that are asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from draftwood.engine.engine import Engine
from draftwood.errors import ConfigurationError
from draftwood.eval.provenance import content
from draftwood.train.prompts import CORPUS
from draftwood.util.safe_parsing import parse_json, read_text

LEARNED = ("EXIT", "CALIBRATION", "OUTPUT", "HIDDEN")  # in settings.yaml they stand for trained files


@dataclass(frozen=True, slots=True)
class Models:
    """An engine, where its target lies, and the directory of data sets; None: the embedded corpus.

    `drafter` has the options `drafter` and `exit` of methods that draft from a model, where something of the target
    drafts in its place.
    """

    name: str
    engine: Engine
    target: Path
    data: Path | None = None
    prompts: str = CORPUS  # to learn from: a file, or the embedded corpus
    given: str = CORPUS  # texts to learn from
    texts: Path | None = None  # to learn from: of the target mixed with given ones; None: they are written
    heads: str | None = None  # directory of Medusa heads; None: beside the target's weights
    exit: str | None = None  # directory of an exit; None: one is trained
    drafter: Mapping[str, Any] = field(default_factory=dict)
    seen: Sequence[Path] = ()  # files of more texts that drafts learnt from

    @property
    def learnt_from(self) -> str:
        """All that is known of what drafts learnt from; of the embedded corpus, whose splits are apart, nothing."""
        files = [Path(each) for each in (self.prompts, self.given) if each != CORPUS]
        files += [*filter(None, [self.texts]), *self.seen]
        return "\n".join(text for each in files for text in _texts(each))

    @property
    def origins(self) -> dict[str, str]:
        """The models of each role: their names, and fingerprints of their files."""
        names = self.engine.names
        types = (str(names[key]) for key in ("dtype", "quantize") if key in names)
        parts = {"target": [names["target"]], "draft": names["draft"], "drafter": [*self.drafter.values()]}
        parts |= {"exit": [self.exit], "heads": [self.heads]}
        origins = {role: ", ".join(_identified(each) for each in named if each) for role, named in parts.items()}
        return origins | {"target": ", ".join((origins["target"], *types))}

    @property
    def chat(self) -> bool:
        """Whether prompts are conversations: the target has a chat template, and the data sets are real ones."""
        words = self.engine.tokenizer
        return self.data is not None and words is not None and bool(words.templates)

    def check(self) -> None:
        """Load what is named to draft; raises ModelError where it is not there, or not of this target."""
        named: list[dict[str, Any]] = [{"name": "mcsd", **self.drafter}] if self.drafter else []
        named += [{"name": "medusa", "heads": self.heads}] if self.heads else []
        named += [{"name": "eesd", "exit": self.exit}] if self.exit else []
        for options in named:
            self.engine.builder.models_of(self.engine.method(options))

    def own(self, options: Mapping[str, Any], learned: Mapping[str, str]) -> dict[str, Any]:
        """A method's options with paths for what was learned, and with what drafts here in place of a draft model."""
        filled = {key: _filled(value, learned) if isinstance(value, str) else value for key, value in options.items()}
        if filled["name"] == "medusa" and self.heads is not None:
            filled["heads"] = self.heads
        return drawn_from(filled, self.drafter) if self.drafter else filled


@cache
def _texts(file: Path) -> Sequence[str]:
    """All texts of a file, whatever its lines are made of."""
    lines = read_text(file).splitlines()
    return [*_strings([parse_json(line) if file.suffix == ".jsonl" else line for line in lines if line.strip()])]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(each)


def _identified(name: str) -> str:
    return f"{Path(name).name} ({whose})" if (whose := content(name)) else name


def _filled(value: str, learned: Mapping[str, str]) -> str:
    for name in LEARNED:
        if name in value and name not in learned:
            raise ConfigurationError(f"no {name} was trained")
        value = value.replace(name, learned.get(name, ""))
    return value


def drawn_from(options: dict[str, Any], drafter: Mapping[str, Any]) -> dict[str, Any]:
    """The same drafts from a source of the target's: chains, SpecInfer's trees and forks are trees of `mcsd`."""
    name = options["name"]
    rest: dict[str, Any] = {key: options[key] for key in ("verify", "depth") if key in options}
    if name == "speculative":
        if options["gamma"] is None:
            raise ConfigurationError("a chain without a greatest depth needs a draft model; give --draft")
        return {"name": "mcsd", **rest, "tree": [1] * options["gamma"], **drafter}
    if name == "specinfer":
        return {"name": "mcsd", **rest, "tree": options["expansion"], "replacement": True, **drafter}
    if name == "mcsd-fork":
        width, chain = options["width"], [1] * options["gamma"]
        lossy = options["verify"] == "longest"
        begun = {"tree": chain, "initial": width} if lossy else {"tree": [width, *chain[1:]]}
        return {"name": "mcsd", **rest, **begun, **drafter}
    return {**options, **drafter} if name in ("mcsd", "dsbd") else options
