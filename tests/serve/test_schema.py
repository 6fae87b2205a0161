"""Random requests after /openapi.json: no answer that the schema does not know, none of them a server's error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from servers import running

from draftwood import load


@pytest.fixture(scope="module")
def api(target: Path) -> Any:
    with running(load(target)) as found:
        yield schemathesis.openapi.from_url(f"{found.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("api")


@schema.exclude(path="/v1/forest").parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)
def test_random_requests(case: Any) -> None:
    case.call_and_validate()
