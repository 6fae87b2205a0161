"""Parts of answers as plain dictionaries: choices, chunks, usage and figures of speculation."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from json.encoder import encode_basestring_ascii
from typing import Any, TypeAlias

from draftwood.core.records import TopLogprobs
from draftwood.engine.results import GenerationResult
from draftwood.engine.scoring import PromptScores
from draftwood.models.text.replies import ReplyForm, ReplyReader
from draftwood.models.text.tokenizer import Tokenizer, TokenStream

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "cancelled": "abort"}
LOGPROB_OF_ZERO = -9999.0  # in place of -infinity, which JSON does not have
Spell = Callable[[Sequence[int]], str]
ReplyFields: TypeAlias = tuple[str, dict[str, Any], str | None]  # content, other fields, why the message ends
ScoredToken = tuple[int, float | None, TopLogprobs]


@dataclass(slots=True)
class Piece:
    """A text, or the next part of one, with its tokens and their log-probabilities."""

    text: str = ""
    tokens: Sequence[int] = ()
    logprobs: Sequence[float | None] = ()
    top: Sequence[TopLogprobs] = ()
    finish: str | None = None
    more: dict[str, Any] = field(default_factory=dict)  # of a hypothesis: its score
    before: Sequence[int] = ()  # tokens that the whole text goes on from

    @property
    def scored(self) -> Iterator[ScoredToken]:
        """Each token with its log-probability and those of the most probable ones."""
        return zip(self.tokens, self.logprobs, self.top or [[]] * len(self.tokens), strict=True)

    @property
    def size(self) -> int:
        """The number of tokens that an answer may name for it: its own and the most probable ones."""
        return len(self.tokens) + sum(map(len, self.top))


def pieces(result: GenerationResult) -> list[Piece]:
    """The texts of a result: its beams, best first, or the only one."""
    if not result.beams:
        finish = FINISH_REASONS[result.finish_reason]
        before = result.prompt_tokens
        return [Piece(result.text, result.tokens, result.logprobs, result.top_logprobs, finish, before=before)]
    return [
        Piece(
            beam.text,
            beam.tokens,
            beam.logprobs,
            beam.top_logprobs,
            FINISH_REASONS[beam.finish_reason],
            {"score": beam.score, "cumulative_logprob": beam.log_likelihood},
            result.prompt_tokens,
        )
        for beam in result.beams
    ]


@dataclass(slots=True)
class TextOffsets:
    """The character offset at which each token of a growing text begins.

    Tokens of one character all begin where it does. A token waits until the text before it was given out, because a
    stop string may cut that text off.
    """

    stream: TokenStream
    next: int = 0  # where the next token begins
    shown: int = 0  # characters that were given out
    waiting: list[tuple[int, ScoredToken]] = field(default_factory=list)

    def add(self, piece: Piece) -> list[tuple[int, ScoredToken]]:
        """(offset, token) of all tokens that are certain with the next part of the text."""
        self.shown += len(piece.text)
        for one in piece.scored:
            self.waiting.append((self.next, one))
            self.next += len(self.stream.step(one[0]))
        certain = [(min(place, self.shown), one) for place, one in self.waiting if piece.finish or place <= self.shown]
        del self.waiting[: len(certain)]
        return certain


@dataclass(slots=True, kw_only=True)
class _Form:
    """Fields of the answers of every endpoint."""

    spell: Spell
    logprobs: bool  # whether they were asked for
    ids: bool = False  # whether token ids are named
    prompt_scores: Sequence[PromptScores] = ()  # where the prompts' log-probabilities were asked for

    def is_text(self, piece: Piece) -> bool:
        """Whether a chunk of a piece tells nothing but a text that goes on, as most do: it is written at less cost."""
        return not (self.logprobs or self.ids or piece.finish or piece.more)

    @property
    def prompt_size(self) -> int:
        """The number of log-probabilities of prompts."""
        return sum(len(one.tokens) + sum(map(len, one.top_logprobs)) for one in self.prompt_scores)

    def prompt_logprobs(self, scores: PromptScores) -> list[dict[str, Any] | None]:
        """Log-probabilities of a prompt's tokens and of the most probable ones, by id, as vLLM reports them."""
        reported: list[dict[str, Any] | None] = []
        for token, logprob, top in zip(scores.tokens, scores.logprobs, scores.top_logprobs, strict=True):
            ranked = {other: (value, rank) for rank, (other, value) in enumerate(top, 1)}
            entries: dict[int, tuple[float | None, int | None]] = {token: (logprob, None), **ranked}
            reported.append(
                None
                if logprob is None
                else {
                    str(id): {"logprob": finite(value), "rank": rank, "decoded_token": self.spell([id])}
                    for id, (value, rank) in entries.items()
                }
            )
        return reported


