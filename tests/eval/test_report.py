"""The page about an evaluation: fronts, labels, what it says, and that nothing in it is fetched or can break out."""

from __future__ import annotations

import json
import random
import re
import sys
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from draftwood.engine.metrics import ADDED
from draftwood.errors import ConfigurationError
from draftwood.eval.report import page
from draftwood.eval.report.figures import Figure, figures, front
from draftwood.eval.summary import summary_of
from draftwood.util import plots

METHODS = [{"name": "autoregressive"}, {"name": "speculative", "gamma": 4}, {"name": "speculative", "gamma": 2}]
HOSTILE = "ValueError: </script><b>bad & worse"


def write(directory: Path, items: int = 3, **models: Any) -> Path:
    """A directory as an evaluation leaves it: the last method is the fastest, and fails on the last item."""
    directory.mkdir(parents=True)
    configuration = {
        "models": {"target": "t<1>", "draft": ["d"], "dtype": "float32", "device": "cpu", **models},
        "methods": METHODS,
        "lossless": [True] * 3,
        "tasks": [
            {"name": "qa", "metric": "em", "items": items},
            {"name": "odd/name", "metric": "perplexity", "items": 1},
        ],
        "sampling": {"temperature": 0.0, "top_k": 5},
        "seeds": [0],
    }
    session = {"began": "now", "git_commit": "abc", "processor": "P", "idle_watts": {"gpu": 10.0}}
    (directory / "run.json").write_text(json.dumps({"configuration": configuration, "sessions": [session]}))
    lines = []
    for task, count in (("qa", items), ("odd/name", 1)):
        for place in range(count):
            for method in range(3):
                lines.append(record(task, place, method, task == "qa" and place == items - 1 and method == 2))
    (directory / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def record(task: str, place: int, method: int, fails: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "key": f"{task} {place} {method}",
        "task": task,
        "place": place,
        "method": method,
        "seed": 0,
    }
    if fails:
        return {**found, "status": "failed", "stage": "decode", "error": HOSTILE}
    rounds = dict.fromkeys(ADDED, 0) | {"rounds": 10, "emitted": 20, "attempted_at": [], "accepted_at": []}
    if method:
        rounds |= {"drafted": 20, "accepted": 10, "attempted_at": [10, 6], "accepted_at": [6, 4], "draft_forwards": 20}
        rounds |= {"draft_seconds": 0.1, "width_counts": [0, 3, 7], "depth_counts": [4, 2, 4]}
    return found | {
        "status": "ok",
        "scores": {"em": place % 2},
        "tokens": 20,
        "prompt_tokens": 5,
        "token_hash": "same",
        "nats": 10.0,
        "seconds": (2.0 + place) / (1 + method),
        "rounds": rounds | {"verify_seconds": 0.5},
        "joules": {"gpu": 40.0},
    }


class Checker(HTMLParser):
    """Tags that are opened and closed, and everything that a browser would fetch."""

    EMPTY = ("meta", "br", "link", "img", "path", "use")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [
            str(value) for name, value in attrs if name in ("src", "href") and not str(value).startswith("#")
        ]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    return checker


def test_a_page_with_its_figures(tmp_path: Path) -> None:
    path, files = page.write(write(tmp_path / "run"), tmp_path / "out")
    text = path.read_text("utf-8")
    assert not checked(text).fetched and not re.findall(
        r"@import|url\((?!#)|//[a-z]+\.", text.replace("//www.w3.org/", "")
    )
    assert "prefers-color-scheme: dark" in text and "max-width: 600px" in text
    assert "</script><b>" not in text and "t&lt;1&gt;" in text
    assert "1 × ValueError: &lt;/script&gt;" in text and "1 + 0 of 3" in text
    assert "speculative gamma=2 was the fastest lossless method" in text and "2 items no interval says much" in text
    assert "temperature 0, top_k 5" in text and "12 of 12 runs, 1 failed" in text and "not complete" not in text
    assert text.count("<h4>qa: ") == 3  # the configuration of every row
    kinds = ("front", "speed-up", "acceptance", "time", "depth", "width", "energy-gpu")
    assert {file.name for file in files} == {f"{task}-{kind}.svg" for task in ("qa", "odd-name") for kind in kinds}
    for file in files:
        ElementTree.fromstring(file.read_text("utf-8"))
    assert files[0].read_text("utf-8").partition("</style>")[2].strip() in text  # equal data, equal bytes


def drawn(directory: Path) -> dict[str, Any]:
    """The axes of the figures of the first task, by the figures' names."""
    summary = summary_of(directory)
    rows = [row for row in summary["rows"] if row["task"] == "qa"]
    made = figures("qa", rows, page.names(summary["configuration"]["methods"]))
    return {figure.name: figure.drawn().axes[0] for figure in made}


def test_numbers_of_the_figures(tmp_path: Path) -> None:
    axes = drawn(write(tmp_path / "run"))
    assert [bar.get_width() for bar in axes["qa-speed-up"].patches] == [pytest.approx(2), pytest.approx(3)]
    names = [text.get_text() for text in axes["qa-speed-up"].get_yticklabels()]
    assert names == ["speculative gamma=4", "speculative gamma=2"]
    first = {name: axes[f"qa-{name}"].lines[0].get_xydata().tolist() for name in ("acceptance", "depth", "width")}
    assert first["acceptance"] == [[1, pytest.approx(0.6)], [2, pytest.approx(4 / 6)]]
    assert first["depth"] == [[0, pytest.approx(0.4)], [1, pytest.approx(0.2)], [2, pytest.approx(0.4)]]
    assert first["width"] == [[1, pytest.approx(0.3)], [2, pytest.approx(0.7)]]
    times = [bar.get_width() for bar in axes["qa-time"].patches[1::3]]  # of the second method
    assert times == [pytest.approx(each) for each in (5.0, 25.0, 0.0, 0.0, 45.0)]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are named, but not drawn: each is slow."""
    monkeypatch.setattr(Figure, "drawn", lambda figure: None)
    monkeypatch.setattr(plots, "svg", lambda image, title: "<svg></svg>")


def test_an_evaluation_that_was_killed_is_reported_as_far_as_it_came(tmp_path: Path, undrawn: None) -> None:
    directory = write(tmp_path / "run")
    lines = (directory / "items.jsonl").read_bytes().splitlines(keepends=True)
    (directory / "items.jsonl").write_bytes(b"".join(lines[:7]) + lines[7][:30])
    summary = summary_of(directory)
    assert summary["runs"] == {"expected": 12, "made": 7, "failed": 0}
    text = page.write(directory)[0].read_text("utf-8")
    assert "This evaluation is not complete" in text and checked(text)


def test_several_evaluations_are_one_page(tmp_path: Path, undrawn: None) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b", grown={"target": "2x64", "draft": ["1x32"]})
    path, files = page.write(tmp_path)
    text = path.read_text("utf-8")
    assert text.count("target grown from 2x64, draft from 1x32") == 1
    assert (tmp_path / "figures" / "b-qa-front.svg") in files and len(set(files)) == 28


@pytest.mark.some(2)
@pytest.mark.parametrize("value", [[], "x", 10**30, [{}, {}]])
def test_a_damaged_evaluation_is_reported_or_refused(tmp_path: Path, value: object, undrawn: None) -> None:
    directory = write(tmp_path / "run")
    run, items = directory / "run.json", directory / "items.jsonl"
    whole, lines = json.loads(run.read_text()), items.read_text().splitlines(keepends=True)
    for part in (whole, whole["configuration"], whole["configuration"]["tasks"][0], whole["sessions"][0]):
        for key, before in list(part.items()):
            part[key] = value
            run.write_text(json.dumps(whole))
            part[key] = before
            with suppress(ConfigurationError):
                page.write(directory)
    run.write_text(json.dumps(whole))
    first = json.loads(lines[0])
    for key in first:
        items.write_text(json.dumps({**first, key: value}) + "\n" + "".join(lines[1:]))
        with suppress(ConfigurationError):
            page.write(directory)


@pytest.mark.parametrize(
    "content", [None, "", "{}", '{"configuration": {}, "sessions": []}'], ids=["none", "empty", "{}", "no runs"]
)
def test_what_is_no_evaluation_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(ConfigurationError, match="draftwood eval"):
        page.write(tmp_path)
    with pytest.raises(ConfigurationError, match="not a directory"):
        page.write(tmp_path / "nowhere")


@pytest.mark.parametrize("higher", [True, False])
def test_the_front_is_what_no_point_beats(higher: bool) -> None:
    choose = random.Random(1)
    for _ in range(50):
        points = [(choose.randint(0, 5), choose.randint(0, 5)) for _ in range(8)]
        sign = 1 if higher else -1
        wanted = {
            (x, y)
            for x, y in points
            if not any(a >= x and sign * b >= sign * y and (a, b) != (x, y) for a, b in points)
        }
        assert front(points, higher) == sorted(wanted)


def test_names() -> None:
    names = page.names(
        [*METHODS, {"name": "mcsd", "tree": [4, 2]}, {"name": "old", "x": True}, {"name": "old", "x": True}]
    )
    assert names[:4] == ["autoregressive", "speculative gamma=4", "speculative gamma=2", "mcsd tree=4,2"]
    assert names[4:] == ["old x=true (4)", "old x=true (5)"]
    assert (
        page.sampling_line({"temperature": 1.0, "top_p": 1.0, "min_p": 0.1, "logit_bias": {}})
        == "temperature 1, min_p 0.1"
    )


def test_conclusions() -> None:
    def conclusion(speed_up: dict[str, Any]) -> str:
        return page.conclusion([{"lossless": True, "paired": {"speed_up": speed_up}}], ["m"])

    for values, words in (
        ((2.0, 1.5, 2.5, 20), "so it is faster"),
        ((1.1, 0.9, 1.3, 20), "spans 1"),
        ((0.8, 0.7, 0.9, 20), "nothing was faster"),
        ((2.0, None, None, 1), "no interval can be given"),
    ):
        interval = dict(zip(("value", "low", "high", "n"), values, strict=True))
        assert words in conclusion(interval)


def test_names_of_methods_cannot_break_out_and_leave_room(tmp_path: Path) -> None:
    """Long names are broken into lines; what is written in a figure is no markup."""
    rows = summary_of(write(tmp_path / "run"))["rows"][:3]
    long = f"eesd gamma=10 depth=cali-ts:{'calibration ' * 6}"
    for figure in figures("qa", rows, [long + "a", long + "b", "<b>"]):
        image = figure.drawn()
        root = ElementTree.fromstring(plots.svg(image, 'a "name" & more'))
        assert root.get("aria-label") == 'a "name" & more'
        assert not any(element.tag.endswith(("script", "style", "metadata")) for element in root.iter())
        assert "<b>" in "".join(root.itertext())
        assert image.axes[0].get_window_extent().width > image.bbox.width / 3


def test_a_figure_follows_light_and_dark(tmp_path: Path) -> None:
    """In a page its colours are variables of the page's style; as a file it brings them along."""
    figure = figures("qa", summary_of(write(tmp_path / "run"))["rows"][:3], ["a", "b", "c"])[0].drawn()
    assert not re.findall(r"(?<!,)#[0-9a-f]{6}", plots.svg(figure, "t").replace("#ffffff", ""))
    plots.save(figure, tmp_path / "f.svg")
    assert (
        "prefers-color-scheme:dark" in (tmp_path / "f.svg").read_text() and "prefers-color-scheme:dark" in plots.STYLE
    )


@pytest.mark.slow
def test_figures_are_files_of_the_kind_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "run")
    for kind, begin in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        _, files = page.write(tmp_path / "run", tmp_path / kind, kind=kind)
        assert all(file.suffix == f".{kind}" and file.read_bytes().startswith(begin) for file in files)
    with pytest.raises(ConfigurationError, match="choose one of svg, png, pdf"):
        page.write(tmp_path, kind="gif")


def test_figures_need_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match="draftwood\\[plots\\]"):
        page.write(write(tmp_path / "run"))
