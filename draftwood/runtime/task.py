"""One request as the scheduler carries it out: its decoding code, where that stands, and the events nobody has read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Generic

from draftwood.errors import DraftwoodError
from draftwood.runtime.executor import PartialRun
from draftwood.runtime.session import Answer, Decoding, Event, Run, Session


@dataclass(slots=True, eq=False)
class DecodingTask(Generic[Event]):
    """A request's decoding code (`start` makes it), its sessions and its state.

    The thread that steps the scheduler writes all of it but `wake`, `wake_each` and `cancelled`. Whoever waits for the
    request takes `events` from the left; once `done` is set no event follows, and the memory is given back.
    """

    start: Callable[[], Decoding[Event]]
    sessions: Sequence[Session]
    first_slots: int  # cache slots that it needs to begin, or to begin again: the tokens of its prompt
    max_slots: int  # cache slots that it may hold at once in the end
    prompt: Sequence[int] = ()  # its tokens, where other tasks of its call may begin with the same
    priority: int = 0  # of waiting tasks those with the smallest one begin first
    reading_events: int = 1  # events after which its prompt is computed: heads read it in the second round
    follows_load: bool = False  # whether its drafts depend on how many requests run
    call: object = field(default_factory=object)  # requests with the same one share the machine with others as one
    wake: Callable[[], object] | None = None  # called by the thread that steps, when the request has ended
    wake_each: bool = True  # whether `wake` is called for new events too
    events: deque[Event] = field(default_factory=deque)
    error: BaseException | None = None  # what it ended with
    done: bool = False
    cancelled: bool = False
    running: bool = False  # whether it is among those that share the passes
    run: Run | None = None  # the model run that it waits for
    pending: PartialRun | None = None  # how far that run is computed
    events_made: int = 0
    has_news: bool = False  # whether it has had one that was not announced
    drafted: bool = False  # whether it has drafted since the target answered it last
    target_rows: int = 1  # rows of its last run of the target
    last_pass: int = 0  # number of the pass that completed its last run
    step_seconds: float = 0.0  # what its code last took from an answer to the next run
    preempted: int = 0  # how often it was put back for want of memory
    evicted: bool = False  # whether keys and values are gone that its run cannot do without
    _decoding: Decoding[Event] | None = None

    def advance(self, answer: Answer | None) -> bool:
        """Let the decoding code go on to its next run; False: it has ended. Raises what the code raises."""
        self.run, self.pending, self.evicted = None, None, False
        if self._decoding is None:
            self._decoding = self.start()
            yielded = next(self._decoding, None)
        else:
            try:
                yielded = self._decoding.send(answer)
            except StopIteration:
                yielded = None
        while yielded is not None and not isinstance(yielded, Run):
            self.events.append(yielded)
            self.events_made += 1
            self.has_news = True
            yielded = next(self._decoding, None)
        self.run = yielded
        if yielded is not None and not yielded.drafts:
            self.target_rows = len(yielded.nodes)
        return yielded is not None

    def announce(self) -> None:
        """Wake whoever waits for events of the request, if there are new ones."""
        if self.has_news:
            self.has_news = False
            if self.wake is not None and self.wake_each:
                self.wake()

    def end(self, error: BaseException | None = None) -> None:
        """Give back what the request holds; after an error nothing that it computed is left to other requests."""
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
        """Mark the request as over and wake whoever waits for it."""
        self.running, self.done = False, True
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()

    def drain(self, wait: Callable[[], object]) -> Generator[Event, None, None]:
        """The events until the end, of which `wait` waits for more; raises what ended the request."""
        done = False
        while not done:
            wait()
            done = self.done
            while self.events:
                yield self.events.popleft()
        if self.error is not None:
            raise self.error

    @property
    def has_read(self) -> bool:
        """Whether its prompt is computed, by what drafts too, if that reads it."""
        return self.events_made >= self.reading_events

    @property
    def speculates(self) -> bool:
        """Whether it drafts, has drafted since the target answered it last, or decides about drafts by the load."""
        return self.drafted or self.follows_load or (self.run is not None and self.run.drafts)

    @property
    def undrafted_rows(self) -> int:
        """Rows that it asks the target for, or would ask for if it did not draft."""
        if self.run is None:
            return 0
        return len(self.run.forest.live) if self.speculates else len(self.run.nodes)

    def put_back(self) -> None:
        """Give all memory back; what its run needs is computed again when the request runs again."""
        self.first_slots = max(self.first_slots, self.slots)
        self.evicted = self.run is not None and self.run.needs_cached_state
        self.pending = None
        self.running = False
        self.preempted += 1
        for session in self.sessions:
            session.forget()

    @property
    def slots(self) -> int:
        """Cache slots that hold tokens of it now, in the session that has most of them."""
        return max((session.live_slots for session in self.sessions), default=0)

    def bytes(self, slots: int) -> int:
        """Bytes that so many slots take in all of its sessions together."""
        return sum(session.bytes(slots) for session in self.sessions)


def interrupted(cause: BaseException) -> DraftwoodError:
    """The error of a request whose code raised what would end the process, such as SystemExit in a callback."""
    error = DraftwoodError(f"the request was interrupted: one of its callbacks raised {type(cause).__name__}")
    error.__cause__ = cause
    return error
