"""`draftwood explain`: decode one prompt and show how the answer came about, in the terminal or as a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from draftwood.cli import flags, prompt_flags
from draftwood.cli.output_file import check_writable, write_text


def explain(
    prompt: prompt_flags.PromptArgument = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Print the answer and write a page that steps through its rounds, offline. Default: draw them here.",
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
    from draftwood.explain import explain as explained
    from draftwood.explain.terminal import colourful, terminal_width, visible

    asked = prompt_flags.conversation(prompt_flags.prompt_text(prompt, prompt_file), chat, system)
    models = flags.ModelFlags(target, draft, dtype, device, quantize)
    chosen = flags.method(method, settings, models.drafts)
    params = flags.sampling(
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias
    )
    chosen.check(params)
    if html is not None:
        check_writable(html, "--html")
    found = explained(
        models.load(),
        asked,
        method=chosen,
        sampling=params,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=stop or (),
        ignore_eos=ignore_eos,
    )
    if html is None:
        for line in found.lines(terminal_width(), colourful(sys.stdout, color)):
            print(line)
        return
    text = found.result.text  # printed first: a full disk loses the page, not the answer
    print(visible(text) if sys.stdout.isatty() else text, flush=True)
    write_text(html, found.html, "--html")
    print(html, file=sys.stderr)
