"""Pictures of the server's page, from real runs of the embedded pair and of SmolLM2: python docs/screenshots.py

Starts `draftwood serve`, drives the page in Chromium and writes docs/assets/page-*.png.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).parent / "assets"
COLOURS = 128  # of a picture
SMOLLM2 = Path.home() / ".cache/draftwood-real-models/SmolLM2-135M-Instruct.Q4_1.gguf"  # by recipes/real_models.py
PATIENCE = 120_000  # milliseconds, for machines that are busy


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with served() as url:
            for name, picture in (("light", rounds), ("dark", comparison), ("narrow", narrow)):
                take(browser, url, name, picture, 400 if name == "narrow" else 1180, name == "dark")
        with served("--target", str(SMOLLM2)) as url:
            take(browser, url, "chat", chat, 1280, False)
            take(browser, url, "chat-narrow", chat, 400, True)
        browser.close()


@contextmanager
def served(*options: str) -> Iterator[str]:
    """The address of a server for a while."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "draftwood", "serve", "--port", str(port), *options])
    try:
        wait(f"http://127.0.0.1:{port}/ready", server)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait()


def take(browser: Any, url: str, name: str, picture: Callable[[Any], None], width: int, dark: bool) -> None:
    """Make one picture."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
    page.set_default_timeout(PATIENCE)
    page.goto(url, wait_until="domcontentloaded", timeout=PATIENCE)
    page.wait_for_selector("#methods select", state="attached")
    picture(page)
    save(page.screenshot(full_page=name == "light"), OUT / f"page-{name}.png")
    page.close()


def wait(url: str, server: subprocess.Popen[bytes]) -> None:
    """Until the server is ready."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(url).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server has ended; its reason is above")


def generate(page: Any, runs: int = 1) -> None:
    """Ask, and wait for the end."""
    page.click("#go")
    page.wait_for_function(
        "runs => document.querySelector('#stop').hidden && document.querySelectorAll('.run').length === runs",
        arg=runs,
    )
    page.wait_for_timeout(1500)  # for the charts


def rounds(page: Any) -> None:
    """An answer, and the forest of one of its rounds."""
    page.click("#methods .method:visible summary")
    page.fill("[name=tree]", "3,2,1")
    page.click("#methods .method:visible summary")
    generate(page)


def comparison(page: Any) -> None:
    """Two methods on one prompt and seed."""
    page.check("#compare")
    generate(page, 2)


def narrow(page: Any) -> None:
    """A telephone."""
    page.locator(".method:visible > .field select").select_option("dsbd")
    generate(page)
    page.evaluate("() => document.querySelector('#runs').scrollIntoView()")


def chat(page: Any) -> None:
    """Two messages, and the rounds of the second answer."""
    page.click("#settings > summary")
    page.fill("[name=temperature]", "0")
    page.fill("[name=max_tokens]", "64")
    page.click("#settings > summary")
    for message in ("Name three rivers of Europe, one a line.", "Which countries does the first of them cross?"):
        page.fill("#prompt", message)
        page.press("#prompt", "Enter")
        page.wait_for_function("() => document.querySelector('#stop').hidden")
    page.wait_for_timeout(1500)


def save(shot: bytes, path: Path) -> None:
    """Few colours, few bytes."""
    Image.open(BytesIO(shot)).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
