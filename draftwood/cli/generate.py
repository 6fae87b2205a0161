"""`draftwood generate` and `draftwood explain`: decode one prompt, and show where its tokens come from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.cli.groups import (
    OUTPUT,
    ChatOptions,
    ColorOptions,
    LimitOptions,
    MethodOptions,
    ModelOptions,
    OutputOptions,
    SamplingOptions,
    StructuredOptions,
    about,
    seed,
    warn_if_foreign,
)
from draftwood.cli.options import flag
from draftwood.cli.running import check_writable, interruptible, write_text
from draftwood.errors import ConfigurationError
from draftwood.explain.terminal import (
    Painter,
    as_json,
    beams,
    colourful,
    compiled,
    flow,
    legend,
    origins,
    summary,
    terminal_width,
    visible,
)

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine, StreamEvent
    from draftwood.engine.results import GenerationResult


def generate(
    *,
    prompt: ChatOptions,
    limits: LimitOptions,
    structure: StructuredOptions,
    models: ModelOptions,
    decoding: MethodOptions,
    seed: int = seed(),
    sampling: SamplingOptions,
    top_logprobs: int = flag(0, "With --json: the N most probable tokens at each position.", panel=OUTPUT, ge=0),
    output: OutputOptions,
) -> None:
    """Decode one prompt.

    On a terminal the colours say where each token came from: a draft that was
    [green]accepted[/green], [magenta underline]corrected[/magenta underline] after a rejection, \
a [bold cyan]bonus[/bold cyan] after accepted drafts,
    [italic yellow]forced[/italic yellow] by a grammar, or plain.

    In a pipe, standard output holds exactly the text. The summary and further beams
    (n_best) go to standard error. Ctrl-C keeps what was generated so far.
    """
    conversation = prompt.conversation()
    if top_logprobs and not output.json_:
        raise ConfigurationError("--top-logprobs is shown in JSON only; give --json too")
    method = decoding.chosen(models.drafts, sampling)
    structured = structure.chosen()
    engine = models.load(method)
    params, note = sampling.completed(engine.generation_config, method)
    warn_if_foreign(engine, conversation)
    with interruptible() as wanted:
        events = engine.stream(
            conversation,
            method=method,
            sampling=params,
            seed=seed,
            top_logprobs=top_logprobs,
            structured=structured,
            cancelled=wanted,
            **limits.model_dump(),
        )
        if output.json_:
            result = [event.result for event in events][-1]
            assert result is not None  # the last event carries it
            print(as_json({**about(engine), **result.as_dict()}))
        else:
            result = _show(engine, engine.tokens(conversation), events, output.color, note)
    if result.finish_reason == "cancelled":
        sys.exit(130)


def _show(
    engine: Engine, prompt: list[int], events: Iterator[StreamEvent], color: bool | None, note: str
) -> GenerationResult:
    """The text on stdout; legend and summary on stderr, so that a pipe carries the text alone."""
    assert engine.tokenizer is not None  # every checkpoint directory has one
    painter = Painter(sys.stdout, engine.tokenizer.stream(prompt), colourful(sys.stdout, color))
    result: GenerationResult | None = None
    try:
        for event in events:
            painter.show(event.text, event.tokens, event.kinds)
            result = event.result
    finally:
        painter.close()
    assert result is not None
    print(file=sys.stderr)
    if painter.colour:
        print(legend(painter.kinds, colourful(sys.stderr, color)), file=sys.stderr)
    for line in beams(result, terminal_width()):
        print(line, file=sys.stderr)
    parts = [*summary(result), *filter(None, [note]), *compiled(engine.compile_seconds), *origins(engine.names)]
    print(flow(parts, sys.stderr), file=sys.stderr)
    return result


def explain(
    *,
    prompt: ChatOptions,
    limits: LimitOptions = LimitOptions(max_new_tokens=48),
    structure: StructuredOptions,
    models: ModelOptions,
    decoding: MethodOptions,
    seed: int = seed(),
    sampling: SamplingOptions,
    html: Path | None = flag(None, "Print the answer, and write an offline page of its rounds.", "FILE", panel=OUTPUT),
    output: ColorOptions,
) -> None:
    """Show every round of an answer: what was drafted, and what became of it.

    Each draft comes with p and q, the target's and the draft's probability, and
    its fate: accepted, rejected, discarded; after them what the target chose.
    """
    conversation = prompt.conversation()
    method = decoding.chosen(models.drafts, sampling)
    structured = structure.chosen()
    check_writable(html, "--html")
    engine = models.load(method)
    params, _ = sampling.completed(engine.generation_config, method)
    warn_if_foreign(engine, conversation)
    explanation = engine.explain(
        conversation, method=method, sampling=params, seed=seed, structured=structured, **limits.model_dump()
    )
    if html is None:
        for line in explanation.lines(terminal_width(), colourful(sys.stdout, output.color)):
            print(line)
        return
    text = explanation.result.text  # printed first: a full disk loses the page, not the answer
    print(visible(text) if sys.stdout.isatty() else text, flush=True)
    write_text(html, explanation.html, "--html")
    print(html, file=sys.stderr)
