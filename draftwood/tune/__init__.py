"""Finds the settings of a method that are fastest on this machine: `tune`, `plan` and `search_skip_sets`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwood.tune.planner import plan
    from draftwood.tune.settings import TuneSettings
    from draftwood.tune.skip_sets import search_skip_sets
    from draftwood.tune.tuning import Tuning, tune

__all__ = ["TuneSettings", "Tuning", "plan", "search_skip_sets", "tune"]

_HOMES = {"Tuning": "tuning", "tune": "tuning", "plan": "planner", "TuneSettings": "settings"}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used: settings are read without torch."""
    if name in __all__:
        return getattr(import_module(f"draftwood.tune.{_HOMES.get(name, 'skip_sets')}"), name)
    raise AttributeError(f"module 'draftwood.tune' has no attribute {name!r}")
