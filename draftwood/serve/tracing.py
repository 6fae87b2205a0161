"""Attributes of a request's OpenTelemetry span, where FastAPI or `opentelemetry-instrument` makes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    from opentelemetry.trace import get_current_span as current
except ModuleNotFoundError:
    current = None  # type: ignore[assignment]

ATTRIBUTES = {
    "request_id": "draftwood.request_id",
    "speculation": "draftwood.speculation",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
}


def span() -> Any:
    """The span that the request has so far, if any."""
    return None if current is None else current()


def set_attributes(span: Any, facts: Mapping[str, Any]) -> None:
    """Add what the log says of the request, never its texts."""
    if span is not None:
        span.set_attributes({ATTRIBUTES[key]: value for key, value in facts.items() if key in ATTRIBUTES})
