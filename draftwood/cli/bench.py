"""`draftwood bench`: tokens per second of a model on this machine, plain and with drafts, in one table."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.cli.groups import METHOD, OF_EVERY_METHOD, ModelOptions, OutputOptions, about, seed
from draftwood.cli.options import flag
from draftwood.cli.running import progress
from draftwood.errors import RequestError
from draftwood.explain.terminal import SEPARATOR, method_label, origins, percent, simple_table
from draftwood.sampling.params import SamplingParams

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine
    from draftwood.engine.request import Prompt
    from draftwood.eval.speed import SpeedTest


def bench(
    *,
    models: ModelOptions,
    prompts: Path | None = flag(
        None,
        "One prompt per line, or .jsonl of texts or messages. Default: three questions, or the embedded pair's corpus.",
        "FILE",
        panel="Prompt and limits",
    ),
    prompt_tokens: int = flag(512, "Tokens of the prompt that is timed.", panel="Prompt and limits", ge=1),
    max_new_tokens: int = flag(128, "Most tokens of each answer.", panel="Prompt and limits", ge=2),
    methods: str | None = flag(
        None,
        "Methods, optionally with options, as 'draftwood compare' takes them. Plain decoding is always included.",
        "A,B,...",
        panel=METHOD,
        usual="the best one available",
    ),
    settings: list[str] = flag([], OF_EVERY_METHOD, "KEY=VALUE", ("--set",), METHOD),
    repeat: int = flag(3, "Timed runs of each test, in turns.", panel=METHOD, ge=1),
    seed: int = seed(),
    sampling: SamplingParams = SamplingParams(temperature=0.0),
    output: OutputOptions,
) -> None:
    """Measure tokens per second of a model on this machine, plain and with drafts.

    pp512 is a prompt of 512 tokens, tg128 answers of at most 128 tokens, behind the
    first round, which has their prompts. Greedy by default. Prompts decide what
    drafts are worth: give your own.
    """
    from draftwood.eval.interleaved import parse_methods
    from draftwood.eval.speed import speed_tests

    chosen = None if methods is None else parse_methods(methods, settings)
    for method in chosen or ():
        method.check(sampling)
    engine = models.load(*(chosen or ()))
    if chosen is None:
        chosen = parse_methods("autoregressive", settings)
        chosen += [engine.default_method] if engine.default_method not in chosen else []
    texts = _prompts(engine, prompts, max_new_tokens)
    room = engine.context - 1
    steps = count()
    with progress(output.color, total=(repeat + 1) * (len(chosen) + 1), live=False) as update:
        tests = speed_tests(
            engine,
            texts,
            chosen,
            sampling,
            min(prompt_tokens, room),
            max_new_tokens,
            repeat,
            seed,
            lambda name: update(completed=next(steps), description=name),
        )
    size = engine.weight_bytes
    document = {**about(engine), "weight_bytes": size, "prompts": len(texts), "tests": [one.as_dict() for one in tests]}
    threads = f"{models.threads} threads" if models.threads else None
    facts = [Path(str(engine.names["target"])).name, f"{size / 1e6:,.0f} MB", *origins(engine.names)]
    head = SEPARATOR.join(filter(None, [*facts, str(engine.names["backend"]), threads]))
    plain = next(one for one in tests[1:] if one.method.name == "autoregressive")
    table = simple_table("test", "method", ">tokens/s", ">±", ">speed-up", ">tau", ">accept", first=6)
    for test in tests:
        table.add_row(*_row(test, plain, test is tests[0]))
    output.give(
        document, head, "", table, "", "tau: tokens per target forward; accept: accepted over drafted tokens", wrap=True
    )


def _row(test: SpeedTest, plain: SpeedTest, reading: bool) -> list[str]:
    rate, deviation = f"{test.rate:,.1f}", f"{test.deviation:,.1f}"
    if reading:
        return [test.name, "", rate, deviation, "", "", ""]
    accepted = percent(test.accepted / test.drafted) if test.drafted else "-"
    gain, tau = f"{test.rate / plain.rate:.2f}×", f"{test.emitted / test.rounds:.2f}"
    return [test.name, method_label(test.method.as_dict()), rate, deviation, gain, tau, accepted]


def _prompts(engine: Engine, file: Path | None, max_new_tokens: int) -> list[list[int]]:
    """Token ids of the prompts; texts are questions to a model that has a chat template."""
    from draftwood.engine.embedded_hint import is_embedded
    from draftwood.eval.speed import QUESTIONS
    from draftwood.train.prompts import corpus_prompts, fitted, read_prompts

    chat = engine.tokenizer is not None and bool(engine.tokenizer.templates)
    given: list[Prompt]
    if file is not None:
        given = read_prompts(file, chat)
    elif is_embedded(engine.names.get("target")):
        given = corpus_prompts(1)
    else:
        given = [[{"role": "user", "content": text}] if chat else text for text in QUESTIONS]
    if engine.tokenizer is None:
        raise RequestError("prompts need a tokenizer, and this model has none; give a checkpoint that has one")
    return fitted(engine, given, max_new_tokens)
