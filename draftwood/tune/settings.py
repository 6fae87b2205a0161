"""Settings of a search. Imports no torch, so that the command line starts fast."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

TREE_METHOD = "mcsd"


def _counts(value: Any) -> Any:
    """1,2,4 as (1, 2, 4)."""
    if isinstance(value, str):
        try:
            value = [int(part) for part in value.split(",")]
        except ValueError:
            value = []
    counts = tuple(sorted(set(value)))
    if not counts or counts[0] < 1:
        raise ValueError("must be whole numbers of 1 or more with commas between")
    return counts


CountList = Annotated[tuple[int, ...], BeforeValidator(_counts)]


class TuneSettings(BaseModel):
    """Which options of which method are searched, how, and in how many runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Search")

    method: str = Field(
        default=TREE_METHOD,
        description="mcsd, mcsd-fork, speculative, dsbd, speculative-beam-search or lookup.",
        json_schema_extra={"metavar": "NAME"},
    )
    budget: int = Field(default=20, ge=2, description="Measured runs.")
    search: Literal["guided", "grid"] = Field(
        default="guided",
        description="guided: trees by predictions from measured acceptance and costs, others by optuna; grid: all.",
    )
    fixed: dict[str, Any] = Field(
        default_factory=dict, description="A fixed option, such as verify=coupled. Repeatable."
    )
    rows: int = Field(default=48, ge=1, description="Most tokens that the target verifies at once.")
    max_depth: int = Field(default=6, ge=1, description="mcsd: most layers of drafts.")
    widths: CountList | None = Field(
        default=None, description="mcsd: allowed numbers of children per node. Default: any."
    )
    initial: CountList = Field(
        default=(1,), description="mcsd: tokens of the target that a round begins with. More than 1 is lossy."
    )
    beams: int = Field(default=4, ge=1, description="dsbd: must be no worse than beam-sampling of this width.")
    tolerance: float = Field(
        default=0.02,
        ge=0,
        description="dsbd: how much lower the best beam's mean log-likelihood may be, in nats per token "
        "(0.02: perplexity 2% higher).",
    )
