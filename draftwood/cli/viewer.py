"""`draftwood explain`: decode one prompt and show how the answer came about, in the terminal or as a page."""

from __future__ import annotations

import sys
from pathlib import Path

from draftwood.cli.groups import (
    OUTPUT,
    ChatOptions,
    ColorOptions,
    LimitOptions,
    MethodOptions,
    ModelOptions,
    seed,
    warn_if_foreign,
)
from draftwood.cli.options import flag
from draftwood.cli.output_file import check_writable, write_text
from draftwood.explain.terminal import colourful, terminal_width, visible
from draftwood.params import SamplingParams


def explain(
    *,
    prompt: ChatOptions,
    limits: LimitOptions = LimitOptions(max_new_tokens=48),
    models: ModelOptions,
    decoding: MethodOptions,
    seed: int = seed(),
    sampling: SamplingParams,
    html: Path | None = flag(
        None,
        "Print the answer and write a page that steps through its rounds, offline. Default: draw them here.",
        "FILE",
        panel=OUTPUT,
    ),
    output: ColorOptions,
) -> None:
    """Show every round of an answer: what was drafted, and what became of it.

    Each draft comes with p and q, the target's and the draft's probability, and
    its fate: accepted, rejected, discarded; after them what the target chose.
    """
    asked = prompt.conversation()
    method = decoding.chosen(models.drafts)
    method.check(sampling)
    if html is not None:
        check_writable(html, "--html")
    engine = models.load()
    warn_if_foreign(engine, asked)
    found = engine.explain(asked, method=method, sampling=sampling, seed=seed, **limits.model_dump())
    if html is None:
        for line in found.lines(terminal_width(), colourful(sys.stdout, output.color)):
            print(line)
        return
    text = found.result.text  # printed first: a full disk loses the page, not the answer
    print(visible(text) if sys.stdout.isatty() else text, flush=True)
    write_text(html, found.html, "--html")
    print(html, file=sys.stderr)
