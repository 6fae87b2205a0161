"""Text that the target writes itself, mixed with given text, to train an exit on (EESD §3.2).

Each text depends on its number and the settings alone, so a file that was broken off is completed as if nothing had
happened.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from draftwood.corpus import Document
from draftwood.engine.engine import Engine
from draftwood.engine.engine_map import EngineMap, alone
from draftwood.engine.request import Prompt
from draftwood.errors import ConfigurationError
from draftwood.models.text.chat import Message
from draftwood.models.text.text_files import texts_of
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.train.packing import in_shares
from draftwood.train.prompts import CORPUS, as_messages, prompts_of
from draftwood.train.settings import WritingSettings
from draftwood.util.jsonl import cut_torn_line
from draftwood.util.safe_parsing import parse_json, read_text

CHUNK = 32  # texts that an engine writes side by side


def write_texts(
    engine: Engine, plan: WritingSettings, out: Path, concurrency: int = 16, engines: EngineMap | None = None
) -> Iterator[int]:
    """Write texts to `out`, a line of JSON each, from where the file ends; yields their number, then after each text.

    `engines` share the chunks; by default there is only the one. A line has tokens (with the one by which the target
    ended the text), text, prompt_tokens and source (target or given). Raises ConfigurationError where the file was
    begun with other settings.
    """
    if engine.tokenizer is None:
        raise ConfigurationError("the target has no tokenizer, so it can write no text")
    noted = out.with_suffix(".settings.json")
    settings = json.loads(json.dumps({**plan.model_dump(), "models": engine.names}))
    if out.exists() and out.stat().st_size:
        try:
            before = parse_json(read_text(noted))
        except (OSError, ValueError):
            before = None
        if before != settings:
            raise ConfigurationError(f"{out} was begun with other settings; give the same to go on, or another file")
    number = _written(out)
    prompts = _prompts(plan, engine.tokenizer)
    given = [] if plan.given is None or not plan.given_share else _given(plan, engine.tokenizer)
    out.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    yield number
    with out.open("a", encoding="utf-8") as file:
        chunks = [range(first, min(first + CHUNK, plan.count)) for first in range(number, plan.count, CHUNK)]
        setup = partial(_writer, plan, prompts, given, concurrency)
        entries = itertools.chain.from_iterable((engines or alone(engine))(setup, chunks))
        for written, entry in enumerate(entries, number + 1):
            file.write(json.dumps(entry) + "\n")
            file.flush()
            yield written


def _writer(
    plan: WritingSettings, prompts: Sequence[Prompt], given: Sequence[list[int]], concurrency: int, engine: Engine
) -> Callable[[range], Iterator[Mapping[str, Any]]]:
    return lambda numbers: _chunk(engine, plan, prompts, given, numbers, concurrency)


def _chunk(
    engine: Engine,
    plan: WritingSettings,
    prompts: Sequence[Prompt],
    given: Sequence[list[int]],
    numbers: range,
    concurrency: int,
) -> Iterator[Mapping[str, Any]]:
    words = engine.tokenizer
    assert words is not None
    mine = [number for number in numbers if not plan.is_given(number)]
    starts = {}
    for number in mine:
        prompt = prompts[(number - int(number * plan.given_share)) % len(prompts)]
        tokens = words.encode(prompt) if isinstance(prompt, str) else words.chat(cast(Sequence[Message], prompt))
        starts[number] = tokens[: max(1, engine.target.context // 2)]
    lengths = {number: _opening(plan, number) for number in mine}
    opened: dict[int, tuple[list[int], bool]] = {number: ([], False) for number in mine}
    opened |= _continued(engine, plan, starts, lengths, 0.0, concurrency)
    left = {
        number: plan.max_new_tokens - len(tokens)
        for number, (tokens, over) in opened.items()
        if not over and plan.max_new_tokens > len(tokens)
    }
    begun = {number: [*starts[number], *opened[number][0]] for number in left}
    sampled, ended = dict[int, list[int]](), _continued(engine, plan, begun, left, plan.temperature, concurrency)
    for number in numbers:  # each as soon as it has ended, so that Ctrl-C loses those alone that have not
        while number in left and number not in sampled:
            now, (tokens, _) = next(ended)
            sampled[now] = tokens
        if number in starts:
            tokens = [*starts[number], *opened[number][0], *sampled.get(number, ())]
            source, prompt_tokens = "target", len(starts[number])
        else:
            tokens = given[int(number * plan.given_share) % len(given)]
            source, prompt_tokens = "given", 0
        yield {"tokens": tokens, "text": words.decode(tokens), "prompt_tokens": prompt_tokens, "source": source}


def _opening(plan: WritingSettings, number: int) -> int:
    return min(plan.max_new_tokens, random.Random(f"{plan.seed}:{number}").randint(*plan.greedy))


def _continued(
    engine: Engine,
    plan: WritingSettings,
    starts: Mapping[int, list[int]],
    lengths: Mapping[int, int],
    temperature: float,
    concurrency: int,
) -> Iterator[tuple[int, tuple[list[int], bool]]]:
    """(number, (new tokens, True if the text has ended: the last one says so)), as each ends."""
    numbers = [number for number in starts if lengths[number]]
    requests = [{"prompt": starts[n], "max_new_tokens": lengths[n], "seed": plan.seed + n} for n in numbers]
    options: Any = {"method": "autoregressive", "sampling": {"temperature": temperature}}
    for place, result in engine.as_completed(requests, concurrency, **options):
        yield numbers[place], (result.tokens, bool(result.tokens) and result.tokens[-1] in engine.end_tokens)


def _prompts(plan: WritingSettings, tokenizer: Tokenizer) -> list[Prompt]:
    wanted = plan.count - int(plan.count * plan.given_share)
    if plan.prompts == CORPUS:
        texts = [document.prompt for document, _ in _of_corpus(tokenizer, plan.seed, wanted)]
        return as_messages(texts, plan.chat)
    return prompts_of(plan.prompts, wanted, chat=plan.chat)


def _given(plan: WritingSettings, tokenizer: Tokenizer) -> list[list[int]]:
    wanted = int(plan.count * plan.given_share)
    if plan.given == CORPUS:
        return [tokens for _, tokens in _of_corpus(tokenizer, plan.seed + 1, wanted)]
    texts = list(itertools.islice(texts_of(Path(str(plan.given)), tokenizer), wanted))
    if not texts:
        raise ConfigurationError(f"{plan.given} holds no text; give a file with texts, or corpus")
    return texts


def _of_corpus(tokenizer: Tokenizer, seed: int, count: int) -> Iterator[tuple[Document, list[int]]]:
    """`count` documents and their tokens, the domains in the shares that the embedded pair was trained on."""
    return itertools.islice(in_shares(lambda texts: [tokenizer.encode(text) for text in texts], "train", seed), count)


def _written(out: Path) -> int:
    """The number of texts in a file; a last line that was cut is removed."""
    if not out.exists():
        return 0
    with out.open("r+b") as file:
        cut_torn_line(file)
        file.seek(0)
        return sum(1 for _ in file)
