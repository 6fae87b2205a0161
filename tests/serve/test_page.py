"""The page at /, driven as people do: in Chromium, against the real server and the embedded pair."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import accessibility, ended, opened_tab, ready_page, text, visit
from servers import Running, running

from draftwood import Engine, load
from draftwood.runtime import scheduler
from draftwood.runtime.executor import run_layers
from draftwood.serve.settings import ServeSettings

STORY = "Story: In Corfe there lived a sailor called"
SHORT = {"max_tokens": 24, "top_p": 1}


@pytest.fixture(scope="module")
def tab() -> Iterator[Any]:
    """One tab for all tests."""
    with opened_tab() as tab:
        yield tab


@pytest.fixture(scope="module")
def site(tab: Any) -> Iterator[Running]:
    with running(load()) as site:
        yield site
        tab.goto("about:blank")  # which listens no more


@pytest.fixture
def page(site: Running, tab: Any) -> Iterator[Any]:
    with ready_page(tab, site.url) as page:
        yield page


def ask(page: Any, method: str, prompt: str = STORY, options: dict[str, Any] | None = None, **sampling: Any) -> None:
    page.fill("#prompt", prompt)
    page.locator(".method:visible select").first.select_option(method)
    for name, value in {**SHORT, **sampling}.items():
        page.fill(f"#common [name={name}]", str(value))
    if options:
        page.locator(".method:visible summary").first.click()
        for name, value in options.items():
            page.locator(f".method:visible [name={name}]").first.fill(str(value))
    page.click("#go")


def expected(engine: Engine, method: Any, temperature: float = 1.0, tokens: int = 24, seed: int = 0) -> Any:
    return engine.generate(STORY, method, {"temperature": temperature}, max_new_tokens=tokens, seed=seed)


def test_the_text_grows_in_the_colours_of_its_origin(page: Any, site: Running) -> None:
    page.evaluate(
        "() => { window.steps = 0;"
        " new MutationObserver(all => { window.steps += all.some(one => one.target.className === 'text'); })"
        ".observe(document.querySelector('#runs'), {subtree: true, childList: true}); }"
    )
    ask(page, "speculative", options={"gamma": 3}, max_tokens=48)
    ended(page)
    result = expected(site.engine, {"name": "speculative", "gamma": 3}, tokens=48)
    assert text(page) == result.text and page.evaluate("steps") > 3
    kinds = page.locator(".text .token").evaluate_all("all => all.map(one => one.classList[1])")
    assert kinds == [kind for kind in result.kinds][: len(kinds)] and {"accepted", "corrected"} <= set(kinds)
    legend = page.inner_text(".legend >> nth=0")
    assert f"accepted {result.kinds.count('accepted')}" in legend and "ended by: length" in legend
    figures = page.inner_text(".figures")
    assert f"{result.metrics.tau:.2f}" in figures and "tokens/s" in figures and page.locator(".stack i").count() == 4


def test_the_forest_says_what_became_of_each_draft(page: Any, site: Running) -> None:
    ask(page, "mcsd", options={"tree": "3,2,1"})
    ended(page)
    found = site.engine.explain(
        STORY, method={"name": "mcsd", "tree": [3, 2, 1]}, sampling={"temperature": 1}, max_new_tokens=24
    )
    count = len(found.trees)
    assert page.inner_text(".where").endswith(f" of {count}") and page.locator(".strip button").count() == count
    page.locator(".strip button").first.focus()
    page.keyboard.press("Home")
    assert page.inner_text(".where") == f"round 1 of {count}"
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".where") == f"round 2 of {count}"
    page.check(".bar input")
    drafts = [[node for root in tree.roots for node in root.walk() if node.draws] for tree in found.trees]
    place = next(i for i, nodes in enumerate(drafts) if any(node.draws[0].fate == "rejected" for node in nodes))
    page.locator(".strip button").nth(place).click()
    assert page.locator(".forest li .box").count() == len(drafts[place]) + 1  # and the root
    judged = next(node.draws[0] for node in drafts[place] if node.draws[0].fate == "rejected")
    page.locator(".forest li.rejected > .box").first.click()
    told = page.inner_text(".node")
    p, q, _ = judged.chances
    assert f"{p:.3f}" in told and f"{q:.3f}" in told
    assert "probability of acceptance, min(1, " in told and "would have been accepted with probability" in told
    page.locator(".text .token").first.click()
    assert page.inner_text(".where") == f"round 1 of {count}"


def test_beams_race_and_the_best_are_the_answer(page: Any, site: Running) -> None:
    ask(page, "dsbd", options={"width": 4, "n_best": 3})
    ended(page)
    best = expected(site.engine, {"name": "dsbd", "width": 4, "n_best": 3}).beams
    answer = page.locator(".racing ol").first
    assert answer.locator(".beam").all_text_contents() == [beam.text for beam in best]
    assert f"perplexity {best[0].perplexity:.2f}" in page.inner_text(".racing")
    page.click(".strip button >> nth=0")
    assert "after round 1," in page.inner_text(".racing") and page.locator(".racing .beam").count() > 4


def test_two_methods_side_by_side(page: Any, site: Running) -> None:
    page.check("#compare")
    ask(page, "autoregressive", temperature=0)
    ended(page, 2)
    verdict = page.inner_text("#verdict")
    assert "times the tokens per second of autoregressive" in verdict and "The texts are the same." in verdict
    assert text(page, 0) == text(page, 1) == expected(site.engine, "autoregressive", 0.0).text
    boxes = [page.locator(".runs .card").nth(i).bounding_box() for i in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]


def test_the_load_is_shown(page: Any) -> None:
    ask(page, "speculative", max_tokens=400, temperature=1)
    page.wait_for_function(  # tokens per second have left the ground, and all charts are drawn
        "() => { const lines = [...document.querySelectorAll('#load path:not(.area)')];"
        " const drawn = lines.map(one => one.getAttribute('d'));"
        " return drawn.length === 4 && drawn.every(Boolean) && / (?!29)\\d+\\./.test(drawn[1]); }"
    )
    assert re.search(r"\d+ running, 0 waiting", page.inner_text("#load")) and page.inner_text("#state") == "ready"


def test_errors_are_sentences_and_stop_cancels(page: Any, site: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*all: Any) -> Any:
        time.sleep(0.02)  # so that no text is complete before the page has shown its beginning
        return run_layers(*all)

    monkeypatch.setattr(scheduler, "run_layers", slow)
    page.expected = ["400"]
    ask(page, "mcsd", options={"tree": "two"})
    page.wait_for_selector("#error:not([hidden])")
    assert "tree" in page.inner_text("#error") and page.get_attribute("#error", "role") == "alert"
    ask(page, "autoregressive", prompt="x" * 3000)
    page.wait_for_function("() => document.querySelector('#error').textContent.includes('context')")
    page.evaluate(
        "() => new MutationObserver((_, watch) => { if (document.querySelector('.text .token')) { watch.disconnect();"
        " document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true})); } })"
        ".observe(document.querySelector('#runs'), {subtree: true, childList: true})"
    )
    ask(page, "autoregressive", max_tokens=480, temperature=1.5)
    ended(page)
    assert page.inner_text("#verdict") == "Stopped." and page.locator(".text .token").count() < 480
    page.wait_for_function("() => document.querySelector('#load').textContent.includes('0 running, 0 waiting')")
    patience = time.monotonic() + 10  # what the page shows may be a second old
    while site.engine.scheduler.busy:
        assert time.monotonic() < patience
        time.sleep(0.01)


@pytest.mark.slow
def test_the_server_may_go_away_and_come_back(page: Any, site: Running) -> None:
    page.expected = ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING"]
    with running(site.engine) as other:
        visit(page, other.url)
        ask(page, "speculative")
        ended(page)
        answer = text(page)
    page.wait_for_function("() => document.querySelector('#state').textContent === 'no answer'")
    page.click("#go")
    page.wait_for_selector("#error:not([hidden])")
    assert "The server does not answer" in page.inner_text("#error")
    with running(site.engine, port=int(other.url.rpartition(":")[2])):
        page.wait_for_function("() => document.querySelector('#state').textContent === 'ready'")
        page.click("#go")
        ended(page)
        assert text(page) == answer and not page.is_visible("#error")


def test_a_text_that_must_match(page: Any, site: Running) -> None:
    """A regular expression, then a schema: the text is of it, and what it leaves no choice in is marked as forced."""
    page.fill("[name=match]", " (Rosa|Hugo)\\. The end\\.")
    ask(page, "mcsd", top_k=40)
    ended(page)
    assert re.fullmatch(r" (Rosa|Hugo)\. The end\.", text(page)) and page.locator(".text .forced").count() > 2
    page.click("button >> text=Copy as")
    page.click("#tabs >> text=Python")
    printed: list[str] = []
    exec(page.inner_text("#snippet"), {"print": printed.append})
    assert printed == [text(page)]
    page.keyboard.press("Escape")
    page.fill("[name=match]", '{"type": ')
    page.click("#go")
    assert not page.evaluate("document.querySelector('#form').checkValidity()") and printed == [text(page)]
    page.fill("[name=match]", '{"enum": ["pear", "plum"]}')
    page.click("#go")
    ended(page)
    assert text(page) in ('"pear"', '"plum"')
    page.expected = ["400"]
    page.fill("[name=match]", "(")
    page.click("#go")
    page.wait_for_selector("#error:not([hidden])")
    assert "regex" in page.inner_text("#error")


@pytest.mark.slow
def test_a_server_that_wants_a_key(page: Any, site: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page asks for it, goes on when it is right, and what is copied names it without telling it."""
    page.expected = ["401", "ERR_"]
    with running(site.engine, ServeSettings(api_key="s3cret")) as other:
        page.goto(other.url, wait_until="domcontentloaded")
        page.wait_for_selector("#secret")
        page.wait_for_function("() => document.querySelector('#state').textContent === 'needs a key'")
        assert page.locator("#methods select").count() == 0
        page.locator("#secret").press_sequentially("wrong")
        page.wait_for_function("() => document.querySelector('#state').textContent === 'wrong key'")
        page.click("#go")
        assert "the API key is missing or wrong" in page.inner_text("#error")
        page.fill("#secret", "s3cret")
        page.wait_for_selector("#methods select", state="attached")
        ask(page, "speculative")
        ended(page)
        assert page.inner_text("#state") == "ready" and not page.is_visible("#error")
        page.click("button >> text=Copy as")
        assert "s3cret" not in page.content() and "Bearer $DRAFTWOOD_API_KEY" in page.inner_text("#snippet")
        monkeypatch.setenv("DRAFTWOOD_API_KEY", "s3cret")
        page.click("#tabs >> text=Python")
        printed: list[str] = []
        exec(page.inner_text("#snippet"), {"print": printed.append})
        assert printed == [text(page)]
        page.goto("about:blank")


