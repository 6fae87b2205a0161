"""A native library that does not fit the package."""

import ctypes
import sys
from types import ModuleType, SimpleNamespace

import pytest

from draftwood.util import native_library


def test_a_library_of_another_version_is_passed_over_with_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    package = ModuleType("draftwood_native")
    monkeypatch.setattr(package, "library", lambda: "libdraftwood.so", raising=False)
    monkeypatch.setitem(sys.modules, "draftwood_native", package)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: SimpleNamespace(dw_version=lambda: -1))
    reason = native_library.library.__wrapped__()
    assert reason == "draftwood-native is of another version than draftwood; install it again: pip install ./native"
    assert f"{reason}. PyTorch runs until then" in caplog.text
