"""Turns what callers give into a checked `Request`, or says in one sentence what is wrong with it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Unpack

from draftwood.engine.builder import GenerationBuilder
from draftwood.engine.request import DEFAULTS, MethodSpec, Options, Prompt, Request
from draftwood.errors import ConfigurationError, RequestError, did_you_mean
from draftwood.methods import Method
from draftwood.methods.base import without_heads
from draftwood.models.text.tokenizer import Tokenizer, check_text
from draftwood.sampling.grammar import Grammar, Grammars
from draftwood.sampling.params import SamplingParams, Structured
from draftwood.util import config
from draftwood.util.safe_parsing import short_repr

NAMES = frozenset(SamplingParams.model_fields)


class RequestParser:
    """Reads prompts, methods and options for one target; computes nothing."""

    def __init__(self, builder: GenerationBuilder, end_tokens: frozenset[int]) -> None:
        self.end_tokens = end_tokens  # that end a text
        self.grammars: Grammars | None = None  # those compiled so far
        self.target = builder.target
        self._builder = builder
        self._lock = Lock()

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Reads texts and conversations; None: prompts are token ids."""
        return self._builder.tokenizer

    def method(self, spec: MethodSpec | None = None) -> Method:
        """The method that a specification means; refuses one that needs another number of draft models."""
        method = self._builder.default_method() if spec is None else Method.parse(spec)
        method.check_drafts(len(without_heads(self._builder.drafts)))
        return method

    def grammar(self, structured: Structured) -> Callable[[], Grammar]:
        """Compile a grammar, or take it from those compiled before; the answer begins to follow it.

        Raises RequestError where it is no grammar.
        """
        assert self.tokenizer is not None
        with self._lock:
            if self.grammars is None:
                self.grammars = Grammars(self.tokenizer, self.end_tokens, self.target.vocab_size, self.target.device)
        return self.grammars.compiled(structured)

    def tokens(self, prompt: Prompt, limit: int | None = None) -> list[int]:
        """Ids of a prompt, at most `limit` of them; by default one fewer than the target's context holds."""
        tokens = self._encoded(prompt)
        if not tokens:
            raise RequestError("the prompt is empty; give at least one token of text")
        vocab, context = self.target.vocab_size, self.target.context
        bad = next((token for token in tokens if not 0 <= token < vocab), None)
        if bad is not None:
            raise RequestError(f"the prompt has token id {bad}, but the target's ids go from 0 to {vocab - 1}")
        if len(tokens) > (context - 1 if limit is None else limit):
            raise RequestError(
                f"the prompt has {len(tokens)} tokens, but the target's context holds {context} with the output; "
                "shorten the prompt"
            )
        return tokens

    def _encoded(self, prompt: Any) -> list[int]:
        wrong = f"a prompt is text, a list of token ids or a list of messages, not {type(prompt).__name__}"
        if isinstance(prompt, bytes | Mapping):
            raise RequestError(wrong)
        if not isinstance(prompt, str):
            try:
                prompt = list(prompt)
            except TypeError:
                raise RequestError(wrong) from None
        if not prompt:
            return []
        if isinstance(prompt, str) or isinstance(prompt[0], Mapping):
            if self.tokenizer is None:
                raise RequestError("this engine has no tokenizer; give the prompt as token ids")
            read = self.tokenizer.encode if isinstance(prompt, str) else self.tokenizer.chat
            return read(prompt, max_tokens=self.target.context)
        ids: list[int] = []
        try:
            ids.extend(map(operator.index, prompt))
        except TypeError:
            odd = short_repr(prompt[len(ids)])
            raise RequestError(f"token ids are whole numbers, but the prompt has {odd}") from None
        return ids

    def request(self, prompt: Prompt, **options: Unpack[Options]) -> Request:
        """Check all of a request; nothing is allocated."""
        for name in options:
            if name not in DEFAULTS:
                raise RequestError(f"there is no option {name!r}" + did_you_mean(name, DEFAULTS))
        sampling = sampling_params(options)
        tokens = self.tokens(prompt)
        stops = self._stops(options.get("stop", ()))
        cancelled = options.get("cancelled")
        if cancelled is not None and not callable(cancelled):
            raise RequestError(f"cancelled is {cancelled!r}, but must be a function that is asked once per round")
        method = self.method(options.get("method"))
        method.check(sampling)
        max_new_tokens = check_int("max_new_tokens", options.get("max_new_tokens", 128), 1)
        min_new_tokens = check_int("min_new_tokens", options.get("min_new_tokens", 0), 0)
        if min_new_tokens > max_new_tokens:
            raise RequestError(
                f"min_new_tokens is {min_new_tokens}, but max_new_tokens only {max_new_tokens}; raise it"
            )
        ends = frozenset() if _flag(options, "ignore_eos", False) else self.end_tokens
        stop_ids = options.get("stop_token_ids", ())
        if not isinstance(stop_ids, Sequence):
            raise RequestError(f"stop_token_ids is {stop_ids!r}, but must be a list of token ids")
        ends |= {check_int("stop_token_ids", token, 0) for token in stop_ids}
        bad_words, allowed = self._bad_words(options.get("bad_words", ())), self._allowed(options)
        self._check_tokens(sampling, ends, min_new_tokens, bad_words, allowed)
        structured = self.structured(options)
        return Request(
            prompt=tuple(tokens),
            method=method,
            params=sampling,
            max_new_tokens=min(max_new_tokens, self.target.context - len(tokens)),
            seed=check_int("seed", options.get("seed", 0)),
            stop=stops,
            top_logprobs=check_int("top_logprobs", options.get("top_logprobs", 0), 0),
            end_tokens=ends,
            min_new_tokens=min_new_tokens,
            cancelled=cancelled,
            structured=structured,
            skip_special_tokens=_flag(options, "skip_special_tokens", True),
            include_stop_str_in_output=_flag(options, "include_stop_str_in_output", False),
            bad_words=bad_words,
            allowed_token_ids=allowed,
            priority=check_int("priority", options.get("priority", 0)),
            grammar=None if structured is None else self.grammar(structured),
        )

    def scoring(self, prompt: Prompt, top_logprobs: int = 0, first: int = 1) -> tuple[list[int], int, int]:
        """Check what `Engine.score` is asked for; returns ids, how many alternatives, and the first token to be scored.

        The last token is only predicted, so there may be one more than the context holds.
        """
        tokens = self.tokens(prompt, self.target.context + 1)
        return tokens, check_int("top_logprobs", top_logprobs, 0), min(check_int("first", first, 1), len(tokens))

    def _stops(self, stop: Any) -> tuple[str, ...]:
        """Stop strings, checked."""
        return self._texts("stop", "stop string", (stop,) if isinstance(stop, str) else stop)

    def _texts(self, name: str, kind: str, texts: Any) -> tuple[str, ...]:
        """The texts of an option, checked."""
        if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(one, str) for one in texts):
            also = "a string or " if name == "stop" else ""
            raise RequestError(f"{name} is {short_repr(texts)}, but must be {also}a list of strings")
        if "" in texts:
            raise RequestError(f"a {kind} is empty; leave it out")
        if texts and self.tokenizer is None:
            raise RequestError(f"{kind}s need a tokenizer, and this engine has none")
        for one in texts:
            check_text(one, f"a {kind}")
        return tuple(texts)

    def _bad_words(self, given: Any) -> tuple[tuple[int, ...], ...]:
        """The tokens of each bad word, at the start of a text and behind a space."""
        words = [text for word in self._texts("bad_words", "bad word", given) for text in (word, f" {word.lstrip()}")]
        assert self.tokenizer is not None or not words
        spellings = [tuple(self.tokenizer.encode(word, False)) for word in words] if self.tokenizer is not None else []
        return tuple(dict.fromkeys(filter(None, spellings)))

    def _allowed(self, options: Options) -> frozenset[int] | None:
        """The tokens that a text may have; None: all."""
        given, vocab = options.get("allowed_token_ids"), self.target.vocab_size
        if given is None:
            return None
        if not isinstance(given, Sequence) or not given:
            raise RequestError(f"allowed_token_ids is {short_repr(given)}, but must be a list of token ids")
        allowed = frozenset(check_int("allowed_token_ids", token, 0) for token in given)
        if (last := max(allowed)) >= vocab:
            raise RequestError(f"allowed_token_ids has {last}, but the target's ids go from 0 to {vocab - 1}")
        return allowed

    def structured(self, options: Options) -> Structured | None:
        """The structure that the text must have, checked but for the grammar itself; None: any."""
        given = options.get("structured")
        if given is None:
            return None
        if not isinstance(given, Structured):
            if not isinstance(given, Mapping):
                raise RequestError(f"structured is {short_repr(given)}, but must be a mapping such as {{'regex': ...}}")
            given = config.parse(Structured, given, "structured")
        if self.tokenizer is None:
            raise RequestError("structured output needs a tokenizer, and this engine has none")
        if _flag(options, "ignore_eos", False) or not self.end_tokens:
            why = "leave out ignore_eos" if self.end_tokens else "this model has none"
            raise RequestError(f"structured output ends with the end-of-text token; {why}")
        return given

    def _check_tokens(
        self,
        sampling: SamplingParams,
        ends: frozenset[int],
        min_new_tokens: int,
        bad_words: Sequence[Sequence[int]],
        allowed: frozenset[int] | None,
    ) -> None:
        """Refuse ids that the vocabulary does not have, and a request that leaves no token to choose."""
        vocab, bias = self.target.vocab_size, sampling.logit_bias
        bad = next((token for token in bias if not 0 <= token < vocab), None)
        if bad is not None:
            raise ConfigurationError(f"sampling: logit_bias names token {bad}, but ids go from 0 to {vocab - 1}")
        bad = next((token for token in ends - self.end_tokens if token >= vocab), None)
        if bad is not None:
            raise RequestError(f"stop_token_ids has {bad}, but the target's ids go from 0 to {vocab - 1}")
        forbidden = {token for token, value in bias.items() if value == -math.inf}
        if len(forbidden) == vocab:
            raise ConfigurationError("sampling: logit_bias forbids every token; leave at least one")
        forbidden |= {word[-1] for word in bad_words}
        forbidden |= set() if allowed is None else set(range(vocab)) - allowed
        if len(forbidden) == vocab:
            raise RequestError("bad_words may forbid every token of allowed_token_ids; allow another one")
        if min_new_tokens and len(forbidden | ends) >= vocab:
            raise RequestError("min_new_tokens forbids every token that other options leave; leave at least one")


