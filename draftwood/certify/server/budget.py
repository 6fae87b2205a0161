"""How much is asked of a server, and how it computes. Imports no torch: the command takes its options from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from draftwood.util.config import Count

PANEL = "Checks of a server (--url)"
ROUNDING = {"float32": 0.002, "float16": 0.05, "bfloat16": 0.15}  # nats, of the difference of two log-probabilities


@dataclass
class Limits:
    """Bounds of all requests to one server."""

    requests: int = 5000  # tries included
    rate: float | None = None  # requests per second; None: as many as are answered
    seconds: float = 3600.0
    concurrency: int = 8
    request_seconds: float = 120.0


class ServerBudget(BaseModel):
    """How much is asked of a server, and how it computes."""

    model_config = ConfigDict(frozen=True, extra="forbid", title=PANEL)

    samples: Count = Field(default=200, description="Sampled requests per check, of 8 tokens at most.")
    greedy_tokens: Count = Field(default=48, description="Tokens of greedy texts.")
    precision: Literal["float32", "float16", "bfloat16"] = Field(
        default="bfloat16", description="The type that the server computes in; texts may differ by its rounding."
    )
    max_requests: Count = Field(default=5000, description="Most requests to one server, tries included.")
    rate: float | None = Field(default=None, gt=0, description="Most requests per second. Default: no bound.")
    max_seconds: float = Field(default=3600.0, gt=0, description="Most seconds in all.")
    concurrency: Count = Field(default=8, description="Requests at once.")
    server_seed: int = Field(default=1, ge=0, description="Of the seeds that requests name.")

    def limits(self) -> Limits:
        """The bounds of requests to a server."""
        return Limits(self.max_requests, self.rate, self.max_seconds, self.concurrency)
