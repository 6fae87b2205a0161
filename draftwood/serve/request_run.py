"""The execution of one HTTP request for text: its generations, their events, results, usage and figures."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from draftwood.engine.async_engine import AsyncBatch, Prepare
from draftwood.engine.engine import StreamEvent
from draftwood.engine.generation import Generation
from draftwood.engine.results import GenerationResult
from draftwood.serve import answers
from draftwood.serve.request_mapping import RequestPlan
from draftwood.serve.service import Service


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
            prompts = [await service.read(prompt) for prompt in plan.prompts]  # once, however many texts continue it
            await service.compile(plan.options)
            self._batch = service.async_engine.together(plan.requests(prompts), self._prepare)
        await self._batch.begin()
        self._started = True

    async def events(self) -> AsyncGenerator[Iterator[tuple[int, StreamEvent]], None]:
        """Batches of (index of the generation, event) as they come; an event counts in the metrics when it is taken."""
        try:
            await self.start()
            assert self._batch is not None
            async for events in self._batch:
                yield self._counted(events, time.perf_counter())
        finally:
            await self.aclose()

    def _counted(self, events: list[tuple[int, StreamEvent]], now: float) -> Iterator[tuple[int, StreamEvent]]:
        metrics = self.service.metrics
        for index, event in events:
            first = not self._last_event[index]
            metrics.round(event.round, now - (self._last_event[index] or self.start_time), first)
            self._last_event[index] = now
            self.token_counts[index] += len(event.tokens)
            if event.result is not None:
                self.results[index] = event.result
                self.token_counts[index] = answers.token_count(event.result)
                metrics.finished(event.result, now - self.start_time)
            yield index, event

    async def aclose(self) -> None:
        """Cancel the generations that have not ended."""
        if self._batch is not None:
            await self._batch.aclose()
        if self._started:
            self._started = False
            self.service.metrics.aborted(len(self.results) - len(self.finished))
            self.logged |= {key: self.usage[key] for key in ("prompt_tokens", "completion_tokens")}

    async def finish(self) -> list[GenerationResult]:
        """Run to the end and return all results."""
        async for events in self.events():
            for _ in events:
                pass
        return self.finished

    @property
    def finished(self) -> list[GenerationResult]:
        """The results so far."""
        return [result for result in self.results if result is not None]

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