def _flag(options: Mapping[str, Any], name: str, default: bool) -> bool:
    """An option that is True or False."""
    value: object = options.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {short_repr(value)}, but must be True or False")
    return value


def sampling_params(options: Mapping[str, Any]) -> SamplingParams:
    """The parameters that a request's options ask for.

    Raises ConfigurationError for a value that cannot be, RequestError where `sampling` and a keyword differ.
    """
    sampling = options.get("sampling")
    if not isinstance(sampling, SamplingParams):
        sampling = config.parse(SamplingParams, {} if sampling is None else sampling, "sampling")
    given = {name: value for name, value in options.items() if name in NAMES and value is not None}
    if not given:
        return sampling
    keywords = config.parse(SamplingParams, given, "sampling")
    for name in sorted(sampling.model_fields_set & keywords.model_fields_set):
        one, other = getattr(sampling, name), getattr(keywords, name)
        if one != other:
            raise RequestError(f"{name} is {short_repr(other)}, but sampling says {short_repr(one)}; give one of them")
    return sampling.model_copy(update={name: getattr(keywords, name) for name in given})


def entry_options(common: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one entry of a batch: its own, and the common ones where it has none.

    `sampling` of the entry replaces all common sampling options, a keyword of it the common value of this option alone.
    """
    if "sampling" in entry:
        common = {name: value for name, value in common.items() if name not in NAMES}
    elif (sampling := common.get("sampling")) is not None and entry.keys() & NAMES:
        if isinstance(sampling, SamplingParams):
            sampling = sampling.model_dump(exclude_unset=True)
        if isinstance(sampling, Mapping):  # else it is refused when it is parsed
            sampling = {name: value for name, value in sampling.items() if name not in entry}
        common = {**common, "sampling": sampling}
    return {**common, **entry}


def check_int(name: str, value: object, minimum: int | None = None) -> int:
    """The whole number that an option has; RequestError where it is none, or below the minimum."""
    try:
        number = operator.index(value) if not isinstance(value, bool) else None  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise RequestError(f"{name} is {short_repr(value)}, but must be a whole number")
    if minimum is not None and number < minimum:
        raise RequestError(f"{name} is {number}, but must be at least {minimum}")
    return number
