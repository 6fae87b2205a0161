"""Prompts to measure on or to learn from: a file with one a line, or documents of the embedded corpus."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.errors import RequestError
from draftwood.util.safe_parsing import lines_of, parse_json, read_text

if TYPE_CHECKING:
    from draftwood.corpus import Split
    from draftwood.engine.engine import Engine
    from draftwood.engine.request import Prompt

CORPUS = "corpus"  # as the name of a file: the embedded pair's corpus


def read_prompts(file: Path | str, chat: bool = False) -> list[Prompt]:
    """The prompts of a file, one a line; of .jsonl, each a string or an object with `prompt` or `messages`.

    With `chat` a text is a user's message of a conversation. Raises RequestError.
    """
    file = Path(file)
    try:
        lines = lines_of(read_text(file))
    except UnicodeDecodeError:
        raise RequestError(f"the prompt file {file} is not valid UTF-8; convert it first") from None
    except ValueError as error:
        raise RequestError(f"the prompt file {file} is too long: {error}") from None
    except OSError as error:
        raise RequestError(f"the prompt file {file} cannot be read: {error.strerror}; give one prompt a line") from None
    texts: list[Prompt] = []
    for number, line in enumerate(lines, 1):
        text: Any = line
        if line.strip() and file.suffix == ".jsonl":
            try:
                text = parse_json(line)
            except ValueError:
                raise RequestError(f"the prompt file {file}, line {number}, is not JSON") from None
            text = text.get("messages", text.get("prompt")) if isinstance(text, dict) else text
            if not isinstance(text, str | list) or not text:
                raise RequestError(
                    f"the prompt file {file}, line {number}, holds neither a string nor an object with a prompt or "
                    "messages"
                )
        if line.strip():
            texts.append(text)
    if not texts:
        raise RequestError(f"the prompt file {file} is empty; give one prompt a line")
    return as_messages(texts, chat)


def as_messages(prompts: Sequence[Prompt], chat: bool) -> list[Prompt]:
    """The prompts; with `chat` a text is a user's message of a conversation."""
    return [[{"role": "user", "content": each}] if chat and isinstance(each, str) else each for each in prompts]


def plain_texts(prompts: Sequence[Prompt]) -> list[str]:
    """The prompts, all of them texts; RequestError where one is a conversation."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise RequestError("prompts must be texts here, but some are conversations; give texts alone")
    return texts


def corpus_prompts(per_domain: int, split: Split = "held-out", seed: int = 0, chat: bool = False) -> list[Prompt]:
    """Prompts of documents of the embedded corpus, the domains taking turns; no model was trained on `held-out`.

    With `chat` they are users' messages.
    """
    from draftwood.corpus import DOMAINS, documents

    each = [[item.prompt for item in islice(documents(domain, split, seed), per_domain)] for domain in DOMAINS]
    return as_messages([prompt for prompt in chain(*zip_longest(*each)) if prompt is not None], chat)


def prompts_of(source: str, count: int, seed: int = 0, chat: bool = False) -> list[Prompt]:
    """At most `count` prompts of a file, or of the corpus that the embedded pair was trained on, every domain alike.

    Those of a file may be conversations, and with `chat` all prompts are.
    """
    if count < 1:
        raise RequestError(f"{count} prompts were asked for, but at least one is needed")
    if source == CORPUS:
        return corpus_prompts(count, "train", seed, chat)[:count]
    return read_prompts(source, chat)[:count]


def fitted(engine: Engine, texts: Sequence[Prompt], room: int) -> list[list[int]]:
    """Token ids of texts, the last ones of a text that is too long to leave `room` tokens of every context."""
    max_tokens = engine.context - room - 1
    if max_tokens < 1:
        raise RequestError(f"{room} new tokens fill a context of {engine.context}; lower --max-new-tokens")
    return [engine.tokens(text)[-max_tokens:] for text in texts]
