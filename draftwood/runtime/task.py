"""One request in the scheduler: decoding code that yields runs, and what came of it that nobody has taken yet."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from draftwood.runtime.executor import Pending
from draftwood.runtime.session import Answer, Decoding, Event, Run, Session

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Task(Generic[Event]):
    """A request: `events` are added by the thread that steps, and taken by the one that waits for them."""

    start: Callable[[], Decoding[Event]]
    sessions: Sequence[Session]
    prompt: int  # tokens
    most: int  # slots that it may hold at once in the end
    notify: Callable[[], object] | None = None  # told of each event and of the end, from the thread that steps
    adapts: bool = False  # whether it drafts by the load
    behind: Callable[[], tuple[float, int]] = lambda: (0.0, 0)  # seconds before it can draft, tokens that may come
    call: object = field(default_factory=object)  # stands for who asked for it, with others maybe: calls share alike
    events: deque[Event] = field(default_factory=deque)
    error: BaseException | None = None
    done: bool = False  # set when all else is: there are no more events, and the memory is given back
    cancelled: bool = False
    running: bool = False  # among those that share the forwards
    run: Run | None = None
    pending: Pending | None = None
    drafted: bool = False  # whether it has drafted since the target answered it last
    verified: int = 1  # rows of its last target run
    served: int = 0  # number of the pass that answered it last
    took: float = 0.0  # seconds of its last step from an answer to the next run
    preempted: int = 0  # times that it was put back
    lost: bool = False  # whether what its run needs of other runs is gone
    _decoding: Decoding[Event] | None = None

    def advance(self, answer: Answer | None) -> bool:
        """Go on until the next run, or the end: False. Raises what the request raises. In inference mode."""
        self.run, self.pending, self.lost = None, None, False
        if self._decoding is None:
            self._decoding = self.start()
            wish = next(self._decoding, None)
        else:
            try:
                wish = self._decoding.send(answer)
            except StopIteration:
                wish = None
        while wish is not None and not isinstance(wish, Run):
            self.events.append(wish)
            self.tell()
            wish = next(self._decoding, None)
        self.run = wish
        if wish is not None and not wish.drafts:
            self.verified = len(wish.nodes)
        return wish is not None

    def tell(self) -> None:
        """Notify whoever waits; nobody may be there any more."""
        if self.notify is not None:
            try:
                self.notify()
            except Exception:
                log.debug("nobody was there to be told of a request", exc_info=True)

    def end(self, error: BaseException | None = None) -> None:
        """Give back what it holds; after an error nothing that it computed is left to others."""
        self.run, self.pending, self.error = None, None, self.error or error
        try:
            if error is not None:
                for session in self.sessions:
                    session.forget()
            if self._decoding is not None:
                self._decoding.close()
            for session in self.sessions:
                session.close()
        except Exception as problem:
            self.error = self.error or problem

    def finish(self) -> None:
        """It is over."""
        self.running, self.done = False, True
        self.tell()
        self.notify = None

    @property
    def speculates(self) -> bool:
        """Whether it drafts, has drafted since the target answered it last, or might have."""
        return self.drafted or self.adapts or (self.run is not None and self.run.drafts)

    @property
    def own(self) -> int:
        """Rows that it asks the target for, or would if it did not draft."""
        if self.run is None:
            return 0
        return len(self.run.forest.live) if self.speculates else len(self.run.nodes)

    @property
    def stuck(self) -> bool:
        """Whether it has begun but wishes for nothing, or is not wanted any more: it cannot go on."""
        return self.cancelled or (self.run is None and self._decoding is not None)

    def put_back(self) -> None:
        """Give all memory back; what the next run needs is computed anew."""
        self.prompt = max(self.prompt, self.held)
        self.lost = self.run is not None and self.run.leans
        self.pending = None
        self.running = False
        self.preempted += 1
        for session in self.sessions:
            session.forget()

    @property
    def held(self) -> int:
        """Slots that it holds, in the largest of its sessions."""
        return max((session.live_slots for session in self.sessions), default=0)

    def bytes(self, slots: int) -> int:
        """What so many slots take in all of its sessions."""
        return sum(session.slot_bytes * session.cache.capacity(slots) for session in self.sessions)
