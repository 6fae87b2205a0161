"""How much a certificate checks. Imports no torch: the command line makes its options of this."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

CHECKS = "Checks"
Count = Annotated[int, Field(ge=1)]


class Budget(BaseModel):
    """How much each check does."""

    model_config = ConfigDict(frozen=True, extra="forbid", title=CHECKS)

    runs: Annotated[Count, Field(description="Generations per combination of warp and batch on tabular models.")] = 1000
    replays: Annotated[Count, Field(description="Most outcomes of an enumerated case.")] = 1000
    identities: Annotated[Count, Field(description="Texts that are compared with those of a reference.")] = 200
    pair_runs: Annotated[Count, Field(description="Sampled generations of the pair.")] = 600
    max_new_tokens: Annotated[Count, Field(description="Tokens of the pair's greedy text.")] = 64
    position: Annotated[int, Field(ge=0, description="The law of the pair is checked up to this token, from 0.")] = 2
    seed: Annotated[int, Field(description="Of tabular models and runs.")] = 1
