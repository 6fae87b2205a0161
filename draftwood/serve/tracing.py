"""A span of OpenTelemetry for each request, where `opentelemetry-instrument`, or a program, has set that up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    from opentelemetry import propagate, trace
except ModuleNotFoundError:
    trace = None  # type: ignore[assignment]

NAMES = {  # as OpenTelemetry's conventions have them
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "request_id": "draftwood.request_id",
    "speculation": "draftwood.speculation",
}


def begun(name: str, headers: Mapping[str, str]) -> Any:
    """A request's span, below the client's own where a header names one."""
    if trace is None:
        return None
    tracer = trace.get_tracer("draftwood")
    return tracer.start_span(name, propagate.extract(headers), trace.SpanKind.SERVER)


def ended(span: Any, facts: Mapping[str, Any]) -> None:
    """End it with what is logged of the request, never the prompt."""
    if span is None:
        return
    span.set_attributes({NAMES[key]: value for key, value in facts.items() if key in NAMES})
    if facts["status"] >= 500:
        span.set_status(trace.StatusCode.ERROR)
    span.end()
