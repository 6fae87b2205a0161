"""Prompts for commands that measure: a file with one prompt a line, or held-out documents of the embedded corpus."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.errors import RequestError
from draftwood.reading import parse_json, read_text

if TYPE_CHECKING:
    from draftwood.engine import Engine


def token_prompts(engine: Engine, file: Path | None, per_domain: int, room: int) -> list[list[int]]:
    """Token ids of prompts that leave `room` tokens of the context; those of the corpus take turns by domain."""
    return fitted(engine, held_out(per_domain) if file is None else read(file), room)


def read(file: Path) -> list[str]:
    """The prompts of a file, one a line; of .jsonl, each a string or an object with `prompt`."""
    try:
        lines = read_text(file).splitlines()
    except UnicodeDecodeError:
        raise RequestError(f"the prompt file {file} is not valid UTF-8; convert it first") from None
    except ValueError as error:
        raise RequestError(f"the prompt file {file} is too long: {error}") from None
    texts: list[str] = []
    for number, line in enumerate(lines, 1):
        text: Any = line
        if line.strip() and file.suffix == ".jsonl":
            try:
                text = parse_json(line)
            except ValueError:
                raise RequestError(f"the prompt file {file}, line {number}, is not JSON") from None
            text = text.get("prompt") if isinstance(text, dict) else text
            if not isinstance(text, str) or not text:
                raise RequestError(
                    f"the prompt file {file}, line {number}, holds neither a string nor an object with a prompt"
                )
        if line.strip():
            texts.append(text)
    if not texts:
        raise RequestError(f"the prompt file {file} is empty; give one prompt a line")
    return texts


def held_out(per_domain: int, seed: int = 0) -> list[str]:
    """Prompts of documents of the embedded corpus that no model was trained on, in turns by domain."""
    from draftwood.corpus import DOMAINS, documents

    each = [[item.prompt for item in islice(documents(domain, "held-out", seed), per_domain)] for domain in DOMAINS]
    return [prompts[i] for i in range(per_domain) for prompts in each if i < len(prompts)]


def fitted(engine: Engine, texts: Sequence[str], room: int) -> list[list[int]]:
    """Token ids of texts, the last ones of a text that is too long to leave `room` tokens of every context."""
    contexts = [engine.target.context, *(model.context for model in engine.drafts)]
    most = min(contexts) - room - 1
    if most < 1:
        raise RequestError(f"{room} new tokens fill a context of {min(contexts)}; lower --max-new-tokens")
    return [engine.tokens(text)[-most:] for text in texts]
