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
from matplotlib.colors import to_hex
from matplotlib.text import Text

from draftwood.engine.metrics import ADDED
from draftwood.errors import ConfigurationError
from draftwood.eval.report import page, tables
from draftwood.eval.report.charts import (
    Chart,
    Curve,
    Dot,
    Figure,
    Span,
    bars,
    colours,
    curves,
    front,
    histograms,
    scatter,
    stacks,
)
from draftwood.eval.report.figures import Task
from draftwood.eval.report.naming import grown_line, method_names, sampling_line
from draftwood.eval.report.reading import summary_of
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
        rounds |= {"draft_seconds": 0.1, "width_counts": [0, 3, 7]}
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
    figures = page.Section("run", summary_of(tmp_path / "run")).tasks[0].figures()
    assert figures[0].svg in text  # equal data, equal bytes


def tips(figure: Figure) -> list[str]:
    """What hovering the marks of a figure tells."""
    drawn = figure.drawn()
    marks = [mark for axes in drawn.axes for mark in (*axes.patches, *axes.lines)]
    return [str(mark.get_gid())[4:] for mark in marks if str(mark.get_gid()).startswith("tip-")]


def test_numbers_of_the_figures(tmp_path: Path) -> None:
    section = page.Section("run", summary_of(write(tmp_path / "run")))
    told = {figure.name: tips(figure) for figure in section.tasks[0].figures()}
    assert [tip.partition(" [")[0] for tip in told["qa-speed-up"]] == [
        "speculative gamma=4: 2.00",
        "speculative gamma=2: 3.00",
    ]
    assert told["qa-acceptance"][:2] == ["speculative gamma=4, 1: 0.600", "speculative gamma=4, 2: 0.667"]
    assert told["qa-depth"][:3] == [
        "speculative gamma=4, 0: 40.0%",
        "speculative gamma=4, 1: 20.0%",
        "speculative gamma=4, 2: 40.0%",
    ]
    assert told["qa-width"][:2] == ["speculative gamma=4, 1: 30.0%", "speculative gamma=4, 2: 70.0%"]
    times = [tip for tip in told["qa-time"] if tip.startswith("speculative gamma=4, ")]
    assert [float(tip.rpartition(": ")[2]) for tip in times] == [5.0, 25.0, 0.0, 0.0, 45.0]
    (overview,) = [tables.overview(section.tasks)]
    assert [row[0] for row in overview.rows] == ["speculative gamma=4", "speculative gamma=2"]
    assert overview.rows[1][-1] == "3.00" and overview.best == {(1, 3)}


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are named, but not drawn: each is slow."""
    monkeypatch.setattr(page, "save", lambda figures, folder, told, kind: [folder / f"{name}.svg" for name in figures])
    monkeypatch.setattr(Figure, "svg", "")


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
    assert text.count("Models were grown (target from 2x64, draft from 1x32)") == 1
    assert (tmp_path / "figures" / "b-qa-front.svg") in files and len(set(files)) == 28


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
        dots = [Dot(str(i), Span(x), Span(y), "#000") for i, (x, y) in enumerate(points)]
        sign = 1 if higher else -1
        wanted = {
            str(i)
            for i, (x, y) in enumerate(points)
            if not any(a >= x and sign * b >= sign * y and (a, b) != (x, y) for a, b in points)
        }
        found = front(dots, higher)
        assert {dot.label for dot in found} == wanted
        assert [dot.x.value for dot in found] == sorted(dot.x.value for dot in found)


def test_an_axis_ends_where_its_score_does() -> None:
    dots = [Dot("a", Span(1), Span(0.97, 0.9, 1.0), "#000"), Dot("b", Span(2), Span(1.0), "#111")]
    (axes,) = Figure("f", "t", "", scatter("x", "exact match", dots, bounds=(0, 1))).drawn().axes
    assert axes.get_ylim()[1] < 1.01 and max(axes.get_yticks()) <= 1


def test_no_colour_means_two_things(tmp_path: Path) -> None:
    """Parts of a bar have colours that no method has; methods beyond the palette differ by their markers."""
    task = page.Section("run", summary_of(write(tmp_path / "run"))).tasks[0]
    figure = next(figure for figure in task.figures() if figure.name == "qa-time").drawn()
    shown = {to_hex(bar.get_facecolor()) for bar in figure.axes[0].patches}
    assert shown and not shown & {*plots.PALETTE, plots.PLAIN}
    dots = [Dot(str(i), Span(i), Span(i), colour) for i, colour in enumerate(colours(20))]
    lines = Figure("f", "t", "", scatter("x", "y", dots)).drawn().axes[0].lines
    marks = [(line.get_color(), line.get_marker()) for line in lines if str(line.get_gid()).startswith("tip-")]
    assert len(marks) == len(set(marks)) == 20


def test_names() -> None:
    names = method_names(
        [*METHODS, {"name": "mcsd", "tree": [4, 2]}, {"name": "old", "x": True}, {"name": "old", "x": True}]
    )
    assert names[:4] == ["autoregressive", "speculative gamma=4", "speculative gamma=2", "mcsd tree=4,2"]
    assert names[4:] == ["old x=true (4)", "old x=true (5)"]
    assert (
        sampling_line({"temperature": 1.0, "top_p": 1.0, "min_p": 0.1, "logit_bias": {}}) == "temperature 1, min_p 0.1"
    )
    assert grown_line({"target": "x"}) is None
    controlled = {"name": "eesd", "depth": "cali-ts:path=/home/my models/p.safetensors,sample_deviation=10"}
    assert method_names([controlled]) == ["eesd depth=cali-ts:path=p.safetensors,sample_deviation=10"]


def test_conclusions() -> None:
    def task(speed_up: dict[str, Any]) -> Task:
        row = {"lossless": True, "baseline": False, "quality": {"metric": "em"}, "paired": {"speed_up": speed_up}}
        return Task("t", [row], ["m"])

    for values, words in (
        ((2.0, 1.5, 2.5, 20), "so it is faster"),
        ((1.1, 0.9, 1.3, 20), "spans 1"),
        ((0.8, 0.7, 0.9, 20), "nothing was faster"),
        ((2.0, None, None, 1), "no interval can be given"),
    ):
        interval = dict(zip(("value", "low", "high", "n"), values, strict=True))
        assert words in tables.conclusion(task(interval))


CHARTS: list[Chart] = [
    bars("x", [("a <b>", Span(1, 0.5, 2), "#000"), ("none", None, "#000")], 1.0),
    bars("x", [("m", Span(0), "#000")]),
    stacks("ms", [("one", "#000"), ("two", "#111")], [("a", [1.0, 2.0])]),
    curves("x", "y", [Curve("a", [(1, Span(2, 1, 3)), (10, Span(1))], "#000")]),
    curves("x", "y", [Curve("a", [], "#000")]),
    histograms("n", [(str(i), [0.5, 0.5], "#000") for i in range(4)]),
    scatter("x", "y", [Dot("a", Span(1), Span(2, 1, 3), "#000")]),
]


@pytest.mark.parametrize("number", range(len(CHARTS)))
def test_every_chart_is_well_formed_and_safe(number: int, tmp_path: Path) -> None:
    figure = Figure("f", 'a "name" & more', "about", CHARTS[number])
    root = ElementTree.fromstring(figure.svg)
    assert root.get("aria-label") == 'a "name" & more'
    assert not any(element.tag.endswith(("script", "style", "metadata")) for element in root.iter())
    if number == 0:  # what is told when a mark is hovered, and a label that is no tag
        words = [element.text for element in root.iter() if element.tag.endswith("title")]
        assert "a <b>: 1.00 [0.500, 2.00]" in words and "none: not measured" in "".join(root.itertext())
    plots.save(figure.drawn(), tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_long_names_leave_room_for_what_is_drawn() -> None:
    """They are cut in the middle, since methods often differ at their ends; hovering tells them whole."""
    names = [f"eesd gamma=10 depth=cali-ts:{'calibration-' * 9},{part}_deviation=10" for part in ("sample", "model")]
    one = [(name, Span(1.5, 1.0, 2.0), "#0072b2") for name in names]
    lines = [Curve(name, [(1, Span(0.5)), (2, Span(0.25))], "#0072b2") for name in names]
    for chart in (
        bars("speed", one),
        stacks("ms", [("a", "#0072b2")], [(name, [1.0]) for name in names]),
        curves("x", "y", lines),
    ):
        made = Figure("long", "long", "", chart)
        drawn = made.drawn()  # a figure that names fill has no room for its axes, of which matplotlib warns
        drawn.draw_without_rendering()
        assert drawn.axes[0].get_window_extent().width > drawn.bbox.width / 2
        shown = "".join(text.get_text() for text in drawn.findobj(Text))
        assert "…" in shown and all(name[-20:] in shown and name not in shown for name in names)


def test_a_figure_follows_light_and_dark(tmp_path: Path) -> None:
    """In a page its colours are variables of the page's style; as a file it brings them along."""
    figure = Figure("f", "t", "", bars("x", [("a", Span(1, 0.5, 2), plots.PALETTE[0])]))
    assert not re.findall(r"(?<!,)#[0-9a-f]{6}", figure.svg.replace("#ffffff", ""))
    plots.save(figure.drawn(), tmp_path / "f.svg")
    assert (
        "prefers-color-scheme:dark" in (tmp_path / "f.svg").read_text() and "prefers-color-scheme:dark" in plots.STYLE
    )


def test_figures_are_files_of_the_kind_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = Figure("f", "t", "", bars("x", [("a", Span(1), "#000")]))
    for kind, begin in (("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        (file,) = page.save({"f": figure}, tmp_path, lambda what: None, kind)
        assert file == tmp_path / f"f.{kind}" and file.read_bytes().startswith(begin)
    with pytest.raises(ConfigurationError, match="choose one of svg, png, pdf"):
        page.write(tmp_path, kind="gif")


def test_figures_need_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match="draftwood\\[plots\\]"):
        page.write(write(tmp_path / "run"))
