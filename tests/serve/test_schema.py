"""Random requests after /openapi.json: no answer that the schema does not know, none of them a server's error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from servers import Running


@pytest.mark.slow
@pytest.mark.parametrize("examples", [5, pytest.param(150, marks=pytest.mark.slow)])
def test_random_requests(served: Running, examples: int) -> None:
    import schemathesis  # takes a second
    from schemathesis.checks import positive_data_acceptance

    excluded = [positive_data_acceptance]  # what the schema allows may still be impossible, such as an unknown method
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    bounds = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )
    seen = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path == "/v1/forest":
            continue  # it goes on for ever
        modes = [schemathesis.GenerationMode.POSITIVE]
        if operation.body:  # else there is nothing to be wrong
            modes.append(schemathesis.GenerationMode.NEGATIVE)
        for mode in modes:

            @bounds
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:
                answer = case.call()
                if answer.status_code != 413:  # too long a body is refused whatever is in it
                    case.validate_response(answer, excluded_checks=excluded)

            ask()
            seen += 1
    assert seen > 15
