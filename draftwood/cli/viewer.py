"""`draftwood explain`: decode one prompt and show how the answer came about, in the terminal or as a page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli import flags, prompt_flags

if TYPE_CHECKING:
    from draftwood.engine import Engine
    from draftwood.explain.judging import Judgement, Recorder
    from draftwood.explain.text import Grove
    from draftwood.results import GenerationResult


def explain(
    prompt: prompt_flags.PromptArgument = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a page that steps through the rounds; it needs no network. Default: draw them here.",
            rich_help_panel=flags.OUTPUT,
            show_default=False,
        ),
    ] = None,
    prompt_file: prompt_flags.PromptFile = None,
    chat: prompt_flags.Chat = False,
    system: prompt_flags.System = None,
    max_new_tokens: flags.MaxNewTokens = 48,
    stop: flags.Stop = None,
    ignore_eos: flags.IgnoreEos = False,
    target: flags.Target = None,
    draft: flags.Draft = None,
    dtype: flags.Dtype = "float32",
    device: flags.Device = None,
    quantize: flags.Quantize = None,
    method: flags.MethodName = None,
    settings: flags.MethodOptions = None,
    seed: flags.Seed = 0,
    temperature: flags.Temperature = 1.0,
    top_k: flags.TopK = 0,
    top_p: flags.TopP = 1.0,
    min_p: flags.MinP = 0.0,
    repetition_penalty: flags.RepetitionPenalty = 1.0,
    presence_penalty: flags.PresencePenalty = 0.0,
    frequency_penalty: flags.FrequencyPenalty = 0.0,
    logit_bias: flags.LogitBias = None,
    color: flags.Color = None,
) -> None:
    """Show every round of an answer: what was drafted, and what became of it.

    Each draft comes with p and q, the target's and the draft's probability, and
    its fate: accepted, rejected, discarded; after them what the target chose.
    """
    from draftwood.explain import text as drawings
    from draftwood.explain.data import noted
    from draftwood.explain.judging import record
    from draftwood.explain.terminal import colourful, terminal_width
    from draftwood.train.recording import Recording

    asked = prompt_flags.conversation(prompt_flags.prompt_text(prompt, prompt_file), chat, system)
    models = flags.ModelFlags(target, draft, dtype, device, quantize)
    chosen = flags.method(method, settings, models.drafts)
    params = flags.sampling(
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias
    )
    chosen.check(params)
    recorders: list[Recorder] = []
    engine = Recording(models.load(), lambda request, number: recorders.append(record(request)))
    result = engine.generate(asked, chosen, params, max_new_tokens, seed, stop or (), ignore_eos=ignore_eos)
    groves = drawings.groves_of(result.rounds, result.prompt_tokens)
    judgements: list[Judgement] = recorders[0].judgements
    for grove, judgement in zip(groves, judgements, strict=True):
        noted(grove, judgement)
    assert engine.tokenizer is not None  # every checkpoint directory has one
    if html is not None:
        html.write_text(page(engine, result, groves, judgements), "utf-8", errors="replace")
        print(html)
        return
    words = drawings.spelling(engine.tokenizer)
    for text in drawings.drawn(
        groves, result.prompt_tokens, words, engine.end_tokens, terminal_width(), colourful(sys.stdout, color)
    ):
        print(text)


def page(engine: Engine, result: GenerationResult, groves: Sequence[Grove], judgements: Sequence[Judgement]) -> str:
    """The page as text."""
    from importlib.resources import files

    from draftwood.explain.data import document, script
    from draftwood.explain.terminal import method_label
    from draftwood.explain.text import spelling

    assert engine.tokenizer is not None
    greedy = result.sampling["temperature"] == 0
    about: dict[str, Any] = {
        "method": method_label(result.method),
        "lossless": result.lossless,
        "models": {**engine.names, "device": str(engine.target.device)},
        "sampling": result.sampling,
        "seed": result.seed,
        "greedy": greedy,
    }
    data = document(result, groves, judgements, spelling(engine.tokenizer), engine.end_tokens, about)
    template = (files("draftwood.explain") / "viewer.html").read_text("utf-8")
    return template.replace("{{ data }}", script(data))
