"""The budget of a certificate and the result of a check. Imports no torch: `Budget` gives the command its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from draftwood.util.config import Count

CHECKS = "Checks"
RISK = 1e-6  # chance that one check by samples fails what is exact; those of a certificate add up
Advance: TypeAlias = Callable[[], None]  # called after each step of a check


class Budget(BaseModel):
    """The amount of work of each check."""

    model_config = ConfigDict(frozen=True, extra="forbid", title=CHECKS)

    runs: Count = Field(default=1000, description="Generations per combination of warp and batch on tabular models.")
    replays: Count = Field(default=1000, description="Most outcomes of an enumerated case.")
    identities: Count = Field(default=200, description="Texts that are compared with those of a reference.")
    pair_runs: Count = Field(default=600, description="Sampled generations of the pair.")
    max_new_tokens: Count = Field(default=64, description="Tokens of the pair's greedy text.")
    position: int = Field(default=2, ge=0, description="The law of the pair is checked up to this token, from 0.")
    seeds: int = Field(default=100_000, ge=1000, description="Seeds whose random numbers are tested.")
    seed: int = Field(default=1, description="Of tabular models and runs.")


CheckVerdict: TypeAlias = Literal["PASS", "FAIL", "LOSSY", "N/A"]


@dataclass(frozen=True, slots=True)
class Check:
    """A verdict with one line of reason, and the figures behind it.

    LOSSY is a measured distance of a method that does not claim to be exact; N/A is a check that means nothing here.
    """

    name: str
    verdict: CheckVerdict
    reason: str
    figures: dict[str, Any] = field(default_factory=dict)
