"""README states what the result files hold, and nothing else."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_figures_come_from_the_result_files() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    rendered = runpy.run_path(str(ROOT / "benchmarks" / "readme.py"))["rendered"]
    assert rendered(readme) == readme
