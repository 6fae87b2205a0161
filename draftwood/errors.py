"""Every error that a user can cause or meet, each with one sentence that names the fix.

DraftwoodError
  ├ ConfigurationError   an unknown or impossible setting
  ├ ModelError           a model that cannot be loaded or does not fit
  ├ RequestError         a prompt or limit that cannot be served
  ├ NonFiniteError       NaN or infinity where probabilities should be
  ├ OutOfMemory          keys and values that find no memory
  │   └ OverBudget       more of them than `kv_cache_bytes` allows
  └ Overloaded           a queue that is full
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DraftwoodError(Exception):
    """Base of all errors raised on purpose."""


class ConfigurationError(DraftwoodError, ValueError):
    """An unknown or impossible setting."""


class ModelError(DraftwoodError):
    """A model that cannot be loaded, or models that do not fit together."""


class RequestError(DraftwoodError, ValueError):
    """A prompt or limit that cannot be served."""


class NonFiniteError(DraftwoodError, ArithmeticError):
    """NaN or infinity where probabilities should be."""


class OutOfMemory(DraftwoodError, MemoryError):
    """Keys and values that find no memory."""


class OverBudget(OutOfMemory):
    """Keys and values need more than `kv_cache_bytes`, whatever the machine could give."""


class Overloaded(DraftwoodError):
    """The queue is full: a request is refused now, and may be asked again later."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean x?)' for the nearest known word, else the list of known words."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {near[0]!r}?)" if near else f" (known: {', '.join(known)})"
