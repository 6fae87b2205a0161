"""How much a certificate checks. Imports no torch: the command line makes its options of this."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

CHECKS = "Checks"
Count = Annotated[int, Field(ge=1)]


class Budget(BaseModel):
    """How much each check does."""

    model_config = ConfigDict(frozen=True, extra="forbid", title=CHECKS)

    runs: Count = Field(default=1000, description="Generations per combination of warp and batch on tabular models.")
    replays: Count = Field(default=1000, description="Most outcomes of an enumerated case.")
    identities: Count = Field(default=200, description="Texts that are compared with those of a reference.")
    pair_runs: Count = Field(default=600, description="Sampled generations of the pair.")
    max_new_tokens: Count = Field(default=64, description="Tokens of the pair's greedy text.")
    position: int = Field(default=2, ge=0, description="The law of the pair is checked up to this token, from 0.")
    seed: int = Field(default=1, description="Of tabular models and runs.")