@dataclass(slots=True, kw_only=True)
class CompletionForm(_Form):
    """/v1/completions. Offsets go on from chunk to chunk."""

    tokenizer: Tokenizer
    prefix: str = "cmpl-"
    object: str = "text_completion"
    chunk: str = "text_completion"
    offsets: dict[int, TextOffsets] = field(default_factory=dict)

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        return {
            "index": index,
            "text": piece.text,
            "logprobs": self._logprobs(index, piece) if self.logprobs else None,
            "finish_reason": piece.finish,
            **named_ids(self.ids, piece),
            **piece.more,
        }

    def delta(self, index: int, piece: Piece, first: bool) -> str:
        if self.is_text(piece):
            text = encode_basestring_ascii(piece.text)
            return f'{{"index": {index}, "text": {text}, "logprobs": null, "finish_reason": null}}'
        return json.dumps(without_prompt(self.choice(index, piece), first))

    def add_prompt_logprobs(self, document: dict[str, Any], choices: Sequence[dict[str, Any]], n: int) -> None:
        """Add those of the prompts, where they were asked for; `n` choices are of each."""
        tables = [self.prompt_logprobs(scores) for scores in self.prompt_scores]
        for choice in choices if tables else ():
            choice["prompt_logprobs"] = tables[choice["index"] // n]

    def _logprobs(self, index: int, piece: Piece) -> dict[str, Any]:
        lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if index not in self.offsets:
            self.offsets[index] = TextOffsets(self.tokenizer.stream(piece.before))
        for offset, (token, logprob, top) in self.offsets[index].add(piece):
            word = self.spell([token])
            lists["tokens"].append(word)
            lists["token_logprobs"].append(finite(logprob))
            lists["text_offset"].append(offset)
            best = {self.spell([other]): finite(value) for other, value in top}
            lists["top_logprobs"].append(None if logprob is None else best | {word: finite(logprob)})
        return lists


@dataclass(slots=True, kw_only=True)
class ChatForm(_Form):
    """/v1/chat/completions; `reply` says how thoughts and calls of tools are found in a text, if they are."""

    tokenizer: Tokenizer
    prefix: str = "chatcmpl-"
    object: str = "chat.completion"
    chunk: str = "chat.completion.chunk"
    unknown: list[int] | None = None  # bytes of a token that has none; /v1/responses has no null there
    reply: ReplyForm | None = None
    several: bool = True  # calls in one answer
    older: bool = False  # calls are named as before there were tools
    piecewise: bool = True  # whether arguments of calls grow from part to part
    readers: dict[int, ReplyReader] = field(default_factory=dict)

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        content, more, finish = self.parts(index, piece)
        message = {"role": "assistant", "content": content or (None if more.get("tool_calls") else ""), "refusal": None}
        for call in more.get("tool_calls", ()):
            del call["index"]
        return {"index": index, "message": {**message, **more}, **self._rest(piece), "finish_reason": finish}

    def delta(self, index: int, piece: Piece, first: bool) -> str:
        if not first and self.reply is None and self.is_text(piece):
            content = encode_basestring_ascii(piece.text)
            return f'{{"index": {index}, "delta": {{"content": {content}}}, "logprobs": null, "finish_reason": null}}'
        content, more, finish = self.parts(index, piece)
        delta = {"role": "assistant", "content": content} if first else {"content": content}
        made = {"index": index, "delta": {**delta, **more}, **self._rest(piece), "finish_reason": finish}
        return json.dumps(without_prompt(made, first))

    def add_prompt_logprobs(self, document: dict[str, Any], choices: Sequence[dict[str, Any]], n: int) -> None:
        """Add those of the conversation, where they were asked for."""
        for scores in self.prompt_scores:
            document["prompt_logprobs"] = self.prompt_logprobs(scores)

    def parts(self, index: int, piece: Piece) -> ReplyFields:
        """The text of a piece, other fields that it adds to a message, and why the message ends.

        What goes on with the arguments of an earlier part's call has neither its name nor its id.
        """
        if self.reply is None:
            return piece.text, {}, piece.finish
        if index not in self.readers:
            self.readers[index] = self.reply.reader(piece.before, self.several, self.piecewise)
        reader = self.readers[index]
        place = reader.count - 1
        parts = reader.feed(piece.text, piece.finish is not None)
        more: dict[str, Any] = {"reasoning_content": parts.reasoning} if parts.reasoning else {}
        calls: list[dict[str, Any]] = []
        for name, arguments in parts.calls:
            place += bool(name)
            begun = {"id": secrets.token_hex(5)[:9], "type": "function"} if name else {}
            named = {"name": name} if name else {}
            calls.append({"index": place, **begun, "function": {**named, "arguments": arguments}})
        if calls and self.older:
            more["function_call"] = calls[0]["function"]
        elif calls:
            more["tool_calls"] = calls
        called = piece.finish == "stop" and reader.count
        ended = ("function_call" if self.older else "tool_calls") if called else piece.finish
        return parts.content, more, ended

    def _rest(self, piece: Piece) -> dict[str, Any]:
        logprobs = {"content": self.content(piece), "refusal": None} if self.logprobs else None
        return {"logprobs": logprobs, "finish_reason": piece.finish, **named_ids(self.ids, piece), **piece.more}

    def content(self, piece: Piece) -> list[dict[str, Any]]:
        """Log-probabilities of each token, as /v1/responses has them too."""
        return [
            {**self._token(token, logprob), "top_logprobs": [self._token(*other) for other in top]}
            for token, logprob, top in piece.scored
        ]

    def _token(self, token: int, logprob: float | None) -> dict[str, Any]:
        spelled = self.tokenizer.bytes_of(token)
        known = self.unknown if spelled is None else list(spelled)
        return {"token": self.spell([token]), "logprob": finite(logprob), "bytes": known}


Form: TypeAlias = CompletionForm | ChatForm  # an endpoint's way to write choices


def named_ids(asked: bool, piece: Piece) -> dict[str, Any]:
    """A piece's token ids, and those of its prompt, as vLLM reports them."""
    return {"token_ids": list(piece.tokens), "prompt_token_ids": list(piece.before)} if asked else {}


def without_prompt(choice: dict[str, Any], first: bool) -> dict[str, Any]:
    """A chunk of a choice, of which the first alone names the ids of the prompt."""
    if not first:
        choice.pop("prompt_token_ids", None)
    return choice


def finite(value: float | None) -> float | None:
    """A log-probability as a number that JSON has."""
    return LOGPROB_OF_ZERO if value is not None and math.isinf(value) else value


def joined(first: Piece, second: Piece) -> Piece:
    """The second text appended to the first."""
    tops = [*(first.top or [[]] * len(first.tokens)), *(second.top or [[]] * len(second.tokens))]
    tokens, logprobs = [*first.tokens, *second.tokens], [*first.logprobs, *second.logprobs]
    text = first.text + second.text
    return replace(second, text=text, tokens=tokens, logprobs=logprobs, top=tops, before=first.before)


def usage(prompt: int, generated: int, cached: int) -> dict[str, Any]:
    """Numbers of tokens as OpenAI reports them; `cached` of the prompt were in the prefix cache."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def speculation(results: Sequence[GenerationResult]) -> dict[str, Any]:
    """Figures of speculation over all texts and beams of a request; a step is a round that drafted something.

    Accepted drafts of trees and beams are counted on the longest path: in layers.
    """
    steps = [round_ for result in results for round_ in result.rounds if round_.drafted]
    histogram = [0] * (1 + max((step.depth_accepted for step in steps), default=0))
    for step in steps:
        histogram[step.depth_accepted] += 1
    accepted, drafted = sum(step.depth_accepted for step in steps), sum(step.drafted for step in steps)
    return {
        "mean_acceptance_length": 1 + accepted / len(steps) if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": len(steps),
        "num_draft_tokens": drafted,
        "num_accepted_tokens": accepted,
        "num_accepted_draft_tokens": accepted,  # as vLLM calls it
        "num_spec_tokens": max((step.attempted for step in steps), default=0),
    }
