"""The registry of depth controllers: name -> settings -> controller.

On the command line a controller is its name with settings behind a colon: `confidence`, `confidence:0.4` (the first
setting), `speedup-ts:discount=0.9,cost=0.1`; in files and in Python also {"name": "confidence", "threshold": 0.4}. The
text is the one canonical form.

`speedup-ts` and `optimal-stopping` measure time unless `cost` is given. The law of the output stays as it is, but
drafts and so sampled texts then differ between runs of one seed; greedy and coupled texts do not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftwood.depth.improvement import DraftCost
from draftwood.depth.rules import Confidence, DepthController, Entropy, Fixed
from draftwood.depth.stopping import OptimalStopping
from draftwood.depth.thompson import Acceptance, BetaThompson, SpeedupThompson
from draftwood.errors import did_you_mean

Discount = Annotated[float, Field(gt=0, le=1, description="what older rounds count for, per round")]
Prior = Annotated[float, Field(gt=0, le=1e6)]
Cost = Annotated[
    float | None,
    Field(ge=0, le=100, description="c, a layer's time in target forwards; null: measured, which seeds cannot repeat"),
]

Draft: TypeAlias = Callable[[], str]  # the fingerprint of the draft model: what was learned belongs to one


class DepthSettings(BaseModel):
    """Checked settings of one controller."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]

    @abstractmethod
    def build(self, most: int, draft: Draft | None = None) -> DepthController:
        """A controller for one request that drafts at most `most` layers; `draft` is asked for the draft model."""


class FixedDepth(DepthSettings):
    name = "fixed"

    def build(self, most: int, draft: Draft | None = None) -> DepthController:
        return Fixed(most)


class ConfidenceDepth(DepthSettings):
    name = "confidence"

    threshold: Annotated[float, Field(ge=0, le=1)] = 0.4

    def build(self, most: int, draft: Draft | None = None) -> DepthController:
        return Confidence(most, self.threshold)


class EntropyDepth(DepthSettings):
    name = "entropy"

    limit: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0

    def build(self, most: int, draft: Draft | None = None) -> DepthController:
        return Entropy(most, self.limit)


class BetaDepth(DepthSettings):
    name = "beta-ts"

    discount: Discount = 1.0
    a: Prior = 1.0
    b: Prior = 1.0

    def build(self, most: int, draft: Draft | None = None) -> DepthController:
        return BetaThompson(most, Acceptance(self.a, self.b, self.discount))


class SpeedupDepth(DepthSettings):
    name = "speedup-ts"

    discount: Discount = 0.95
    cost: Cost = None
    a: Prior = 1.0
    b: Prior = 1.0

    def build(self, most: int, draft: Draft | None = None) -> DepthController:
        return SpeedupThompson(most, Acceptance(self.a, self.b, self.discount), DraftCost(self.cost))


class StoppingDepth(DepthSettings):
    name = "optimal-stopping"

    discount: Discount = 0.98
    cost: Cost = None

    def build(self, most: int, draft: Draft | None = None) -> DepthController:
        return OptimalStopping(most, self.discount, DraftCost(self.cost))


CONTROLLERS: dict[str, type[DepthSettings]] = {
    kind.name: kind for kind in (FixedDepth, ConfidenceDepth, EntropyDepth, BetaDepth, SpeedupDepth, StoppingDepth)
}


def parse_depth(value: object) -> DepthSettings:
    """Settings from a name, its text with settings, or a mapping; ValueError with one sentence."""
    if isinstance(value, str):
        values = _parts(value)
    elif isinstance(value, Mapping):
        values = dict(value)
    else:
        raise ValueError(f"a controller is a name or a mapping with one, such as {_KNOWN}")
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise ValueError(f"a controller needs a name: {_KNOWN}")
    if name not in CONTROLLERS:
        raise ValueError(f"there is no controller {name!r}" + did_you_mean(name, CONTROLLERS))
    kind = CONTROLLERS[name]
    if "" in values:  # a value without its setting's name
        if not kind.model_fields:
            raise ValueError(f"{name} has no settings")
        values.setdefault(next(iter(kind.model_fields)), values.pop(""))
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            raise ValueError(
                f"{name} has no setting {key!r}" + did_you_mean(key, kind.model_fields)
                if kind.model_fields
                else f"{name} has no settings"
            ) from None
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise ValueError(f"for the setting {key!r} of {name}, {first['input']!r}, {message}") from None


def depth_text(value: object) -> str:
    """The canonical text: the name, and the settings that differ from their defaults."""
    settings = parse_depth(value)
    given = settings.model_dump(exclude_defaults=True)
    if not given:
        return settings.name
    if list(given) == [next(iter(type(settings).model_fields))]:
        return f"{settings.name}:{next(iter(given.values()))}"
    return f"{settings.name}:" + ",".join(f"{key}={setting}" for key, setting in given.items())


def _parts(text: str) -> dict[str, Any]:
    name, colon, rest = text.partition(":")
    values: dict[str, Any] = {"name": name.strip()}
    for part in rest.split(",") if colon else ():
        key, sign, setting = part.rpartition("=")
        key = key.strip()
        if key in values or not setting.strip() or (sign and not key):
            raise ValueError(f"settings are key=value with commas between, such as {name}:discount=0.9")
        try:
            values[key] = yaml.safe_load(setting)
        except yaml.YAMLError:
            values[key] = setting
    return values


_KNOWN = ", ".join(CONTROLLERS)
