"""Files about the project agree with it, and GitHub and others can read them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from draftwood import __version__

ROOT = Path(__file__).parents[1]
SCHEMAS = {
    "github-workflows": ".github/workflows/*.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/*.yml",
    "dependabot": ".github/dependabot.yml",
    "citation-file-format": "CITATION.cff",
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_follow_their_schemas(schema: str) -> None:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    files = sorted(map(str, ROOT.glob(SCHEMAS[schema])))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_version_and_licence_are_the_same_everywhere() -> None:
    for project in ("pyproject.toml", "native/pyproject.toml"):
        assert tomllib.loads((ROOT / project).read_text("utf-8"))["project"]["version"] == __version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == __version__
    newest = re.search(r"^## \[(.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest and re.fullmatch(rf"Unreleased\]: {__version__}|{__version__}\] - 20\d\d-\d\d-\d\d", newest[1])
    assert (ROOT / "native/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_workflows_may_do_little_and_end() -> None:
    """Rights are given to the jobs that need them, every job has a limit of time, and actions have a major version."""
    for file in (ROOT / ".github/workflows").glob("*.yml"):
        workflow = yaml.safe_load(file.read_text("utf-8"))
        assert workflow["permissions"] in ({}, {"contents": "read"}), file.name
        for name, job in workflow["jobs"].items():
            assert "uses" in job or job["timeout-minutes"] <= 40, (file.name, name)
            for action in (step["uses"] for step in job.get("steps", ()) if "uses" in step):
                assert re.fullmatch(r"actions/[a-z-]+@v\d+|pypa/gh-action-pypi-publish@release/v1", action), action


def test_hooks_are_the_steps_of_the_check() -> None:
    """A step that is added to scripts/check is added to .pre-commit-config.yaml too, with the same arguments."""
    steps = re.findall(r"^(?:\"\$bin/(.+?)\"(.*)|(scripts/docs))$", (ROOT / "scripts/check").read_text(), re.MULTILINE)
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert [hook["entry"] for hook in local["hooks"]] == [
        script or f".venv/bin/{tool}{arguments}" for tool, arguments, script in steps
    ]


def test_image_is_made_of_what_is_there() -> None:
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert kept and all((ROOT / name).exists() for name in kept)
