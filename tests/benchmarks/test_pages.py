"""Pages of results: numbers as text, tables, and that what is committed follows from the result files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.pages import filled, made, readme
from benchmarks.pages.tables import documents, frame, markdown, pivoted, span, text, times
from draftwood.errors import ConfigurationError

ROOT = Path(__file__).parents[2]


def test_pages_follow_from_the_result_files() -> None:
    """`python -m benchmarks pages` changes nothing."""
    pages = made(ROOT)
    assert {path.relative_to(ROOT).as_posix() for path in pages} == {
        "README.md",
        "docs/depth.md",
        "docs/models.md",
        "docs/papers.md",
        "docs/results.md",
        "docs/serving.md",
        "draftwood/models/embedded/README.md",
    }
    for path, text_ in pages.items():
        assert path.read_text("utf-8") == text_, f"{path} is not what the results say; run python -m benchmarks pages"


@pytest.mark.slow  # no default test: a rebase renames commits, and changes no result
def test_commits_of_results_are_in_the_history() -> None:
    """But for one that was rebased since, which the page of its results says."""
    known = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if known.returncode or (ROOT / ".git" / "shallow").exists():
        pytest.skip("the history is not here")
    history = {commit[:9] for commit in known.stdout.split()}
    named: set[str] = set()
    for file in (ROOT / "benchmarks" / "results").rglob("*.json"):
        named |= {found[:9] for found in re.findall(r'"git_commit": "([0-9a-f]{40})', file.read_text("utf-8"))}
    assert len(named) > 20 and named - history == {"c99f366bd"}
    assert "c99f366bd, which was rebased since" in (ROOT / "docs" / "serving.md").read_text("utf-8")


def test_the_page_of_results_is_short_and_its_results_are_small() -> None:
    assert len((ROOT / "docs" / "results.md").read_text("utf-8").splitlines()) <= 300
    files = [*(ROOT / "benchmarks" / "results").rglob("*.json")]
    assert files and sum(file.stat().st_size for file in files) < 3e6


def test_no_sentence_of_the_page_has_a_number_typed_by_hand() -> None:
    source = (ROOT / "benchmarks" / "pages" / "results.py").read_text("utf-8")
    sentences = re.sub(r"\{[^{}]*\}", "", "".join(re.findall(r'f"""(.*?)"""', source, re.DOTALL)))
    assert not re.search(r"\d\.\d|\d ?%|\d times", sentences.replace("2,4,3,1,1", ""))


def test_numbers_are_shown_with_units_and_intervals() -> None:
    number = {"value": 1.5, "low": 1.25, "high": 1.75, "n": 9}
    assert times(number) == "1.50x" and times(number, ends=True) == "1.50x (1.25 to 1.75, n=9)"
    assert text(0.5, ".0%") == "50%" and text({"value": 2.0, "low": None, "high": None, "n": 1}, ends=True) == "2.00"
    assert text({"value": None, "low": None, "high": None, "n": 0}) == text(float("nan")) == ""
    assert span([number, 0.5, 1.0]) == "0.50 to 1.50" and span([number]) == "1.50"
    with pytest.raises(ValueError, match="empty"):
        span([])


def test_a_table_has_a_column_for_each_value_in_its_order() -> None:
    rows = pd.DataFrame(
        {"pair": ["b", "b", "a"], "method": ["z", "y", "z"], "cell": ["1", "2", "3"]},
    )
    assert markdown(pivoted(rows, ["pair"], "method")).splitlines() == [
        "| pair | z | y |",
        "| --- | --- | --- |",
        "| b | 1 | 2 |",
        "| a | 3 |  |",
    ]


def test_rows_of_all_runs_are_chosen_by_their_fields() -> None:
    runs = [each["run"] for each in documents("headline")]
    assert runs == ["embedded-float32", "grown-12x768-bfloat16"]
    rows = frame("headline", "chains", task="all", method="chain of 4", temperature=1)
    assert list(rows["pair"]) == ["embedded", "grown-12x768"] and list(rows["type"]) == ["float32", "bfloat16"]
    assert frame("headline", "chains", task="none").empty


def test_a_page_without_its_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a -->\nold\n<!-- end of a -->\nbehind\n", "utf-8")
    assert filled(page, {"a": "new"}) == "before\n<!-- a -->\nnew\n<!-- end of a -->\nbehind\n"
    with pytest.raises(ConfigurationError, match="has no markers of 'b'"):
        filled(page, {"b": "new"})


def test_readmes_table_is_of_one_machine_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert readme.measured() in (ROOT / "README.md").read_text("utf-8")
    assert readme.real_table() in (ROOT / "README.md").read_text("utf-8")
    one, other = documents("headline")
    other["environment"]["git_commit"] = "0" * 40
    monkeypatch.setattr(readme, "documents", lambda experiment: [one, other])
    with pytest.raises(ConfigurationError, match="different machines, days or commits"):
        readme.measured()
