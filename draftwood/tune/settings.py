"""What a search is asked for: `TuneSettings`, and the prompts of `Workload`. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

TREES = "mcsd"


def _counts(value: Any) -> Any:
    """1,2,4 as (1, 2, 4)."""
    if isinstance(value, str):
        try:
            value = [int(part) for part in value.split(",")]
        except ValueError:
            value = []
    found = tuple(sorted(set(value)))
    if not found or found[0] < 1:
        raise ValueError("must be whole numbers of 1 or more with commas between")
    return found


Counts = Annotated[tuple[int, ...], BeforeValidator(_counts)]


class TuneSettings(BaseModel):
    """Which options of which method are searched, how, and in how many runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Search")

    method: Annotated[
        str,
        Field(
            description="mcsd, mcsd-fork, speculative, dsbd, speculative-beam-search or lookup.",
            json_schema_extra={"metavar": "NAME"},
        ),
    ] = TREES
    budget: Annotated[int, Field(ge=2, description="Measured runs.")] = 20
    search: Annotated[
        Literal["guided", "grid"],
        Field(
            description="guided: trees by predictions from measured acceptance and costs, others by optuna; grid: all."
        ),
    ] = "guided"
    fixed: Annotated[
        dict[str, Any], Field(description="An option that is fixed, such as verify=coupled. Repeatable.")
    ] = Field(default_factory=dict)
    rows: Annotated[int, Field(ge=1, description="Most tokens that the target verifies at once.")] = 48
    max_depth: Annotated[int, Field(ge=1, description="mcsd: most layers of drafts.")] = 6
    widths: Annotated[Counts | None, Field(description="mcsd: children that a node may have. Default: any number.")] = (
        None
    )
    initial: Annotated[
        Counts,
        Field(description="mcsd: tokens of the target that a round begins with. More than 1 are lossy."),
    ] = (1,)
    beams: Annotated[
        int, Field(ge=1, description="dsbd: to be no worse than beam-sampling of this width, measured with it.")
    ] = 4
    tolerance: Annotated[
        float,
        Field(
            ge=0,
            description="dsbd: nats per token that the best beam's mean log-likelihood may be lower than that "
            "(0.02: perplexity 2% higher).",
        ),
    ] = 0.02
