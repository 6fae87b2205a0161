"""draftwood: language models decode faster by speculation, and nothing is lost."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from draftwood.models.backend import environment

if TYPE_CHECKING:
    from draftwood.core.records import Round
    from draftwood.engine.async_engine import AsyncEngine
    from draftwood.engine.engine import Engine, StreamEvent
    from draftwood.engine.loading import load
    from draftwood.engine.metrics import Metrics
    from draftwood.engine.results import GenerationResult
    from draftwood.errors import (
        ConfigurationError,
        DraftwoodError,
        ModelError,
        NonFiniteError,
        OutOfMemory,
        Overloaded,
        RequestError,
    )
    from draftwood.methods import METHODS, Method
    from draftwood.models.tabular import TabularModel
    from draftwood.sampling.params import SamplingParams

__version__ = "0.1.0"

environment.prepare()

__all__ = [
    "METHODS",
    "AsyncEngine",
    "ConfigurationError",
    "DraftwoodError",
    "Engine",
    "GenerationResult",
    "Method",
    "Metrics",
    "ModelError",
    "NonFiniteError",
    "OutOfMemory",
    "Overloaded",
    "RequestError",
    "Round",
    "SamplingParams",
    "StreamEvent",
    "TabularModel",
    "load",
]

_HOMES = {
    "engine.async_engine": ("AsyncEngine",),
    "engine.engine": ("Engine", "StreamEvent"),
    "errors": (
        *("ConfigurationError", "DraftwoodError", "ModelError", "NonFiniteError"),
        *("OutOfMemory", "Overloaded", "RequestError"),
    ),
    "engine.loading": ("load",),
    "methods": ("METHODS", "Method"),
    "models.tabular": ("TabularModel",),
    "sampling.params": ("SamplingParams",),
    "core.records": ("Round",),
    "engine.metrics": ("Metrics",),
    "engine.request": ("Request",),
    "engine.results": ("GenerationResult",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `draftwood --help` does not wait for torch."""
    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"draftwood.{module}"), name)
            return value
    raise AttributeError(f"module 'draftwood' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
