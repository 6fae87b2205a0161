"""What one check of a certificate says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["PASS", "FAIL", "LOSSY", "N/A"]


@dataclass(frozen=True, slots=True)
class Check:
    """A verdict with one line of reason, and the figures behind it.

    LOSSY is a measured distance of a method that does not claim to be exact; N/A is a check that means nothing here.
    """

    name: str
    verdict: Verdict
    reason: str
    figures: dict[str, Any] = field(default_factory=dict)
