"""How many of PyTorch's threads compute: one between forwards, all of them in forwards.

PyTorch's threads spin after every operation that they share, for longer than the operations on a row of logits take,
and the threads of native forwards would wait for their cores. OpenMP keeps the number for each calling thread, so that
neither other threads of the process nor what it does between steps notice; `torch.set_num_threads` would also be the
number of every thread that begins meanwhile.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

_local = threading.local()  # .all: the threads that there were before `alone`, while it holds


@cache
def _setter() -> Callable[[int], Any] | None:
    """OpenMP's `omp_set_num_threads` as PyTorch has it; None where PyTorch does not count its threads by OpenMP."""
    beside = sorted(str(path) for path in (Path(torch.__file__).parent / "lib").glob("lib*omp*"))
    for name in (None, *beside):
        try:
            setter: Callable[[int], Any] = ctypes.CDLL(name).omp_set_num_threads
        except (OSError, AttributeError, TypeError):  # TypeError: Windows has no library of all libraries
            continue
        before = torch.get_num_threads()
        setter(before + 1)
        counted = torch.get_num_threads() == before + 1
        setter(before)
        if counted:
            return setter
    return None


def use_threads(count: int) -> None:
    """Have the operations of the calling thread computed by so many threads; 0, or no OpenMP: as it is."""
    if count and count != torch.get_num_threads() and (setter := _setter()) is not None:
        setter(count)


class alone:
    """In this block operations of the calling thread are computed by that thread alone."""

    __slots__ = ("_all", "_before", "_set")

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        self._set = _setter() if self._before > 1 else None
        if self._set is not None:
            self._all, _local.all = getattr(_local, "all", None), self._before
            self._set(1)

    def __exit__(self, *error: object) -> None:
        if self._set is not None:
            _local.all = self._all
            if torch.get_num_threads() == 1:  # else somebody chose another number meanwhile
                self._set(self._before)


class together:
    """In this block, inside of `alone`, all threads compute as before it."""

    __slots__ = ("_set",)

    def __enter__(self) -> None:
        many: int | None = getattr(_local, "all", None)
        self._set = _setter() if many is not None and torch.get_num_threads() == 1 else None
        if self._set is not None and many is not None:
            self._set(many)

    def __exit__(self, *error: object) -> None:
        if self._set is not None:
            self._set(1)
