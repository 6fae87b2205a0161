"""The registry of depth controllers: name -> settings -> controller.

On the command line a controller is its name with settings behind a colon: `confidence`, `confidence:0.4` (the first
setting), `speedup-ts:discount=0.9,cost=0.1`; in files and in Python also {"name": "confidence", "threshold": 0.4}. The
text is the one canonical form.

Three settings let sampled texts of one seed differ between runs; their distribution, and greedy and coupled texts, stay
the same. `speedup-ts` and `optimal-stopping` without `cost` decide by the measured time of a draft at the present load.
With `shared=true` the requests of an engine learn together. `auto` does both for requests that run at once, but only
where texts cannot differ or the engine is `load_aware`; elsewhere it decides by the request's own rounds and by nominal
costs, which follow from the models' sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from draftwood.depth.auto import Auto
from draftwood.depth.calibrated import CalibratedThompson, load_calibration
from draftwood.depth.confidence import AdaptiveConfidence, Confidence, Entropy, OptimalStopping
from draftwood.depth.decision import Decide, load_decision
from draftwood.depth.load import DraftCost
from draftwood.depth.rules import DepthController, Fixed
from draftwood.depth.thompson import Acceptance, BetaThompson, SpeedupThompson
from draftwood.errors import ConfigurationError, did_you_mean
from draftwood.util import config
from draftwood.util.safe_parsing import parse_value, short_repr

Discount = Annotated[float, Field(gt=0, le=1, description="what older rounds count for, per round")]
Accepted = Annotated[float, Field(gt=0, le=1e6, description="prior: accepted drafts before any were seen")]
Rejected = Annotated[float, Field(gt=0, le=1e6, description="prior: rejected drafts before any were seen")]
Share = Annotated[float, Field(ge=0, le=1)]
CostOption = Annotated[
    float | None,
    Field(
        ge=0,
        le=100,
        description="c, a layer's time in target forwards; null: as measured at the load, which seeds cannot repeat",
    ),
]


def _separable(path: str) -> str:
    if "," in path or "=" in path:
        raise ValueError("must be a path without commas and =, which separate settings")
    return path


Learned = Annotated[
    str,
    BeforeValidator(lambda path: str(path) if isinstance(path, Path) else path),
    AfterValidator(_separable),
    Field(min_length=1),
]
Draft: TypeAlias = Callable[[], str]  # the fingerprint of a model: what was learned belongs to one
Zero = Annotated[bool, Field(description="ask before the first layer too, so that a round may draft nothing")]
Shared = Annotated[bool, Field(description="the requests of an engine learn together")]
Deviation = Annotated[float | None, Field(gt=0, le=10, description="null: as training found it")]


class DepthSettings(BaseModel):
    """Checked settings of one controller."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    controller: ClassVar[Callable[..., DepthController]]  # by default what `build` makes of the settings

    def build(self, most: int, draft: Draft | None = None, target: Draft | None = None) -> DepthController:
        """A controller for one request that drafts at most `most` layers; `draft` and `target` say which models."""
        return type(self).controller(most, **dict(self))


class FixedDepth(DepthSettings):
    name = "fixed"
    controller = Fixed


class ConfidenceDepth(DepthSettings):
    name = "confidence"
    controller = Confidence

    threshold: Share = Field(default=0.4, description="least probability that the draft gave its last token")


class AdaptiveDepth(DepthSettings):
    name = "adaptive-confidence"
    controller = AdaptiveConfidence

    threshold: Share = Field(default=0.6, description="where it starts")
    target: Share = Field(default=0.9, description="share of drafts that are to be accepted")
    step: Share = Field(default=0.01, description="how far the threshold wants to move after a round")
    rate_memory: Share = Field(default=0.5, description="what the rate so far counts for")
    memory: Share = Field(default=0.9, description="what the threshold so far counts for")


class EntropyDepth(DepthSettings):
    name = "entropy"
    controller = Entropy

    limit: float = Field(default=2.0, ge=0, allow_inf_nan=False, description="most nats of the draft's distribution")


class DecisionDepth(DepthSettings):
    name = "decision"

    path: Annotated[Learned, Field(description="what `draftwood train decision` wrote")]
    threshold: Share = Field(default=0.4, description="least chance that drafting goes on for, MCSD's beta")

    def build(self, most: int, draft: Draft | None = None, target: Draft | None = None) -> DepthController:
        if draft is None:
            raise ConfigurationError("the controller decision needs a draft model; this method drafts without one")
        return Decide(load_decision(Path(self.path), draft()), most, self.threshold)


