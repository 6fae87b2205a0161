"""Methods: a name and options, checked and immutable, that round-trip through dictionaries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator

from draftwood.core.records import Ranking
from draftwood.depth import DepthController, parse_depth
from draftwood.draft import Drafter
from draftwood.errors import ConfigurationError, ModelError, did_you_mean
from draftwood.models.base import CausalModel
from draftwood.models.heads.medusa import Heads
from draftwood.runtime.session import Session
from draftwood.sampling.params import SamplingParams
from draftwood.util import config
from draftwood.util.safe_parsing import short_repr
from draftwood.verify import Verifier

FILE = "file"  # marks options that name a file or directory of this machine


def trained_head(model: CausalModel) -> str | None:
    """The kind of trained heads that a loaded draft is, a key of `default.COMPANIONS`; None: a draft model."""
    return "heads" if isinstance(model, Heads) else getattr(model, "head_kind", None)


def without_heads(drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
    """The draft models among loaded drafts; of trained heads alone the first, from which some methods draft, too."""
    return [model for model in drafts if trained_head(model) is None] or drafts[:1]


class Parts(NamedTuple):
    """The parts of a method that the loop calls, made anew for each request."""

    drafter: Drafter
    verify: Verifier
    depth: DepthController
    ranking: Ranking = Ranking()


class Method(BaseModel):
    """A decoding method with its options. `Method.parse` makes one from a name, a dictionary or a method file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    summary: ClassVar[str]
    draft_models: ClassVar[tuple[int, int]] = (0, 0)  # fewest and most that it works with
    takes_heads: ClassVar[bool] = False  # whether a trained head may take a draft model's place
    sizes: ClassVar[tuple[str, ...]] = ()  # options that say how much a round drafts

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, values: object) -> object:
        return cls.with_implied(dict(values)) if isinstance(values, Mapping) and cls.sizes else values

    @classmethod
    def with_implied(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Options with what follows from them: where a size is named depth=fixed, else auto."""
        return {"depth": "fixed" if options.keys() & cls.sizes else "auto", **options}

    @abstractmethod
    def build(self, drafts: list[Session], target: Session) -> Parts:
        """Parts for one request; `drafts` are sessions on `models`."""

    @property
    def drafts_needed(self) -> tuple[int, int]:
        """Fewest and most draft models that it works with as its options stand."""
        return self.draft_models

    def check_drafts(self, count: int) -> None:
        """Raise ConfigurationError where it does not work with so many draft models."""
        fewest, most = self.drafts_needed
        if count < fewest:
            raise ConfigurationError(
                f"method {self.name} needs a draft model; name one with --draft, or load(target, draft=...)"
            )
        if fewest and count > most:
            raise ConfigurationError(
                f"method {self.name} works with {most} draft model, but {count} were loaded; load one, or use specinfer"
            )

    @property
    def drafts_from(self) -> object:
        """A key: methods of one engine that have the same one share their `models`, and load them once."""
        return self

    def models(self, target: CausalModel, drafts: Sequence[CausalModel]) -> Sequence[CausalModel]:
        """The models that it drafts with: of the loaded `drafts`, or made for the target; asked once per engine."""
        models = without_heads(drafts)[: self.draft_models[1]]
        if not self.takes_heads and models and (kind := trained_head(models[0])) is not None:
            raise ModelError(
                f"method {self.name} needs a draft model; a trained head reads hidden states of its target, and cannot "
                f"run alone as a draft model: use method {'medusa' if kind == 'heads' else kind}"
            )
        return models

    @abstractmethod
    def verifier(self) -> Verifier:
        """The rule that chooses the next roots."""

    @property
    def lossless(self) -> bool:
        """Whether the output follows the distribution of the method's reference exactly."""
        return self.verifier().lossless

    def reference(self, greedy: bool) -> Method | None:
        """The method without drafts whose text this one repeats under the same seed; None where seeds differ."""
        return None

    def repeats(self, greedy: bool) -> bool:
        """Whether the text does not depend on the drafts."""
        return self.lossless and self.reference(greedy) is not None

    def check(self, params: SamplingParams) -> None:
        """Raise ConfigurationError where sampling options mean nothing to this method."""

    @property
    def files(self) -> list[str]:
        """Files and directories that its options name."""
        named = [getattr(self, name) for name, option in type(self).model_fields.items() if FILE in option.metadata]
        if hasattr(self, "depth"):
            named.append(getattr(parse_depth(self.depth), "path", None))
        return [path for path in named if path is not None]

    def as_dict(self) -> dict[str, Any]:
        """Name and options; `Method.parse` reads it back."""
        return {"name": self.name, **self.model_dump(mode="json")}

    @staticmethod
    def parse(spec: str | Mapping[str, Any] | Method, options: Mapping[str, Any] | None = None) -> Method:
        """A method from a name, {"name": ..., option: value}, 'file:PATH' (JSON or YAML) or a Method, plus options."""
        if not isinstance(spec, str | Mapping | Method):
            raise ConfigurationError(
                f'a method is a name, {{"name": ..., option: value}} or a Method, not {short_repr(spec)}'
            )
        if not isinstance(options, Mapping | None):
            raise ConfigurationError(f"the options of a method are {short_repr(options)}, but must be a mapping")
        if isinstance(spec, Method) and not options:
            return spec
        if isinstance(spec, Method):
            values: dict[str, Any] = spec.as_dict()
        elif isinstance(spec, str) and spec.startswith("file:"):
            values = config.document(Path(spec.removeprefix("file:")), "method file")
        elif isinstance(spec, str):
            values = {"name": spec}
        else:
            values = dict(spec)
        values.update(options or {})
        name = values.pop("name", None)
        if not isinstance(name, str):
            raise ConfigurationError('a method needs a name, such as {"name": "speculative"}')
        if name not in METHODS:
            raise ConfigurationError(f"there is no method {short_repr(name)}" + did_you_mean(name, METHODS))
        return config.parse(METHODS[name], values, f"method {name}")


METHODS: dict[str, type[Method]] = {}  # by name, in the order in which they are shown
