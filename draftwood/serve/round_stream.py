"""A request told round by round as it happens: every draft with its fate, its p and its q. The page shows it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from draftwood.engine.embedded_hint import hint
from draftwood.engine.engine import StreamEvent
from draftwood.engine.generation import Generation
from draftwood.explain import page
from draftwood.explain.explanation import Recording
from draftwood.explain.tree import Grower
from draftwood.serve.service import Service, Work

log = logging.getLogger(__name__)

Event = tuple[str, dict[str, Any]]


class Telling:
    """The generations of a request, each told as ('start', ...), a ('round', ...) each and ('end', ...).

    Their contents are those of `explain.page`. Being told changes no text.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._told: list[_Told] = []

    def prepare(self, generation: Generation) -> None:
        """Have the next generation recorded, before it is queued."""
        self._told.append(_Told(self.service, generation))

    def starts(self) -> Iterator[Event]:
        """What is known before the first round."""
        for place, one in enumerate(self._told):
            yield "start", {"generation": place, **one.start()}

    def events(self, place: int, event: StreamEvent) -> Iterator[Event]:
        """What an event of a generation comes to."""
        yield "round", {"generation": place, **self._told[place].round(event)}
        if event.result is not None:
            yield "end", {"generation": place, **page.end(event.result)}


class _Told:
    """One generation."""

    def __init__(self, service: Service, generation: Generation) -> None:
        engine = self._engine = service.engine
        models = {**service.public.value(engine.names), "device": str(engine.target.device)}
        self._recording = Recording.of(generation, engine.tokenizer, models)
        self._before = list(generation.request.prompt)  # all tokens so far
        self._grower = Grower([generation.request.prompt[-1:]])
        self._rounds = 0

    def start(self) -> dict[str, Any]:
        recording = self._recording
        return {**page.start(recording.about, self._before, recording.words), "hint": hint(self._engine, self._before)}

    def round(self, event: StreamEvent) -> dict[str, Any]:
        recording, round_ = self._recording, event.round
        judgement, pieces = recording.judgements[self._rounds], recording.pieces(round_)
        tree, ends = self._grower.tree(round_, judgement), recording.generation.request.end_tokens
        found = page.round_document(tree, judgement, self._before, recording.words, ends, pieces)
        self._before += event.tokens
        self._rounds += 1
        return found


async def told(work: Work, telling: Telling) -> AsyncIterator[str]:
    """Server-sent events of a request that has begun; an `error`, in OpenAI's form, is the last one."""
    pool = work.service.answers

    def sent(place: int, event: StreamEvent) -> str:
        found = list(telling.events(place, event))
        if event.result is not None:
            found[-1][1]["joules"] = work.closing["metrics"].get("joules")
        return "".join(map(_sent, found))

    try:
        yield await pool.run(lambda: "".join(map(_sent, telling.starts())))
        async with asyncio.timeout(work.service.settings.request_seconds), aclosing(work.events()) as batches:
            async for batch in batches:
                for place, event in batch:
                    yield await pool.run(sent, place, event)
    except Exception as error:
        failed = work.service.told(error)
        if failed.status == 500:
            log.exception("a request failed while it was told")
        yield _sent(("error", failed.document))


def _sent(event: Event) -> str:
    name, data = event
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
