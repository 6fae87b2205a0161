"""One HTTP request for text carried out: its generations, their events and choices, its figures, its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from draftwood.engine.async_engine import AsyncBatch, Prepare
from draftwood.engine.engine import StreamEvent
from draftwood.engine.generation import Generation
from draftwood.engine.results import GenerationResult
from draftwood.serve import answers
from draftwood.serve.answers import FINISH_REASONS, Piece, pieces
from draftwood.serve.errors import ClientGone
from draftwood.serve.request_mapping import RequestPlan
from draftwood.serve.service import Service

T = TypeVar("T")

STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}  # for the API's schema


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, which is cancelled with ClientGone when the client goes away, as `receive` says."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done() or doing.cancelled():  # by a time limit, while the client was waited for
            raise ClientGone
        return doing.result()
    finally:
        for task in (doing, gone):
            task.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)


class RequestRun:
    """The generations of one HTTP request: events as they come, results at the end.

    `logged` receives what the server's log says about the request. `prepare` is called with each generation before it
    is queued.
    """

    def __init__(
        self, service: Service, plan: RequestPlan, logged: dict[str, Any], prepare: Prepare | None = None
    ) -> None:
        self.service, self.plan, self.logged, self.prepare = service, plan, logged, prepare
        logged["speculation"] = plan.method.name
        if service.settings.log_prompts:
            logged["prompt"] = plan.prompts[0] if len(plan.prompts) == 1 else list(plan.prompts)
        self.start_time = time.perf_counter()
        self.results: list[GenerationResult | None] = [None] * plan.generations
        self.generations: list[Generation] = []
        self.token_counts = [0] * plan.generations  # of each generation so far; of beams the tokens that all share
        self._batch: AsyncBatch | None = None
        self._last_event: list[float] = [0.0] * plan.generations
        self._beams = plan.beams
        self._sent = [(0, 0)] * plan.generations  # of beams: characters and tokens of the first that were parts so far
        self._joules = service.metrics.joules()
        self._started = False  # and its end is not counted yet

    def _prepare(self, generation: Generation) -> None:
        self.generations.append(generation)
        if self.prepare is not None:
            self.prepare(generation)

    async def start(self) -> None:
        """Queue all generations; raises what is wrong with the request."""
        if self._batch is None:
            service, plan = self.service, self.plan
            # once each, however many texts continue it
            prompts = [await service.read(prompt, None, plan.variables) for prompt in plan.prompts]
            await service.compile(plan.options)
            self._batch = service.async_engine.together(plan.requests(prompts), self._prepare)
        await self._batch.begin()
        self._started = True

    async def start_for(self, request: Request) -> None:
        """Start; all is closed where that fails or the client goes away meanwhile."""
        try:
            await unless_gone(request.receive, self.start())
        except BaseException:
            await self.aclose()
            raise

    async def events(self) -> AsyncGenerator[list[tuple[int, StreamEvent]], None]:
        """Batches of (index of the generation, event) as they come, counted in the metrics."""
        try:
            await self.start()
            assert self._batch is not None
            async for events in self._batch:
                self._count(events, time.perf_counter())
                yield events
        finally:
            await self.aclose()

    def _count(self, events: list[tuple[int, StreamEvent]], now: float) -> None:
        metrics = self.service.metrics
        for index, event in events:
            first = not self._last_event[index]
            metrics.round(event.round, now - (self._last_event[index] or self.start_time), first)
            self._last_event[index] = now
            self.token_counts[index] += len(event.tokens)
            if event.result is not None:
                self.results[index] = event.result
                beams = event.result.beams  # of which all tokens count
                self.token_counts[index] = sum(len(beam.tokens) for beam in beams) or len(event.result.tokens)
                metrics.finished(event.result, now - self.start_time)

    async def aclose(self) -> None:
        """Cancel the generations that have not ended."""
        if self._batch is not None:
            await self._batch.aclose()
        if self._started:
            self._started = False
            self.service.metrics.aborted(len(self.results) - len(self.finished))
            self.logged |= {key: self.usage[key] for key in ("prompt_tokens", "completion_tokens")}

    async def finish(self) -> None:
        """Run to the end."""
        async for _ in self.events():
            pass

    @property
    def over(self) -> bool:
        """Whether all generations have ended."""
        return None not in self.results

    @property
    def finished(self) -> list[GenerationResult]:
        """The results so far."""
        return [result for result in self.results if result is not None]

    def choices(self) -> Iterator[tuple[int, Piece]]:
        """(index, choice), `n` for each prompt: beams, texts in the order of their seeds, or the best of the texts."""
        plan = self.plan
        for prompt in range(len(plan.prompts)):
            mine: Sequence[GenerationResult] = self.finished[prompt * plan.each : (prompt + 1) * plan.each]
            if plan.each > plan.n:
                mine = sorted(mine, key=lambda one: -sum(one.logprobs) / max(1, len(one.logprobs)))[: plan.n]
            yield from enumerate((piece for result in mine for piece in pieces(result)), prompt * plan.n)

    def deltas(self, index: int, event: StreamEvent) -> list[tuple[int, Piece]]:
        """The next parts of choices, (index, part), which an event of a generation brings.

        The hypotheses of a beam method are choices: the first grows by what all share, the others come at the end.
        """
        if event.result is None or not self._beams:
            if self._beams:
                characters, tokens = self._sent[index]
                self._sent[index] = characters + len(event.text), tokens + len(event.tokens)
            finish = None if event.result is None else FINISH_REASONS[event.result.finish_reason]
            before = self.generations[index].request.prompt
            part = Piece(event.text, event.tokens, event.logprobs, event.round.top_logprobs, finish, before=before)
            return [(index * self.plan.n if self._beams else index, part)]
        characters, tokens = self._sent[index]
        best, *others = pieces(event.result)
        text, top = best.text[characters:], best.top[tokens:]
        rest = replace(best, text=text, tokens=best.tokens[tokens:], logprobs=best.logprobs[tokens:], top=top)
        return list(enumerate((rest, *others), index * self.plan.n))

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens so far: of the prompts, each counted once, and all that was generated for them."""
        each, prompt_tokens, cached = self.plan.each, 0, 0
        for first in range(0, len(self.generations), each):
            siblings = self.generations[first : first + each]
            prompt_tokens += len(siblings[0].request.prompt)
            cached += min(one.target.reused for one in siblings)  # the others have it from the one that computed it
        return answers.usage(prompt_tokens, sum(self.token_counts), cached)

    @property
    def summary(self) -> dict[str, Any]:
        """Usage and figures of the whole request, as the end of an answer has them."""
        figures: dict[str, Any] = {
            "speculative_decoding": answers.speculation(self.finished),
            "method": self.plan.method.name,
            "seed": self.plan.seed,
        }
        if (joules := self.service.metrics.joules()) is not None and self._joules is not None:
            figures["joules"] = joules - self._joules
        return {"usage": self.usage, "metrics": figures}


class EventStream(Response):
    """Server-sent events, which end when the client goes away; so does the run that they tell of, started or not."""

    def __init__(
        self, events: AsyncIterator[str], run: RequestRun | None = None, media_type: str = "text/event-stream"
    ) -> None:
        super().__init__(media_type=media_type, headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._events, self._run = events, run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGone):
                await unless_gone(receive, self._send(send, bool(scope.get("state", {}).get("head"))))
        finally:
            if self._run is not None:
                await self._run.aclose()

    async def _send(self, send: Send, head: bool) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            if not head:
                async for text in self._events:
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            if isinstance(self._events, AsyncGenerator):
                await self._events.aclose()
