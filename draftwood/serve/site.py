"""The page at /, and the data that it needs beside the API's."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from draftwood import __version__
from draftwood.engine.embedded_hint import is_embedded
from draftwood.engine.engine import Engine
from draftwood.explain import page
from draftwood.serve.asgi import Message
from draftwood.serve.service import Service

ALLOWED_METHODS = {"allow": "GET, HEAD"}
FIRST_PROMPT = "Story: In Corfe there lived a sailor called"
PROMPT_LABELS = {
    "stories": "a story",
    "qa": "questions",
    "summaries": "a summary",
    "sql": "SQL",
    "math": "arithmetic",
    "code": "Python",
}


class PageFiles(StaticFiles):
    """Files of a directory; a path without a file is not found, whatever the HTTP method."""

    async def get_response(self, path: str, scope: Message) -> Response:
        try:
            return await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code == 405 and self.lookup_path(path)[1] is not None:
                raise HTTPException(
                    405, f"{scope['path']} takes GET, HEAD, not {scope['method']}", ALLOWED_METHODS
                ) from None
            raise HTTPException(404, f"there is no {scope['path'][:80]}; /openapi.json lists what there is") from None


def add_page_data(app: FastAPI, service: Service) -> None:
    """Add /page.json: version, models, prompts, and the viewer in which the page shares runs."""

    @app.get("/page.json", include_in_schema=False)
    def page_json() -> dict[str, Any]:
        models, found = service.public.value(service.engine.names), prompts(service.engine)
        return {"version": __version__, "models": models, "prompts": found, "viewer": page.template()}


def add_files(app: FastAPI) -> None:
    """Add the page's files; to be called when all other routes are there, since it answers every other path."""
    app.mount("/viewer", PageFiles(directory=str(page.VIEWER)))
    app.mount("/", PageFiles(directory=str(files("draftwood.serve") / "page"), html=True))


def prompts(engine: Engine) -> list[dict[str, str]]:
    """Prompts of documents of the embedded corpus that no model was trained on; none for other models."""
    from draftwood.corpus import documents

    if not is_embedded(engine.names.get("target")):
        return []
    found = [
        {"label": label, "prompt": next(documents(domain, "held-out")).prompt}
        for domain, label in PROMPT_LABELS.items()
    ]
    return [{"label": "a sailor", "prompt": FIRST_PROMPT}, *found]
