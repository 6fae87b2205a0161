"""What the endpoints share: the engine, its limits, who listens to what, and how one request is carried out."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import lru_cache, partial
from itertools import starmap
from pathlib import Path
from typing import Any

from starlette.responses import Response

from draftwood.engine.async_engine import AsyncBatch, AsyncEngine, Prepare
from draftwood.engine.engine import Engine, StreamEvent
from draftwood.engine.generation import Generation
from draftwood.engine.request import MethodSpec, Prompt
from draftwood.engine.results import GenerationResult
from draftwood.engine.scoring import PromptScores
from draftwood.errors import ConfigurationError, ModelError, RequestError
from draftwood.explain.text import spelling
from draftwood.methods import Method
from draftwood.serve import answers
from draftwood.serve.answers import Form, Piece
from draftwood.serve.errors import ApiError, ServerEnded, api_error
from draftwood.serve.metrics import Meters
from draftwood.serve.pool import Pool
from draftwood.serve.protocol import StreamOptions
from draftwood.serve.public import Public
from draftwood.serve.request_mapping import Plan
from draftwood.serve.settings import ServeSettings

log = logging.getLogger(__name__)

TICK = 1.0  # seconds between reports of the load
THREADS = 2  # of a pool: the computer's cores are for the models


class Service:
    """An engine that is served."""

    def __init__(self, engine: Engine, settings: ServeSettings, method: MethodSpec | None = None) -> None:
        if engine.tokenizer is None:
            raise ConfigurationError("a server needs a tokenizer; serve a checkpoint directory that has one")
        self.engine, self.settings, self.tokenizer = engine, settings, engine.tokenizer
        self.keys = settings.keys()
        self.method: Method = engine.method(method)
        target = str(engine.names.get("target", "model"))
        self.name = settings.served_model_name or (Path(target).name if Path(target).exists() else target)
        self.public = Public(engine, self.name, self.method)
        self.created = int(time.time())
        self.served = AsyncEngine(engine)
        self.meters = Meters(engine, self.name)
        spell = spelling(self.tokenizer)
        cached = lru_cache(1 << 16)(lambda token: spell([token]))
        self.words: answers.Words = lambda tokens: cached(*tokens) if len(tokens) == 1 else spell(tokens)
        self.draining = asyncio.Event()
        self.busy = 0  # requests that are being worked on
        self.ended = False  # whether they are no longer waited for
        seconds = settings.request_seconds
        self.prompts = Pool("prompts", THREADS, seconds)
        self.texts = Pool("texts", THREADS, seconds)  # of those who ask for ids, or for the text of some
        self.conversations = Pool("conversations", 1, seconds)  # by the one process that renders templates
        self.grammars = Pool("grammars", 1, seconds)
        self.answers = Pool("answers", THREADS, seconds)

    async def aclose(self) -> None:
        """End all requests, whose clients are told so, and the threads that work for them."""
        self.ended = True
        await self.served.aclose(ServerEnded())
        for pool in (self.prompts, self.texts, self.conversations, self.grammars, self.answers):
            pool.close()

    def told(self, error: BaseException) -> ApiError:
        """An error as a client may read it."""
        found, text = api_error(error), self.public.sentence(str(error))
        if found is not error and str(found) != str(error):
            text = str(found)
        elif isinstance(error, ModelError):  # whose advice is not for clients
            text = text.partition("; ")[0] + "; only who runs this server can mend that"
        return ApiError(found.status, text, found.param, found.code, found.headers)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of ids."""
        return self.tokenizer.decode(tokens)

    def echoed(self, prompt: Sequence[int]) -> str:
        """The text of a prompt as far as it is certain: an answer completes a character that ends inside."""
        return "".join(map(self.tokenizer.stream().step, prompt))

    async def read(self, prompt: Prompt, most: int | None = None) -> list[int]:
        """Ids of a prompt, as `Engine.tokens`, and as many as this server takes."""
        spoken = not isinstance(prompt, str) and bool(prompt) and not isinstance(prompt[0], int)
        tokens = await (self.conversations if spoken else self.prompts).run(self.engine.tokens, prompt, most)
        self.check_length(tokens)
        return tokens

    async def compile(self, options: Mapping[str, Any]) -> None:
        """Have the grammar of a request ready, if it has one; RequestError where it is none."""

        def compile_() -> None:
            if (structured := self.engine.structured(options)) is not None:  # type: ignore[arg-type]
                self.engine.grammar(structured)

        if options.get("structured") is not None:
            await self.grammars.run(compile_)

    async def load(self) -> AsyncIterator[str]:
        """Server-sent events of the load, until the server is about to end."""
        while not self.draining.is_set():
            yield f"event: load\ndata: {json.dumps(self.meters.load())}\n\n"
            with suppress(TimeoutError):
                await asyncio.wait_for(self.draining.wait(), TICK)

    async def scores(self, prompts: Sequence[Prompt], top: int | None) -> list[PromptScores]:
        """Each prompt with its log-probabilities; without any where none are asked for."""
        most = self.engine.target.context + 1  # the last one is predicted only
        async with asyncio.timeout(self.settings.request_seconds):
            tokens = [await self.read(prompt, most) for prompt in prompts]
            if top is None:
                return [PromptScores(one, [None] * len(one), [[]] * len(one)) for one in tokens]
            return [await self.served.score(one, top) for one in tokens]

    def check_length(self, prompt: Sequence[int]) -> None:
        """Raise RequestError where a prompt has more tokens than this server takes."""
        most = self.settings.max_prompt_tokens
        if most is not None and len(prompt) > most:
            raise RequestError(f"the prompt has {len(prompt)} tokens, but this server takes {most} at most; shorten it")

    def work(self, plan: Plan, noted: dict[str, Any], prepare: Prepare | None = None) -> Work:
        """A request that is ready to begin, which leaves in `noted` what is logged of it.

        `prepare` is handed each of its generations before they are queued.
        """
        noted["speculation"] = plan.method.name
        if self.settings.log_prompts:
            noted["prompt"] = plan.prompts[0] if len(plan.prompts) == 1 else list(plan.prompts)
        return Work(self, plan, noted, prepare)


