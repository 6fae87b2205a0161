"""Speed-ups on pages are of whole requests with their prompts; those of decoding alone are named so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from benchmarks.execute import read
from benchmarks.pages import readme, results, tables
from benchmarks.papers.settings import PLAIN, PaperMethod
from benchmarks.papers.study import Sweep
from draftwood.eval.summary import _paired as paired_with_plain

WHOLE, ALONE = 11.11, 77.77


def marked(value: Any) -> Any:
    """A result file in which all speed-ups of whole requests are WHOLE, and all of decoding alone are ALONE."""
    if isinstance(value, list):
        return [marked(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    result = {key: marked(each) for key, each in value.items()}
    if "speed_up_with_prompt" in result:
        result |= {"speed_up_with_prompt": interval(WHOLE), "speed_up": interval(ALONE)}
    return result


def interval(value: float) -> dict[str, Any]:
    return {"value": value, "low": value, "high": value, "n": 9}


@pytest.mark.parametrize("made", [readme.speed_table, results.methods, results.beams])
def test_a_page_names_what_leaves_the_prompt_out(made: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "read", lambda path: marked(read(path)))
    page = made()
    assert f"{WHOLE}x" in page and f"{ALONE}x" in page
    head: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if not line.startswith("|"):
            head = []
            assert f"{ALONE}" not in line or "decoding alone" in line, line
            continue
        head = head or cells
        for title, cell in zip(head, cells, strict=True):
            unnamed = cell.replace(f"decoding alone {ALONE}x", "")
            assert f"{ALONE}" not in unnamed or title == "decoding alone", line


def test_speed_ups_of_the_papers_count_the_prompt() -> None:
    """Two methods that decode alike, of which one takes a second longer to read each prompt."""

    def run(method: int, place: int, seconds: float, first: float) -> dict[str, Any]:
        rounds = {"first_round_seconds": first, "rounds": 4}
        about = {"task": "qa", "method": method, "place": place, "seed": 0, "status": "ok", "rounds": rounds}
        return {**about, "tokens": 10, "seconds": seconds, "token_hash": "", "scores": {}, "nats": 1.0}

    plain = [run(0, place, 1.0, 0.1) for place in range(4)]
    slow = [run(1, place, 2.0, 1.1) for place in range(4)]
    names = {"configuration": {"tasks": [{"name": "qa"}]}}
    sweep = Sweep({PLAIN: PaperMethod({}), "slow": PaperMethod({})}, ["SQuAD"], names, plain + slow)
    ratio = sweep.faster("slow", PLAIN)
    assert ratio is not None and ratio["value"] == pytest.approx(0.5) and ratio["n"] == 4
    assert paired_with_plain(slow, plain, "em", None)["speed_up"]["value"] == pytest.approx(0.5)


def test_no_other_page_reads_such_fields() -> None:
    pages = [path.stem for path in (tables.HERE / "pages").glob("*.py") if "speed_up" in path.read_text("utf-8")]
    assert sorted(pages) == ["chat_prompts", "readme", "results"]  # the first has whole requests alone
