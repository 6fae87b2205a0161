"""The worker thread of an engine: it alone steps the scheduler, for threads, event loops and batches alike.

Whoever wants something puts it into the scheduler's inbox and waits for its own requests only: one hand-over for a
request whose result is wanted, one for each round that a stream shows. The thread begins with the first request and
ends with the engine: it keeps nothing alive while it rests, and a process that ends waits for its step, not for the
requests. A forked process begins a thread of its own.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from time import sleep
from typing import Any, TypeVar

import torch

from draftwood.errors import DraftwoodError
from draftwood.runtime.scheduler import IN_A_STEP, Scheduler
from draftwood.runtime.session import Event
from draftwood.runtime.task import DecodingTask
from draftwood.runtime.threads import use_threads
from draftwood.util.resident import give_back

T = TypeVar("T")
Inbox = SimpleQueue[Callable[[], object] | None]

log = logging.getLogger(__name__)

REST_SECONDS = 1.0  # without requests, or behind the end of an engine, after which free memory goes back to the system
EXIT_SECONDS = 10.0  # that the process waits at its end for a step
FORKED = "this process was forked while requests ran, so their models and caches are of no use here; load them again"


class Driver:
    """Steps a scheduler while there are requests. All methods may be called from any thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closing = False  # the process ends
        self._failure: BaseException | None = None
        self._compute_threads = 0  # of PyTorch, as the thread has them that asked last
        _DRIVERS.add(self)

    @property
    def broken(self) -> str | None:
        """The reason why nothing can be computed any more, which only another engine mends; None: all is well."""
        return None if self._failure is None else str(self._failure) or type(self._failure).__name__

    def submit(self, task: DecodingTask[Any]) -> None:
        """Queue a request. Raises RequestError where it can never fit, Overloaded where the queue is full."""
        self.enter(task)
        self.queue([task])

    def enter(self, task: DecodingTask[Any]) -> None:
        """Count a request that is about to be queued; raises what `submit` does."""
        if threading.current_thread() is self._thread:
            raise DraftwoodError(IN_A_STEP)
        if self.broken:
            raise DraftwoodError(f"the engine is broken: {self.broken}; start another process")
        self.scheduler.enter(task)

    def queue(self, tasks: Sequence[DecodingTask[Any]]) -> None:
        """Queue requests that have entered; they may begin in one step, and share its passes."""
        self._compute_threads = torch.get_num_threads()
        self._start()
        self.scheduler.queue(tasks)

    def cancel(self, task: DecodingTask[Any], error: BaseException | None = None) -> None:
        """End a request when the step under way is through, with `error` if there is one; see `Scheduler.cancel`."""
        self.scheduler.cancel(task, error)
        if self._thread is None:  # it did not begin, since Ctrl-C came first: nobody steps
            with self._starting:
                if self._thread is None:
                    self.scheduler.receive()

    def events(self, task: DecodingTask[Event], each: bool = True) -> Generator[Event, None, None]:
        """Submit a request and yield its events: each as it comes, or all of them when it has ended.

        Raises what ended the request. Closing the generator, or an exception such as Ctrl-C, cancels it.
        """
        woken: SimpleQueue[None] = SimpleQueue()
        task.wake, task.wake_each = partial(woken.put, None), each
        try:
            self.submit(task)
            yield from task.drain(woken.get)
        finally:
            self.cancel(task)

    def outcomes(self, tasks: Sequence[DecodingTask[Event]]) -> Generator[Event, None, None]:
        """Submit tasks with one event each, and yield these events in the order of the tasks; errors as in `events`."""
        woken: SimpleQueue[None] = SimpleQueue()
        try:
            for task in tasks:
                task.wake, task.wake_each = partial(woken.put, None), False
                self.enter(task)
            self.queue(tasks)
            for task in tasks:
                while not task.done:
                    woken.get()
                if task.error is not None:
                    raise task.error
                yield task.events.popleft()
        finally:
            for task in tasks:
                self.cancel(task)

    def call(self, work: Callable[[], T]) -> T:
        """Do some work between two steps, when all that was asked for before is done; returns what it returns."""
        if threading.current_thread() is self._thread:
            return work()
        with self._starting:
            if self._thread is None:  # nobody steps
                self.scheduler.receive()
                return work()
        result: Future[T] = Future()
        self.scheduler.inbox.put(partial(_fulfil, result, work))
        return result.result()

    def _start(self) -> None:
        """Begin the thread, if there is none."""
        if self._thread is not None:
            return
        with self._starting:
            if self._closing:
                raise DraftwoodError("the process ends, so nothing can be computed any more")
            if self._thread is None:
                inbox = self.scheduler.inbox
                self._thread = threading.Thread(
                    target=_work, args=(weakref.ref(self), inbox), name="draftwood", daemon=True
                )
                try:
                    self._thread.start()
                except BaseException:  # Ctrl-C: the thread sees that it is not wanted
                    self._thread = None
                    raise
                weakref.finalize(self, inbox.put, None).atexit = False

    def _serve(self, message: Callable[[], object] | None) -> None:
        """In the worker: do what the message asks for, and step until no request is left."""
        try:
            if message is not None:
                message()
            while self.scheduler.has_work and not self._closing:
                use_threads(self._compute_threads)
                try:
                    self.scheduler.step()
                except (SystemExit, KeyboardInterrupt, GeneratorExit):  # of a callback, whose request has ended
                    log.exception("a callback raised what would end the process")
        except BaseException as error:  # the scheduler ends requests, not itself: it is broken
            log.exception("the thread that computes has failed")
            self._failure = self._failure or error
        if self._failure is not None:
            self.scheduler.fail(self._failure)

    def _close(self) -> None:
        """Have the thread end after its step, and none begin."""
        with self._starting:
            self._closing = True
        self.scheduler.inbox.put(None)

    def _after_fork(self) -> None:
        """In a forked process, which has none of the threads: begin anew, unless requests were under way."""
        if self._thread is not None and self.scheduler.busy:
            self._failure = DraftwoodError(FORKED)
        self._thread, self._starting = None, threading.Lock()
        self.scheduler.after_fork()


def _work(reference: weakref.ref[Driver], inbox: Inbox) -> None:
    """The worker: waits for messages; between them it holds no driver, whose end is a message too."""
    driver = reference()
    if driver is None:
        return
    with driver._starting:
        wanted = driver._thread is threading.current_thread()
    del driver
    rested = True  # whether free memory went back since there was work
    while wanted:
        try:
            message = inbox.get(timeout=None if rested else REST_SECONDS)
        except Empty:
            give_back()
            rested = True
            continue
        driver = reference()
        if driver is None:  # the engine is gone; its memory is free when the collection that found it is through
            sleep(REST_SECONDS)
            give_back()
            return
        driver._serve(message)
        rested, wanted = False, not driver._closing
        del driver, message


def _fulfil(result: Future[T], work: Callable[[], T]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:
        result.set_exception(error)


_DRIVERS: weakref.WeakSet[Driver] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """Before the interpreter goes: a thread that computes meanwhile would crash it."""
    drivers = list(_DRIVERS)
    for driver in drivers:
        driver._close()
    for driver in drivers:
        if driver._thread is not None:
            driver._thread.join(EXIT_SECONDS)


def _after_fork() -> None:
    for driver in list(_DRIVERS):
        driver._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
