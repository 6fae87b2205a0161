"""Reads files of texts, for training and for calibration, as token ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwood.errors import ConfigurationError, RequestError
from draftwood.models.text.tokenizer import Tokenizer
from draftwood.util.safe_parsing import lines_of, parse_json


def texts_of(path: Path, tokenizer: Tokenizer | None) -> Iterator[list[int]]:
    """Token ids of each text of a file, as `prompted_texts_of` reads it."""
    return (tokens for tokens, _ in prompted_texts_of(path, tokenizer))


def prompted_texts_of(path: Path, tokenizer: Tokenizer | None) -> Iterator[tuple[list[int], int]]:
    """Token ids of each text of a file, and how many of them are its prompt's; 0 where nothing says so.

    A line of a .jsonl file is an object with `tokens`, `messages` (a conversation, for the model's chat template) or
    `text`; any other file is one text. `prompt_tokens` counts those of the prompt; of a conversation that the model has
    the last word in, all before that are. Tokens beside a text must be its tokens: another model's are refused. Without
    a tokenizer there can be tokens only. Raises ConfigurationError.
    """
    try:
        content = path.read_text("utf-8")
    except UnicodeError:
        raise ConfigurationError(f"{path} is not valid UTF-8; convert it first") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}); give a file of texts") from None
    if path.suffix != ".jsonl":
        if content.strip():
            yield _encoded(content, tokenizer, str(path)), 0
        return
    for number, line in enumerate(lines_of(content), 1):
        where = f"{path}, line {number},"
        if not line.strip():
            continue
        try:
            entry: Any = parse_json(line)
        except ValueError:
            raise ConfigurationError(f"{where} is not JSON; give an object with text, messages or tokens") from None
        known = entry if isinstance(entry, dict) else {}
        tokens, messages, text = (known.get(key) for key in ("tokens", "messages", "text"))
        if isinstance(tokens, list) and all(type(token) is int for token in tokens):
            if tokenizer is not None and isinstance(text, str):
                _check_tokens(tokens, text, tokenizer, where)
            yield tokens, _prompt_tokens(known, len(tokens), where)
        elif isinstance(messages, list):
            yield (tokens := _encoded(messages, tokenizer, where)), _asked(messages, tokens, tokenizer)
        elif isinstance(text, str):
            yield _encoded(text, tokenizer, where), 0
        else:
            raise ConfigurationError(f"{where} has neither text nor messages nor tokens; give one of them")


def _check_tokens(tokens: list[int], text: str, tokenizer: Tokenizer, where: str) -> None:
    """Raise ConfigurationError where the text beside tokens is not theirs, spaces and special tokens apart."""
    said = "".join(text.split())
    try:
        own = any("".join(tokenizer.decode(tokens, skip).split()) == said for skip in (True, False))
    except RequestError:  # an id below 0
        own = False
    if not own:
        raise ConfigurationError(
            f"{where} has tokens that are not its text in the model's vocabulary: another model wrote them; have this "
            "one write text (`draftwood train corpus`), or leave tokens out, so that the text is encoded"
        )


def _prompt_tokens(entry: Mapping[str, Any], tokens: int, where: str) -> int:
    """The number of the prompt's tokens that an entry of so many tokens names; 0 where it names none."""
    prompt = entry.get("prompt_tokens", 0)
    if type(prompt) is not int or not 0 <= prompt <= tokens:
        raise ConfigurationError(
            f"{where} has prompt_tokens {prompt!r}, but {tokens} tokens; give how many of them are the prompt's"
        )
    return prompt


def _asked(messages: Sequence[Any], tokens: list[int], tokenizer: Tokenizer | None) -> int:
    """The tokens of a conversation before the answer that ends it; 0 where it ends in none."""
    if tokenizer is None or len(messages) < 2 or messages[-1]["role"] != "assistant":
        return 0
    try:
        asked = tokenizer.chat(messages[:-1])
    except RequestError:  # the template has no prompt without an answer
        return 0
    return len(asked) if tokens[: len(asked)] == asked else 0


def _encoded(text: Any, tokenizer: Tokenizer | None, where: str) -> list[int]:
    """Token ids of a text, or of a conversation."""
    if tokenizer is None:
        raise ConfigurationError(f"{where} holds text, but the model has no tokenizer; give tokens, or tokenizer=")
    try:
        return tokenizer.encode(text) if isinstance(text, str) else tokenizer.chat(text, add_generation_prompt=False)
    except RequestError as error:
        raise ConfigurationError(f"{where} cannot be read: {error}") from None
