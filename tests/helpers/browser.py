"""The server's page in Chromium: a tab for tests, and what they ask of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

BROWSERS = "chromium", "chromium-browser", "google-chrome"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
OURS = "http://127.0.0.1:", "blob:", "file:"
PATIENCE = 60_000  # milliseconds, for machines that are busy


@contextmanager
def opened_tab() -> Iterator[Any]:
    """A tab, and as `troubles` what went wrong in it: nothing may be thrown, refused or loaded from elsewhere."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium was found, so the page is not tested; install it: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        tab: Any = browser.new_page()
        tab.set_default_timeout(PATIENCE)
        tab.troubles = []
        tab.on("pageerror", lambda error: tab.troubles.append(str(error)))
        tab.on("console", lambda message: message.type == "error" and tab.troubles.append(message.text))
        tab.on("request", lambda one: one.url.startswith(OURS) or tab.troubles.append(one.url))
        yield tab
        browser.close()


@contextmanager
def ready_page(tab: Any, url: str) -> Iterator[Any]:
    """The page, ready. Nothing may be loaded from elsewhere, refused by the policy or thrown."""
    tab.troubles.clear()
    tab.set_viewport_size({"width": 1200, "height": 900})
    visit(tab, url)
    tab.expected = []  # parts of console messages that a test provokes
    yield tab
    assert [text for text in tab.troubles if not any(part in text for part in tab.expected)] == []


def visit(page: Any, url: str) -> None:
    page.goto(url, wait_until="domcontentloaded")
    page.wait_for_selector("#methods select", state="attached")


def ended(page: Any, runs: int = 1) -> None:
    page.wait_for_function(
        "runs => { const all = [...document.querySelectorAll('.run .legend')].filter(one => one.checkVisibility());"
        " return all.length === runs && document.querySelector('#stop').hidden"
        " && all.every(one => one.textContent.includes('ended by')); }",
        arg=runs,
    )


def text(page: Any, run: int = 0) -> str:
    tokens = page.locator(".run").nth(run).locator(".text .token")
    return str(tokens.evaluate_all("all => all.map(one => one.textContent).join('')"))


def accessibility(page: Any) -> list[tuple[str, Any]]:
    """The faults that axe finds: names of its rules, with the elements."""
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text("utf-8"))
    result = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [(one["id"], [node["target"] for node in one["nodes"]]) for one in result["violations"]]
