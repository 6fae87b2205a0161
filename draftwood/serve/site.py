"""The page at /, and what it needs to know beside the API."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from draftwood import __version__
from draftwood.engine import Engine
from draftwood.explain import page
from draftwood.foreign import is_embedded

PROMPT = "Story: In Corfe there lived a sailor called"
DOMAINS = {
    "stories": "a story",
    "qa": "questions",
    "summaries": "a summary",
    "sql": "SQL",
    "math": "arithmetic",
    "code": "Python",
}


def about(app: FastAPI, engine: Engine) -> None:
    """Add what the page asks for first: version, models, prompts, and the viewer in which it shares runs."""

    @app.get("/page.json", include_in_schema=False)
    def page_json() -> dict[str, Any]:
        return {"version": __version__, "models": engine.names, "prompts": prompts(engine), "viewer": page.template()}


def mount(app: FastAPI) -> None:
    """Add the page's files; to be called when all other routes are there, since it answers every other path."""
    app.mount("/viewer", StaticFiles(directory=str(page.VIEWER)))
    app.mount("/", StaticFiles(directory=str(files("draftwood.serve") / "page"), html=True))


def prompts(engine: Engine) -> list[dict[str, str]]:
    """Prompts of documents of the embedded corpus that no model was trained on; none for other models."""
    from draftwood.corpus import documents

    if not is_embedded(engine.names.get("target")):
        return []
    found = [
        {"label": label, "prompt": next(documents(domain, "held-out")).prompt} for domain, label in DOMAINS.items()
    ]
    return [{"label": "a sailor", "prompt": PROMPT}, *found]