def check_model(service: Service, name: str | None) -> None:
    """Raise ApiError where a request names another model."""
    if name is not None and name != service.name:
        raise ApiError(404, f"there is no model {name!r}; this server has {service.name!r}", "model", "model_not_found")


class Work:
    """The generations of one HTTP request: events as they come, results at the end."""

    def __init__(self, service: Service, plan: Plan, noted: dict[str, Any], prepare: Prepare | None) -> None:
        self.service, self.plan, self.noted, self.prepare = service, plan, noted, prepare
        self.began = time.perf_counter()
        self.results: list[GenerationResult | None] = [None] * plan.generations
        self.generations: list[Generation] = []
        self.made = [0] * plan.generations  # tokens of each generation so far; of beams those that all agree in
        self._batch: AsyncBatch | None = None
        self._last: list[float] = [0.0] * plan.generations
        self._joules = service.meters.joules()
        self._left = False  # whether it has begun, and its end is not counted yet

    def _prepare(self, generation: Generation) -> None:
        self.generations.append(generation)
        if self.prepare is not None:
            self.prepare(generation)

    async def begin(self) -> None:
        """Queue all of it; raises what is wrong with it."""
        if self._batch is None:
            service, plan = self.service, self.plan
            read = [await service.read(prompt) for prompt in plan.prompts]  # once, however many texts go on from it
            await service.compile(plan.options)
            self._batch = service.served.together(plan.requests(read), self._prepare)
        await self._batch.begin()
        self._left = True

    async def events(self) -> AsyncGenerator[Iterator[tuple[int, StreamEvent]], None]:
        """(place of the generation, event), as many as have come; each counts when it is taken."""
        try:
            await self.begin()
            assert self._batch is not None
            async for events in self._batch:
                yield self._counted(events, time.perf_counter())
        finally:
            await self.aclose()

    def _counted(self, events: list[tuple[int, StreamEvent]], now: float) -> Iterator[tuple[int, StreamEvent]]:
        meters = self.service.meters
        for place, event in events:
            first = not self._last[place]
            meters.round(event.round, now - (self._last[place] or self.began), first)
            self._last[place] = now
            self.made[place] += len(event.tokens)
            if event.result is not None:
                self.results[place] = event.result
                self.made[place] = answers.tokens(event.result)
                meters.ended(event.result, now - self.began)
            yield place, event

    async def aclose(self) -> None:
        """End what has not ended."""
        if self._batch is not None:
            await self._batch.aclose()
        if self._left:
            self._left = False
            self.service.meters.left(len(self.results) - len(self.done))
            self.noted |= {key: self.usage[key] for key in ("prompt_tokens", "completion_tokens")}

    async def finish(self) -> list[GenerationResult]:
        """All results."""
        async for events in self.events():
            for _ in events:
                pass
        return self.done

    @property
    def done(self) -> list[GenerationResult]:
        """The results there are."""
        return [result for result in self.results if result is not None]

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens so far: of the prompts, each counted once, and all that was generated for them."""
        each, read, cached = self.plan.each, 0, 0
        for first in range(0, len(self.generations), each):
            siblings = self.generations[first : first + each]
            read += len(siblings[0].request.prompt)
            cached += min(one.target.reused for one in siblings)  # others have it from the one that computed it
        return answers.usage(read, sum(self.made), cached)

    @property
    def closing(self) -> dict[str, Any]:
        """Usage and figures of the whole request."""
        figures: dict[str, Any] = {
            "speculative_decoding": answers.speculation(self.done),
            "method": self.plan.method.name,
            "seed": self.plan.seed,
        }
        if (joules := self.service.meters.joules()) is not None and self._joules is not None:
            figures["joules"] = joules - self._joules
        return {"usage": self.usage, "metrics": figures}


def chosen(plan: Plan, results: Sequence[GenerationResult]) -> Iterator[tuple[int, Piece]]:
    """(index, choice), `n` of each prompt: beams, texts in order of their seeds, or the best of them."""
    for place in range(len(plan.prompts)):
        mine = results[place * plan.each : (place + 1) * plan.each]
        if plan.each > plan.n:
            mine = sorted(mine, key=lambda one: -sum(one.logprobs) / max(1, len(one.logprobs)))[: plan.n]
        yield from enumerate((piece for result in mine for piece in answers.pieces(result)), place * plan.n)


async def answered(work: Work, form: Form, head: dict[str, Any], echoed: Sequence[Piece] = ()) -> Response:
    """The whole answer."""
    async with asyncio.timeout(work.service.settings.request_seconds):
        results = await work.finish()
    closing, found = work.closing, list(chosen(work.plan, results))
    if echoed:
        found = [(index, answers.joined(echoed[index // work.plan.n], piece)) for index, piece in found]

    def document() -> dict[str, Any]:
        choices = [form.choice(index, piece) for index, piece in found]
        return {**head, "object": form.object, "choices": choices, **closing}

    return await work.service.answers.answer(document, sum(piece.size for _, piece in found))


async def streamed(
    work: Work, form: Form, head: dict[str, Any], options: StreamOptions | None, echoed: Sequence[Piece] = ()
) -> AsyncIterator[str]:
    """Server-sent events: chunks as they come, then usage if it is asked for. `work` has begun."""
    usage = bool(options and options.include_usage)
    continuous = usage and bool(options and options.continuous_usage_stats)
    start = "data: " + json.dumps({**head, "object": form.chunk})[:-1] + ', "choices": ['
    begun: set[int] = set()
    left = work.plan.generations
    deltas = deltas_of(work)

    def chunk(index: int, piece: Piece, more: str = "") -> str:
        first = index not in begun
        begun.add(index)
        if first and echoed:
            piece = answers.joined(echoed[index // work.plan.n], piece)
        if usage:
            more += f', "usage": {json.dumps(work.usage if continuous else None)}'
        return f"{start}{json.dumps(form.delta(index, piece, first))}]{more}}}\n\n"

    try:
        async with asyncio.timeout(work.service.settings.request_seconds), aclosing(work.events()) as batches:
            async for events in batches:
                new: list[tuple[int, Piece, str]] = []
                for place, event in events:
                    left -= event.result is not None
                    found = deltas(place, event)
                    for i, (index, piece) in enumerate(found):
                        last = not left and i == len(found) - 1 and not usage
                        more = f', "metrics": {json.dumps(work.closing["metrics"])}' if last else ""
                        if piece.text or piece.finish or piece.tokens:
                            new.append((index, piece, more))
                size = sum(piece.size for _, piece, _ in new)
                size += sum(echo.size for echo in echoed) * (len(begun) < work.plan.generations)
                lines = await work.service.answers.write(partial("".join, starmap(chunk, new)), size)
                if lines:
                    yield lines
        if usage:
            yield f"{start}], {json.dumps(work.closing)[1:]}\n\n"
        yield "data: [DONE]\n\n"
    except Exception as error:
        told = work.service.told(error)
        if told.status == 500:
            log.exception("a request failed while it was streamed")
        yield f"data: {json.dumps(told.document)}\n\n"


Deltas = Callable[[int, StreamEvent], list[tuple[int, Piece]]]


def deltas_of(work: Work) -> Deltas:
    """What turns an event of a generation into the next parts of its choices, (index, part)."""
    return (_beams if work.plan.beams else _texts)(work)


def _texts(work: Work) -> Deltas:
    """Each generation is a choice."""

    def deltas(place: int, event: StreamEvent) -> list[tuple[int, Piece]]:
        finish = None if event.result is None else answers.REASONS[event.result.finish_reason]
        before = work.generations[place].request.prompt
        return [
            (place, Piece(event.text, event.tokens, event.logprobs, event.round.top_logprobs, finish, before=before))
        ]

    return deltas


def _beams(work: Work) -> Deltas:
    """A generation's hypotheses are choices: what they agree in grows as the first one, the others come at the end."""
    shown = [(0, 0)] * work.plan.generations  # characters and tokens

    def deltas(place: int, event: StreamEvent) -> list[tuple[int, Piece]]:
        first, (characters, tokens) = place * work.plan.n, shown[place]
        if event.result is None:
            shown[place] = characters + len(event.text), tokens + len(event.tokens)
            before = work.generations[place].request.prompt
            return [(first, Piece(event.text, event.tokens, event.logprobs, event.round.top_logprobs, before=before))]
        found = answers.pieces(event.result)
        best = found[0]
        found[0] = Piece(
            best.text[characters:],
            best.tokens[tokens:],
            best.logprobs[tokens:],
            best.top[tokens:],
            best.finish,
            best.more,
            best.before,
        )
        return [(first + i, piece) for i, piece in enumerate(found)]

    return deltas