def test_text_is_never_markup(page: Any, site: Running) -> None:
    hostile = "<img src=x onerror=window.hit=1></script><b>"
    ask(page, "speculative", prompt=hostile)
    ended(page)
    assert hostile in page.inner_text(".text") and page.locator(".run img, .run b:not(.tone):not([class])").count() == 0
    assert "does not look like it" in page.inner_text("#hint")
    with page.expect_download() as download:
        page.click("button >> text=Share")
    shared = Path(download.value.path()).read_text("utf-8")
    assert "<img" not in shared and page.evaluate("window.hit") is None


def test_a_shared_run_needs_no_network(page: Any, site: Running, tmp_path: Path) -> None:
    ask(page, "mcsd")
    ended(page)
    answer = text(page)
    with page.expect_download() as download:
        page.click("button >> text=Share")
    assert download.value.suggested_filename == "draftwood-mcsd-seed-0.html"
    download.value.save_as(tmp_path / "shared.html")
    (tmp_path / "explained.html").write_text(site.engine.explain(STORY, method="dsbd", max_new_tokens=8).html, "utf-8")
    page.context.set_offline(True)
    page.goto((tmp_path / "shared.html").as_uri())
    assert text(page) == answer and "mcsd (lossless)" in page.inner_text("#head") and page.inner_text(".node")
    page.goto((tmp_path / "explained.html").as_uri() + "#round=1")  # the same modules in `explain --html`
    assert page.inner_text(".where").startswith("round 1 of") and page.locator(".racing .beam").count()
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".where").startswith("round 2 of")
    page.context.set_offline(False)


