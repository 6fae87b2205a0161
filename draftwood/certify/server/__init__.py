"""Certificates of other people's servers, by their answers alone: any server with OpenAI's protocol, on any engine."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwood.certify.server.budget import Limits, ServerBudget
    from draftwood.certify.server.client import Server
    from draftwood.certify.server.html import page
    from draftwood.certify.server.local import LocalModel
    from draftwood.certify.server.run import ServerCertificate, certify_server

HOMES = {
    "Limits": "budget",
    "ServerBudget": "budget",
    "Server": "client",
    "LocalModel": "local",
    "page": "html",
    "ServerCertificate": "run",
    "certify_server": "run",
}
__all__ = ["Limits", "LocalModel", "Server", "ServerBudget", "ServerCertificate", "certify_server", "page"]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used: budgets are read without torch."""
    if name in HOMES:
        return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
