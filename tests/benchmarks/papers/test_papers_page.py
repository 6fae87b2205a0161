"""The page of the papers: its numbers come from the result files, its rows name all exhibits and code that is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from pydoc import locate

import pytest

from benchmarks.papers.page import RESULTS, amount, asked, documents, filled, here_cell, paper_cell, verdict
from draftwood.cli.main import made

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "papers.md").read_text("utf-8")
SECTIONS = {title.lower(): text for title, text in re.findall(r"(?ms)^## (\w+)\n(.*?)(?=^## |\Z)", PAGE)}
CLAIMS = {
    name: [
        row.split(" | ") for row in re.findall(r"(?m)^\| (.*) \|$", text.partition("<!--")[0]) if row.count(" | ") == 3
    ][2:]
    for name, text in SECTIONS.items()
}
IN_THE_PAPERS = {
    "dsbd": {"Algorithm": [1], "Figure": range(1, 10), "Table": [1], "Theorem": [3.1, 3.2]},
    "mcsd": {"Figure": range(1, 9), "Table": range(1, 5)},
    "eesd": {"Algorithm": range(1, 4), "Figure": range(1, 7), "Table": range(1, 14)},
}


def test_numbers_come_from_the_result_files() -> None:
    """`python -m benchmarks pages` changes nothing."""
    assert filled(PAGE) == PAGE
    assert len(PAGE.splitlines()) <= 400
    assert sum(path.stat().st_size for path in RESULTS.glob("*.json")) < 600_000


@pytest.mark.parametrize("name", IN_THE_PAPERS)
def test_every_table_figure_theorem_and_algorithm_of_a_paper_has_a_row(name: str) -> None:
    found: dict[str, set[float]] = {}
    for of, *_ in CLAIMS[name]:
        for kind, first, joint, last in re.findall(r"([A-Z][a-z]+?)s? ([\d.]+)(?: (and|to) (\d+))?", of):
            ends = [float(each) for each in (first, last) if each]
            some = range(int(first), int(last) + 1) if joint == "to" else ends
            found.setdefault(kind, set()).update(some)
    assert {kind: sorted(found[kind]) for kind in IN_THE_PAPERS[name]} == {
        kind: sorted(numbers) for kind, numbers in IN_THE_PAPERS[name].items()
    }
    exhibits = {each["exhibit"] for document in documents(name) for each in document["tables"]["findings"]}
    assert exhibits <= {of for of, *_ in CLAIMS[name]} | {"Figure 3, abstract"}


def test_the_page_says_how_much_was_measured_and_attributes_nothing_falsely() -> None:
    for name in SECTIONS:
        for document in documents(name):
            sizes = [part["size"] | {"items": asked(document, part["part"])} for part in document["parts"]]
            assert sizes and all(amount(**each) in SECTIONS[name] for each in sizes)
    rows = [{"sweep": "a", "task": task, "tokens/s": {"n": n}} for task, n in (("X", 4), ("Y", 4), ("X", 4))]
    document = {"tables": {"rows": [*rows, {"sweep": "b", "task": "X", "tokens/s": {"n": 3}}]}}
    assert (asked(document, "a"), asked(document, "b"), asked(document, "c")) == (4, 3, None)
    document["tables"]["rows"][1]["tokens/s"]["n"] = 2  # asked for 4, but the data set has 2
    assert asked(document, "a") == {"X": 4, "Y": 2}
    for page in (ROOT / "docs" / "papers.md", ROOT / "docs" / "results.md", ROOT / "docs" / "evaluation.md"):
        text = page.read_text("utf-8")
        false = "full[- ]scale|not reached|median of ratios|independent initial|Core i7|estimated? joule"
        assert not re.search(false, text, re.IGNORECASE)


def test_every_number_of_the_page_says_of_how_many_items_it_is() -> None:
    for name in SECTIONS:
        for document in documents(name):
            for finding in document["tables"]["findings"]:
                assert (
                    not finding["here"]
                    or f"n={finding['here']['n']}" in here_cell(finding)
                    or (finding["here"]["low"] is None)
                )


@pytest.mark.parametrize("name", CLAIMS)
def test_code_and_commands_of_the_rows_are_there(name: str) -> None:
    assert len(CLAIMS[name]) > 10
    for row in CLAIMS[name]:
        assert all(cell.strip() for cell in row), row
        for code in re.findall(r"`([^`]*)`", row[3]):
            assert (ROOT / code).is_file() if "/" in code else locate(code) is not None, code
        for command in re.findall(r"`draftwood ([^`]* --[^`]*)`", row[2]):
            group, *rest = shlex.split(command)
            given = [*rest, "file.html"] if rest[-1] == "--html" else rest
            made(group).make_context(group, ["prompt", *given] if group == "explain" else given)


def interval(*numbers: float | None) -> dict[str, float | None]:
    return dict(zip(("value", "low", "high", "n"), numbers, strict=True))


FINDING = {"what": "speed", "paper": [1.5, 1.9], "unit": "x", "even": 1.0, "here": interval(1.36, 1.25, 1.48, 20)}


@pytest.mark.parametrize(
    ("change", "theirs", "here"),
    [
        ({}, "1.50–1.90x", "1.36x (1.25 to 1.48, n=20): same direction, smaller"),
        ({"here": interval(1.7, 1.4, 2.0, 20)}, "1.50–1.90x", "1.70x (1.40 to 2.00, n=20): same direction, as large"),
        (
            {"here": interval(0.9, 0.7, 1.1, 20)},
            "1.50–1.90x",
            "0.90x (0.70 to 1.10, n=20): no direction shown, smaller",
        ),
        (
            {"here": interval(0.9, 0.8, 0.99, 20)},
            "1.50–1.90x",
            "0.90x (0.80 to 0.99, n=20): opposite direction, smaller",
        ),
        ({"here": interval(2.1, 2.0, 2.2, 20)}, "1.50–1.90x", "2.10x (2.00 to 2.20, n=20): same direction, larger"),
        ({"here": interval(1.4, None, None, 1)}, "1.50–1.90x", "1.40x: one item has no interval"),
        ({"paper": [0.93, 0.98]}, "0.93–0.98x", "1.36x (1.25 to 1.48, n=20): opposite direction, larger"),
        ({"paper": [0.7, 1.9]}, "0.70–1.90x", "1.36x (1.25 to 1.48, n=20): as large"),
        ({"paper": [1.0, 1.0]}, "1.00x", "1.36x (1.25 to 1.48, n=20): larger"),
        ({"paper": [1.0, None]}, "above 1.00x", "1.36x (1.25 to 1.48, n=20): same direction"),
        ({"paper": [None, 1.9]}, "at most 1.90x", "1.36x (1.25 to 1.48, n=20): same direction, no more"),
        ({"paper": [None, 1.1], "even": None}, "at most 1.10x", "1.36x (1.25 to 1.48, n=20): more"),
        (
            {"paper": [None, 0.0], "unit": " points", "even": 0.0, "here": interval(-3, -5, -1, 9)},
            "at most 0 points",
            "-3 points (-5 to -1, n=9): same direction",
        ),
        ({"paper": [0.4, 0.5], "unit": "", "even": None}, "0.40–0.50", "1.36 (1.25 to 1.48, n=20): larger"),
        ({"here": None}, "1.50–1.90x", "not measured"),
    ],
)
def test_verdicts_follow_from_the_numbers(change: dict[str, object], theirs: str, here: str) -> None:
    finding = FINDING | change
    assert paper_cell(finding) == theirs
    assert here_cell(finding) == here


def test_an_interval_that_ends_at_even_shows_no_direction() -> None:
    assert verdict([1.5, 1.9], interval(1.2, 1.0, 1.4, 9), 1.0) == "no direction shown, smaller"
