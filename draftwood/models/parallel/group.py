"""The processes of a split decoder and what they send one another: orders, states, sums. gloo on CPUs, NCCL on GPUs.

On CPUs every process adds in the order of ranks, so that all have the same bits, and those of a row do not depend on
the number of rows. Within a forward a process waits for the others for FORWARD_TIMEOUT seconds at most; for the next
order a follower waits as long as the driver lives.
"""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.errors import DraftwoodError
from draftwood.models.base import Batch
from draftwood.models.cache import Cache, ChangeLog
from draftwood.models.modules import bytes_of
from draftwood.models.parallel.wire import ForwardOrder
from draftwood.models.partition import Parallel

dist: Any = torch.distributed  # it names what it gives to importers nowhere

FORWARD_TIMEOUT = 60.0  # seconds that a process waits for another one within a forward
ORDER_TIMEOUT = 365 * 24 * 3600.0  # seconds that a follower waits for orders
FORWARD_ORDER, HEAD_ORDER, END_ORDER = 1, 2, 3  # kinds of orders
HEADER_NUMBERS = 3  # that precede an order: its kind, how many numbers it has, and how many rows of states


class ProcessGroup(Parallel):
    """One of several processes that compute a decoder; they can communicate after `connect`."""

    def __init__(self, rank: int, size: int, device: torch.device, patience: float = FORWARD_TIMEOUT) -> None:
        self.rank, self.size, self.device, self.patience = rank, size, device, patience
        self.broken: str | None = None
        self.why: Callable[[], str | None] = lambda: None  # says which process ended, if one did
        self._lock = threading.Lock()
        self._caches = 0
        self._gone: list[int] = []
        self._waiting: Any = None  # process group for the headers of orders
        self._telling: Any = None  # for the numbers of orders
        self._working: Any = None  # for tensors of the model

    def connect(self, store: Any, loopback: bool = True) -> None:
        """Connect to the other processes, all of which must call it. `loopback`: all are on this machine."""

        def gloo(name: str, seconds: float) -> Any:
            kind, options = dist.ProcessGroupGloo, dist.ProcessGroupGloo._Options()
            options._timeout = timedelta(seconds=seconds)
            options._devices = [kind.create_device(hostname="127.0.0.1") if loopback else kind.create_default_device()]
            return kind(dist.PrefixStore(name, store), self.rank, self.size, options)

        self._waiting = gloo("waiting", self.patience if self.drives else ORDER_TIMEOUT)
        self._telling = gloo("telling", self.patience)
        self._working = self._telling
        if self.device.type == "cuda":
            nccl = dist.ProcessGroupNCCL
            options = nccl.Options()
            options._timeout = timedelta(seconds=self.patience)
            self._working = nccl(dist.PrefixStore("working", store), self.rank, self.size, options)
        self._telling.barrier().wait()  # nobody needs the store any more

    def sum(self, x: Tensor) -> Tensor:
        if not x.numel():
            return x
        if x.is_cuda:
            self._working.allreduce([x]).wait()
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._working.allgather([parts], [x.contiguous()]).wait()
        total = parts[0].to(torch.promote_types(x.dtype, torch.float32))
        for part in parts[1:]:
            total = total + part
        return total.to(x.dtype)

    def gather(self, x: Tensor, words: int) -> Tensor:
        if not len(x):
            return x.new_empty(0, words)
        widths = [part.stop - part.start for part in (self.words(words, rank) for rank in range(self.size))]
        padded = F.pad(x, (0, max(widths) - x.shape[-1])).contiguous()
        parts = [torch.empty_like(padded) for _ in widths] if self.drives else []
        options = dist.GatherOptions()
        options.rootRank = 0
        self._working.gather([parts] if parts else [], [padded], options).wait()
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], -1) if parts else x

    def change_log(self) -> ChangeLog | None:
        if not self.drives:
            return None
        self._caches += 1
        made = ChangeLog(self._caches)
        weakref.finalize(made, self._gone.append, made.cache)
        return made

    @contextmanager
    def together(
        self, batch: Batch, cache: Cache, x: Tensor, skipped: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> Iterator[None]:
        if not self.drives:
            yield
            return
        log = cache.change_log
        assert log is not None  # the decoder made the cache
        with self._lock, uninterrupted(), self._unbroken():
            order = ForwardOrder(batch, skipped, log.cache, list(log.changes), list(self._gone))
            self._tell(FORWARD_ORDER, order.numbers(), x)
            log.changes.clear()
            del self._gone[: len(order.gone)]
            yield

    def head(self, head: nn.Module, words: int) -> nn.Module:
        return SplitHead(self, head, words)

    def apart(self, head: nn.Module, words: int, x: Tensor) -> Tensor:
        """Compute the head alone: logits [n, words] of x [n, D], from the driver's part `head`; only in the driver."""
        with self._lock, uninterrupted(), self._unbroken():
            self._tell(HEAD_ORDER, torch.empty(0, dtype=torch.int64), x)
            return self.gather(head(x), words)

    def fail(self, reason: str) -> None:
        """Record why nothing can be computed any more, and wake the threads that wait for other processes."""
        self.broken = self.broken or reason
        if self.device.type == "cuda" and self._working is not None:  # gloo's connections break by themselves
            self._working.abort()

    def end(self) -> None:
        """Send the followers the last order, if they can still be reached; only in the driver."""
        if self._waiting is not None and self.broken is None and self._lock.acquire(timeout=1):
            try:
                self._send(self._waiting, torch.tensor([END_ORDER, 0, 0]))
            except RuntimeError:
                pass  # they are gone
            finally:
                self._lock.release()

    def receive_order(self, width: int, dtype: torch.dtype) -> tuple[int, Tensor, Tensor]:
        """Wait for the next order, in a follower: its kind, its numbers, and states [rows, width]."""
        facts = torch.empty(HEADER_NUMBERS, dtype=torch.int64)
        self._send(self._waiting, facts)
        kind, count, rows = facts.tolist()
        numbers, states = torch.empty(count, dtype=torch.int64), torch.empty(rows, width, dtype=dtype)
        states = states.to(self.device)
        self._send(self._telling, numbers)
        self._send(self._working, states)
        return kind, numbers, states

    def _tell(self, kind: int, numbers: Tensor, x: Tensor) -> None:
        self._send(self._waiting, torch.tensor([kind, len(numbers), len(x)]))
        self._send(self._telling, numbers)
        self._send(self._working, x.contiguous())

    @staticmethod
    def _send(group: Any, tensor: Tensor) -> None:
        """Broadcast a tensor of the driver; the others call it too, and receive into theirs."""
        if tensor.numel():
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = 0, 0
            group.broadcast([tensor], options).wait()

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """Mark the group as broken where the code inside fails: the processes would be out of step."""
        if self.broken is not None:
            raise DraftwoodError(f"{self.broken}; load the model again")
        try:
            yield
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self.broken = self.why() or f"the processes of tensor_parallel={self.size} are out of step ({reason})"
            self._waiting = self._telling = self._working = None  # the others are not left waiting
            if not isinstance(error, Exception):
                raise
            raise DraftwoodError(f"{self.broken}; load the model again") from error


class SplitHead(nn.Module):
    """The full head of a split decoder, for inputs outside of its forwards; only in the driver."""

    def __init__(self, group: ProcessGroup, part: nn.Module, words: int) -> None:
        super().__init__()
        self._group, self._words = group, words
        self._part = [part]  # in a list: it is borrowed, and not one of the parameters

    @property
    def weight_bytes(self) -> int:
        return bytes_of(self._part[0])

    def forward(self, x: Tensor) -> Tensor:
        return self._group.apart(self._part[0], self._words, x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the code inside is done, in the main thread; a second Ctrl-C interrupts it."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    if not callable(before):
        yield
        return
    signals: list[Sequence[Any]] = []

    def note(*given: Any) -> None:
        signals.append(given)
        if len(signals) > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if signals:
        before(*signals[0])