class BetaDepth(DepthSettings):
    name = "beta-ts"

    discount: Discount = 1.0
    a: Accepted = 1.0
    b: Rejected = 1.0
    zero: Zero = False
    shared: Shared = False

    def build(self, most: int, draft: Draft | None = None, target: Draft | None = None) -> DepthController:
        return BetaThompson(most, Acceptance(self.a, self.b, self.discount), self.zero, self.shared)


class CalibratedDepth(DepthSettings):
    name = "cali-ts"

    path: Annotated[Learned, Field(description="what `draftwood train calibration` wrote")]
    model_deviation: Deviation = None
    sample_deviation: Deviation = None
    theta0: float | None = Field(default=None, gt=0, le=1, description="guess, counted once; null: training's share")
    zero: Zero = False
    shared: Shared = False

    def build(self, most: int, draft: Draft | None = None, target: Draft | None = None) -> DepthController:
        if draft is None or target is None:
            raise ConfigurationError("the controller cali-ts needs a draft model; this method drafts without one")
        trained = load_calibration(Path(self.path), target(), draft())
        return CalibratedThompson(
            most,
            trained.model.chance,
            self.model_deviation or trained.model_deviation,
            self.sample_deviation or trained.sample_deviation,
            self.theta0 or trained.theta0,
            self.zero,
            self.shared,
        )


class SpeedupDepth(DepthSettings):
    name = "speedup-ts"

    discount: Discount = 0.95
    cost: CostOption = None
    a: Accepted = 1.0
    b: Rejected = 1.0
    shared: Shared = False

    def build(self, most: int, draft: Draft | None = None, target: Draft | None = None) -> DepthController:
        return SpeedupThompson(most, Acceptance(self.a, self.b, self.discount), DraftCost(self.cost), self.shared)


class StoppingDepth(DepthSettings):
    name = "optimal-stopping"

    discount: Discount = 0.98
    cost: CostOption = None
    shared: Shared = False

    def build(self, most: int, draft: Draft | None = None, target: Draft | None = None) -> DepthController:
        return OptimalStopping(most, self.discount, DraftCost(self.cost), self.shared)


class AutoDepth(DepthSettings):
    name = "auto"
    controller = Auto

    discount: Discount = 0.99


CONTROLLERS: dict[str, type[DepthSettings]] = {
    kind.name: kind
    for kind in (
        AutoDepth,
        FixedDepth,
        ConfidenceDepth,
        AdaptiveDepth,
        EntropyDepth,
        DecisionDepth,
        BetaDepth,
        CalibratedDepth,
        SpeedupDepth,
        StoppingDepth,
    )
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
        raise ValueError(f"there is no controller {short_repr(name)}" + did_you_mean(name, CONTROLLERS))
    kind = CONTROLLERS[name]
    if "" in values:  # a value without its setting's name
        if not kind.model_fields:
            raise ValueError(f"controller {name} has no settings")
        values.setdefault(next(iter(kind.model_fields)), values.pop(""))
    for key, field in kind.model_fields.items():
        if field.is_required() and key not in values:
            raise ValueError(f"{name} needs its setting {key!r}, as {name}:{key.upper()} or {name}:{key}=...")
    return config.parse(kind, values, f"controller {name}", "setting")


def depth_text(value: object) -> str:
    """The canonical text: the name, and the settings that differ from their defaults."""
    settings = parse_depth(value)
    given = settings.model_dump(exclude_defaults=True)
    if not given:
        return settings.name
    if list(given) == [next(iter(type(settings).model_fields))]:
        return f"{settings.name}:{next(iter(given.values()))}"
    shown_values = {key: str(each).lower() if isinstance(each, bool) else each for key, each in given.items()}
    return f"{settings.name}:" + ",".join(f"{key}={each}" for key, each in shown_values.items())


def _parts(text: str) -> dict[str, Any]:
    name, colon, rest = text.partition(":")
    values: dict[str, Any] = {"name": name.strip()}
    for part in rest.split(",") if colon else ():
        key, sign, setting = part.rpartition("=")
        key = key.strip()
        if key in values or not setting.strip() or (sign and not key):
            raise ValueError(f"settings are key=value with commas between, such as {name}:discount=0.9")
        values[key] = parse_value(setting)
    return values


_KNOWN = ", ".join(CONTROLLERS)
