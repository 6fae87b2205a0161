"""Agents of other libraries with a real model: SmolLM2's template knows no tools, and grammars make every call valid.

They run in the environment of DRAFTWOOD_AGENTS_PYTHON, an interpreter, or in this one: pip install langchain-openai
instructor litellm 'pydantic-ai-slim[openai]'.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import AGENTS, MISSING
from servers import Running, running

from draftwood import load

pytestmark = [pytest.mark.slow, pytest.mark.real]


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[Running]:
    with running(load(smollm2)) as found:
        yield found


@pytest.mark.parametrize("name", AGENTS)
def test_agents(smol: Running, name: str) -> None:
    python = os.environ.get("DRAFTWOOD_AGENTS_PYTHON", sys.executable)
    script = Path(__file__).with_name("agents.py")
    done = subprocess.run(
        [python, "-W", "ignore", str(script), name, smol.url, smol.service.name],
        env=os.environ | {"PYTHONPATH": "", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode == MISSING:
        pytest.skip(f"{name}: {done.stderr.strip()}; pip install what this file names")
    assert done.returncode == 0, done.stderr[-3000:]
