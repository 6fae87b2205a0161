"""Requests of an engine: the options that its methods take, and the checked `Request` that they become."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, TypeVar

from draftwood.methods import Method
from draftwood.models.text.chat import Message
from draftwood.sampling.grammar import Grammar
from draftwood.sampling.params import SamplingParams, Structured

MethodSpec: TypeAlias = str | Mapping[str, Any] | Method
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]  # text, token ids, or a conversation

F = TypeVar("F", bound=Callable[..., Any])


class MoreOptions(TypedDict, total=False):
    """Options of a request by keyword: how tokens are drawn, where the text ends, what is noted on the way."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    min_new_tokens: int
    top_logprobs: int
    ignore_eos: bool
    skip_special_tokens: bool
    include_stop_str_in_output: bool
    bad_words: Sequence[str]
    allowed_token_ids: Sequence[int] | None
    priority: int
    structured: Structured | Mapping[str, Any] | None
    cancelled: Callable[[], bool] | None


class Options(MoreOptions, total=False):
    """All that a request may say besides its prompt; see `Engine.generate`."""

    method: MethodSpec | None
    sampling: SamplingParams | Mapping[str, Any] | None
    max_new_tokens: int
    seed: int


DEFAULTS: dict[str, Any] = {  # of all options, in the order in which signatures have them
    "method": None,
    "sampling": None,
    "max_new_tokens": 128,
    "seed": 0,
    **dict.fromkeys(SamplingParams.model_fields),  # None: as `sampling` says, else as SamplingParams does
    "stop": (),
    "stop_token_ids": (),
    "min_new_tokens": 0,
    "top_logprobs": 0,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "include_stop_str_in_output": False,
    "bad_words": (),
    "allowed_token_ids": None,
    "priority": 0,
    "structured": None,
    "cancelled": None,
}


def lists_options(method: F) -> F:
    """Give a method that takes `**options` a signature with each option and its default, for `help` and notebooks."""
    signature = inspect.signature(method)
    listed = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    named, types = {one.name for one in listed}, {**MoreOptions.__annotations__, **Options.__annotations__}
    listed += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_text(types[name]))
        for name, default in DEFAULTS.items()
        if name not in named
    ]
    method.__signature__ = signature.replace(parameters=listed)  # type: ignore[attr-defined]
    return method


def _text(annotation: Any) -> Any:
    """An annotation as the source has it."""
    return getattr(annotation, "__forward_arg__", annotation)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, all of it checked, nothing allocated."""

    prompt: tuple[int, ...]  # token ids
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
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()  # tokens of each
    allowed_token_ids: frozenset[int] | None = None  # None: all
    priority: int = 0  # smaller ones begin first
    grammar: Callable[[], Grammar] | None = None  # begins to follow the grammar of `structured`
