"""Certificates that a method is as exact as it claims: by enumeration, samples, greedy text and real positions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwood.certify.checks import Budget, Check
    from draftwood.certify.report import Certificate, Report, Watch, certify, certify_each, every_method

__all__ = ["Budget", "Certificate", "Check", "Report", "Watch", "certify", "certify_each", "every_method"]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used: budgets are read without torch."""
    if name in __all__:
        home = "checks" if name in ("Budget", "Check") else "report"
        return getattr(import_module(f"draftwood.certify.{home}"), name)
    raise AttributeError(f"module 'draftwood.certify' has no attribute {name!r}")
