"""The native library for CPUs and its C interface (native/src/abi.h).

It is a package of its own, draftwood-native; what is not there, or does not fit, runs by PyTorch.
"""

from __future__ import annotations

import ctypes
import logging
from ctypes import c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache

from torch import Tensor

from draftwood.errors import ConfigurationError, ModelError, OutOfMemory

ABI_VERSION = 17
log = logging.getLogger(__name__)


@cache
def library() -> ctypes.CDLL | str:
    """The loaded library, or a sentence that says why it cannot be used."""
    try:
        from draftwood_native import library as where

        lib = ctypes.CDLL(str(where()))
    except ImportError:
        return "draftwood-native is not installed; pip install ./native builds it where there is a C++ compiler"
    except OSError as error:
        return f"draftwood-native cannot be loaded ({error}); install it again"
    if getattr(lib, "dw_version", lambda: 0)() != ABI_VERSION:  # first: an older one may lack functions
        reason = "draftwood-native is of another version than draftwood; install it again: pip install ./native"
        log.warning("%s. PyTorch runs until then, which is slower.", reason)  # it was meant to be used
        return reason
    lib.dw_error.restype = lib.dw_kernels.restype = lib.dw_runnable.restype = c_char_p
    lib.dw_matrix.restype = lib.dw_model.restype = c_void_p
    lib.dw_matrix.argtypes = [c_int, c_int64, c_int64, c_void_p, c_int, c_void_p, c_int]
    lib.dw_matrix_grouped.restype = c_void_p
    lib.dw_matrix_grouped.argtypes = [c_int, c_int64, c_int64, *[c_void_p] * 5, c_int]
    lib.dw_matrix_stored.restype = c_void_p
    lib.dw_matrix_stored.argtypes = [c_void_p, c_int, c_int64, c_void_p, c_int]
    lib.dw_matrix_rows.argtypes = [c_void_p, c_int64, c_void_p, c_void_p, c_int]
    lib.dw_matrix_bytes.restype, lib.dw_matrix_bytes.argtypes = c_size_t, [c_void_p]
    lib.dw_matrix_apply.argtypes = [c_void_p, c_int64, c_void_p, c_void_p, c_int]
    lib.dw_model.argtypes = [c_void_p, c_int]
    lib.dw_model_part.argtypes = [c_void_p, c_int, c_void_p]
    lib.dw_forward.argtypes = [c_void_p, c_void_p]
    lib.dw_matrix_order.argtypes = [c_void_p, c_void_p]
    lib.dw_model_recurrence.argtypes = [c_void_p, c_int, c_void_p, c_void_p]
    lib.dw_forward_walks.argtypes = [c_void_p, c_void_p, c_void_p]
    lib.dw_model_embedding_norm.argtypes = [c_void_p, c_void_p, c_void_p]
    lib.dw_model_entry.argtypes = [c_void_p, c_void_p]
    lib.dw_model_tokens.argtypes = [c_void_p, c_void_p, c_int64, c_float]
    lib.dw_softmax.argtypes = [c_int64, c_int64, c_void_p, c_float, c_void_p]
    lib.dw_block_sums.argtypes = [c_int64, c_int64, c_void_p, c_void_p]
    lib.dw_draws.argtypes = [c_int64, c_void_p, c_int64, c_void_p, c_void_p]
    lib.dw_draw_logits.restype = c_int64
    lib.dw_draw_logits.argtypes = [c_int64, c_void_p, c_int64, c_float, c_double, c_void_p]
    lib.dw_shares.argtypes = [c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_float, *[c_void_p] * 3]
    lib.dw_shares_all.argtypes = [c_int64, c_int64, c_int, c_void_p, c_float, *[c_void_p] * 3]
    places = (c_int64, c_void_p, c_void_p)
    lib.dw_shares_draws.argtypes = [c_int64, c_int64, c_int, c_void_p, c_float, *[c_void_p] * 3, *places, *places]
    lib.dw_excess.restype = c_double
    lib.dw_excess.argtypes = [c_int64, c_void_p, c_void_p, c_float, c_int64, c_void_p]
    lib.dw_leading.argtypes = [c_int64, c_int64, c_void_p, c_int64, c_void_p, c_void_p]
    lib.dw_matrix_free.argtypes = lib.dw_model_free.argtypes = [c_void_p]
    lib.dw_matrix_free.restype = lib.dw_model_free.restype = None
    if not lib.dw_kernels():
        able = lib.dw_runnable().decode().replace(" ", ", ")
        return f"DRAFTWOOD_KERNELS names no kernel set that this processor can run; it can run {able}"
    return lib


def unavailable() -> str | None:
    """A sentence that says why the library cannot be used; None where it can."""
    loaded = library()
    return loaded if isinstance(loaded, str) else None


def kernels() -> tuple[str, list[str]]:
    """The name of the kernel set in use, and of all that this processor can run, the best first."""
    lib = loaded_library()
    return lib.dw_kernels().decode(), lib.dw_runnable().decode().split()


def loaded_library() -> ctypes.CDLL:
    loaded = library()
    if isinstance(loaded, str):
        raise ConfigurationError(f"the native backend is not there: {loaded}")
    return loaded


def check(failed: bool) -> None:
    if failed:
        reason = loaded_library().dw_error().decode()
        raise (OutOfMemory if reason == "out of memory" else ModelError)(f"the native backend failed: {reason}")


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