CONTRASTS = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const colour = (name) => {
    const probe = document.body.appendChild(document.createElement('i'));
    probe.style.color = `var(--${name})`;
    canvas.fillStyle = getComputedStyle(probe).color; canvas.fillRect(0, 0, 1, 1); probe.remove();
    const linear = (x) => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(x => linear(x / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const contrast = (a, b) => (Math.max(colour(a), colour(b)) + .05) / (Math.min(colour(a), colour(b)) + .05);
  const names = ['ink', 'faint', 'accent', 'danger', 'accepted', 'corrected', 'bonus', 'forced', 'plain', 'rejected'];
  return Object.fromEntries([...names.map(name => [name, Math.min(contrast(name, 'page'), contrast(name, 'card'))]),
    ['faint on soft', contrast('faint', 'soft')], ['button', contrast('on-accent', 'accent')]]);
}"""


def test_dark_and_light_by_system_and_by_choice(page: Any) -> None:
    def background() -> str:
        return str(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))

    seen = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        seen[scheme] = background()
        assert {name: value for name, value in page.evaluate(CONTRASTS).items() if value < 4.5} == {}, scheme
    assert seen["light"] != seen["dark"]
    page.click("#theme")
    assert background() == seen["light"] and page.inner_text("#theme") == "theme: light"
    page.reload()
    assert background() == seen["light"]
    page.click("#theme")
    assert background() == seen["dark"] and page.inner_text("#theme") == "theme: dark"
    page.evaluate("localStorage.clear()")
    page.emulate_media(color_scheme="light")


@pytest.mark.slow
def test_a_narrow_screen_and_a_keyboard_are_enough(page: Any) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.check("#compare")
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    ended(page, 2)
    page.locator(".method:visible summary").first.click()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
    page.locator("text=Copy as").first.click()
    assert "/v1/completions" in page.inner_text("#snippet")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
    page.keyboard.press("Escape")
    nameless = """() => [...document.querySelectorAll('button, input, select, textarea, [role=img], [role=region]')]
      .filter(one => one.checkVisibility()).filter(one => !(one.getAttribute('aria-label') || one.textContent.trim()
        || [...(one.labels ?? [])].some(label => label.textContent.trim()))).map(one => one.outerHTML)"""
    assert page.evaluate(nameless) == []
    assert accessibility(page) == []


def completion(site: Running, body: str) -> str:
    chunks = site.chunks("/v1/completions", **json.loads(body))
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def test_what_is_copied_works(page: Any, site: Running) -> None:
    """The method file gives the method; the body of curl gives the text that is shown."""
    ask(page, "mcsd", options={"tree": "3,2"}, seed=5)
    ended(page)
    page.click("button >> text=Copy as")
    body = re.search(r"-d '(.*)'$", page.inner_text("#snippet"), re.DOTALL)
    assert body is not None and completion(site, body[1]) == text(page)
    page.click("#tabs >> text=method file")
    assert site.engine.generate(STORY, json.loads(page.inner_text("#snippet")), {"temperature": 1}, 24, 5).text == text(
        page
    )
    page.click("#tabs >> text=Python")
    printed: list[str] = []
    exec(page.inner_text("#snippet"), {"print": printed.append})
    assert printed == [text(page)]


def test_the_policy_allows_scripts_of_this_server_alone(served: Running) -> None:
    for path in ("/", "/page.js", "/viewer/run.js"):
        answer = served.client.get(path)
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert answer.status_code == 200 and policy["default-src"] == "'none'" and "unsafe" not in str(policy)
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    page = served.client.get("/").text
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|://", page)
    assert all("src=" in tag and tag.endswith("></script>") for tag in re.findall(r"<script.*", page))
    found = served.client.get("/page.json").json()
    assert found["prompts"] == [] and "{{ data }}" in found["viewer"]  # prompts are of the embedded corpus
