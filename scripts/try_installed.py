"""Try an installed draftwood: what a README shows of the embedded pair, as printed there, and the server.

`python try_installed.py README.md`, in an environment with draftwood[serve,gguf] and outside of a clone.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path


def examples(page: str) -> list[list[str]]:
    """Commands that run the page's Python of the embedded pair, and its lines `draftwood generate` of it."""
    python, shell = (re.findall(rf"^```{name}\n(.*?)^```", page, re.MULTILINE | re.DOTALL) for name in ("python", "sh"))
    programs = [[sys.executable, "-c", block] for block in python if "draftwood.load()" in block]
    lines = [shlex.split(line, comments=True) for block in shell for line in block.splitlines()]
    commands = [line for line in lines if line[:2] == ["draftwood", "generate"] and "--target" not in line]
    if not programs or not commands:
        raise SystemExit("the page has no example of the embedded pair in Python, or none with `draftwood generate`")
    return programs + commands


def answer_of_a_server() -> str:
    """The text that `draftwood serve` completes a prompt with, over HTTP."""
    command = ["draftwood", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        address = next(found[0] for line in server.stderr if (found := re.search(r"http://[\d.:]+", line)))
        body = json.dumps({"prompt": "Story: In Corfe there lived", "max_tokens": 20, "temperature": 0}).encode()
        asked = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            text: str = json.load(answer)["choices"][0]["text"]
        server.terminate()
        if server.wait(60):
            raise SystemExit(f"the server ended with {server.returncode}")
    return text


if __name__ == "__main__":
    for command in examples(Path(sys.argv[1]).read_text("utf-8")):
        print("$", shlex.join(command), flush=True)
        subprocess.run(command, check=True)
    print("the server answers:", answer_of_a_server())
