"""The README's picture: well formed with any text in it, the same for the same run, and no script."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from draftwood import Engine, TabularModel

DOCS = Path(__file__).parents[2] / "docs"


def test_a_picture_holds_any_text() -> None:
    script = runpy.run_path(str(DOCS / "drafting.py"))
    engine = Engine(TabularModel.random(6, seed=1), [TabularModel.random(6, seed=9)])
    found = engine.explain([1, 2], method=script["OPTIONS"]["method"], max_new_tokens=script["TOKENS"])
    hostile = '</text><script>"&'
    drawn = script["picture"](replace(found, words=lambda tokens: hostile * len(tokens)))
    root = ElementTree.fromstring(drawn)
    assert not any(element.tag.endswith("script") for element in root.iter())
    assert hostile in "".join(root.itertext())


def test_the_committed_picture_is_the_run_that_it_says() -> None:
    script = runpy.run_path(str(DOCS / "drafting.py"))
    drawn = (DOCS / "assets" / "drafting.svg").read_text("utf-8")
    text = "".join(ElementTree.fromstring(drawn).itertext())
    assert script["PROMPT"] in text and f"{script['TOKENS']} tokens in " in text
    assert "href" not in drawn and "url(" not in drawn
