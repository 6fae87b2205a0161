"""What is asked of an engine: one request, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

from draftwood.methods import Method
from draftwood.models.text.chat import Message
from draftwood.sampling.grammar import Grammar
from draftwood.sampling.params import SamplingParams, Structured

MethodSpec: TypeAlias = str | Mapping[str, Any] | Method
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]  # text, token ids, or a conversation


class Limits(TypedDict, total=False):
    """Where a generation ends, and what is noted on the way; see `Engine.generate`."""

    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    min_new_tokens: int
    top_logprobs: int
    ignore_eos: bool
    structured: Structured | Mapping[str, Any] | None
    cancelled: Callable[[], bool] | None


class Options(Limits, total=False):
    """What `stream` and `batch` take besides the prompt, as `generate` does."""

    method: MethodSpec | None
    sampling: SamplingParams | Mapping[str, Any] | None
    max_new_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the engine carries it out, all of it checked, nothing allocated. Made by `Engine.request`."""

    prompt: tuple[int, ...]
    method: Method
    params: SamplingParams
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...]
    top_logprobs: int
    end_tokens: frozenset[int]
    min_new_tokens: int
    cancelled: Callable[[], bool] | None
    structured: Structured | None = None
    grammar: Callable[[], Grammar] | None = None  # begins to follow what `structured` asks for
