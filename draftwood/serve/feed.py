"""Rounds of a request as they happen, for whoever knows its id and listens since before it began; and the load.

Each round is what `explain --html` shows of it, with p, q and the fate of every draft.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from draftwood.engine import StreamEvent
from draftwood.explain.judging import Recorder
from draftwood.explain.page import BEFORE, round_document
from draftwood.explain.terminal import method_label
from draftwood.explain.text import Words
from draftwood.explain.tree import FATES, Grower
from draftwood.generation import Generation

BEHIND = 4096  # events that a listener may lag behind

Queue = asyncio.Queue[str | None]


class Feed:
    """Who listens to which request."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self._queues: dict[str, set[Queue]] = {}

    async def listen(self, request_id: str) -> AsyncIterator[str]:
        """Server-sent events of the requests of an id that begin from now on, until the first of them is over."""
        queue: Queue = asyncio.Queue(BEHIND)
        self._queues.setdefault(request_id, set()).add(queue)
        try:
            yield ": listening\n\n"
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._queues[request_id].discard(queue)
            if not self._queues[request_id]:
                del self._queues[request_id]

    def follow(self, request_id: str) -> Watch:
        """What tells those who listen to a request of it; it costs nothing where nobody does."""
        return Watch(self, list(self._queues.get(request_id, ())))


class Watch:
    """Tells listeners of the generations of one request."""

    def __init__(self, feed: Feed, queues: list[Queue]) -> None:
        self._feed, self._queues = feed, queues
        self._seen: list[_Seen] = []

    def prepare(self, generation: Generation) -> None:
        """The next generation is about to begin: have its verdicts recorded."""
        if not self._queues:
            return
        seen = _Seen(generation, self._feed.words)
        self._seen.append(seen)
        self._tell("start", len(self._seen) - 1, seen.about())

    def round(self, place: int, event: StreamEvent) -> None:
        """A generation has made a round; the last one brings the result."""
        if not self._queues:
            return
        seen = self._seen[place]
        self._tell("round", place, {"text": event.text, **seen.round(event)})
        if (result := event.result) is not None:
            beams = [{"text": beam.text, "score": beam.score} for beam in result.beams]
            end = {
                "finish": result.finish_reason,
                "text": result.text,
                "beams": beams,
                "metrics": result.metrics.as_dict(),
            }
            self._tell("end", place, end)

    def close(self) -> None:
        """The request is over."""
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)
        self._queues = []

    def _tell(self, kind: str, place: int, what: dict[str, Any]) -> None:
        data = json.dumps({"generation": place, **what}, ensure_ascii=False)
        for queue in list(self._queues):
            if queue.full():  # it does not read: it hears no more
                self._queues.remove(queue)
            else:
                queue.put_nowait(f"event: {kind}\ndata: {data}\n\n")


class _Seen:
    """One generation's rounds."""

    def __init__(self, generation: Generation, words: Words) -> None:
        self._generation, self._words = generation, words
        self._recorder = generation.verify = Recorder(generation.verify)
        self._before = list(generation.request.prompt)
        self._grower = Grower([(self._before[-1],)])
        self._count = 0

    def about(self) -> dict[str, Any]:
        """What is known before the first round."""
        request = self._generation.request
        return {
            "method": method_label(request.method.as_dict()),
            "lossless": request.method.lossless,
            "greedy": request.params.greedy,
            "seed": request.seed,
            "prompt": [self._words([token]) for token in request.prompt[-BEFORE:]],
            "shortened": len(request.prompt) > BEFORE,
            "fates": {name: fate.meaning for name, fate in FATES.items()},
        }

    def round(self, event: StreamEvent) -> dict[str, Any]:
        """The next round."""
        judgement = self._recorder.judgements[self._count]
        self._count += 1
        tree = self._grower.tree(event.round, judgement)
        found = round_document(tree, judgement, self._before, self._words, self._generation.request.end_tokens)
        self._before += event.round.tokens
        return found
