"""Ctrl-C as a wish: the first one ends the decoding after the present round, the second one ends the program."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While entered, `wanted()` says whether SIGINT arrived; what was generated so far can still be shown."""

    def __init__(self) -> None:
        self._wanted = False
        self._before: Any = None

    def wanted(self) -> bool:
        return self._wanted

    def __enter__(self) -> Interrupt:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, or someone else's
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._wanted:
            raise KeyboardInterrupt
        self._wanted = True
