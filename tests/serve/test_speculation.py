"""Every way to decode can be asked for by request."""

from __future__ import annotations

from typing import Any

import pytest
from servers import Running

from draftwood import DraftwoodError
from draftwood.depth import CONTROLLERS

PROMPT = "Story: a fox"


def combinations(served: Running) -> list[dict[str, Any]]:
    """Every method, verifier, controller and other choice of options that these models can be asked for."""
    found: list[dict[str, Any]] = []
    for method in served.client.get("/v1/methods").json()["data"]:
        if not method["usable"]:
            continue
        found.append({"name": method["name"]})
        for option in method["options"]:
            values = sorted(CONTROLLERS) if option["name"] == "depth" else option.get("choices", ())
            for value in values:
                found.append({"name": method["name"], option["name"]: value})
    return found


@pytest.mark.slow
def test_whatever_an_engine_decodes_by_can_be_asked_for(served: Running) -> None:
    """The text is the engine's; what the engine refuses is refused in its words, less paths and advice."""
    decoded = 0
    for method in combinations(served):
        asked = {"prompt": PROMPT, "max_tokens": 4, "seed": 3, "speculation": method}
        try:
            expected = served.engine.generate(PROMPT, method, max_new_tokens=4, seed=3).text
        except DraftwoodError as error:
            words = served.service.public.sentence(str(error)).partition("; ")[0]
            assert words in served.refused("/v1/completions", **asked)[1]["message"], method
            continue
        assert served.post("/v1/completions", **asked)["choices"][0]["text"] == expected, method
        decoded += 1
    assert decoded > 60
