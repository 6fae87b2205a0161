"""README states what the result files hold, and its code runs as printed."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def test_figures_come_from_the_result_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """README's and the model card's."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = importlib.import_module("readme")
    for document in script.TABLES:
        assert script.rendered(document) == (ROOT / document).read_text("utf-8")


def test_the_python_example_runs_as_printed() -> None:
    code = README.split("```python\n", 1)[1].split("```", 1)[0]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 100
