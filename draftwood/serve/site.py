"""The page at /, and what it needs to know beside the API."""

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

ALLOW = {"allow": "GET, HEAD"}
PROMPT = "Story: In Corfe there lived a sailor called"
DOMAINS = {
    "stories": "a story",
    "qa": "questions",
    "summaries": "a summary",
    "sql": "SQL",
    "math": "arithmetic",
    "code": "Python",
}


class Files(StaticFiles):
    """Files of a directory; of what there is none of, none is found, whatever is asked of it."""

    async def get_response(self, path: str, scope: Message) -> Response:
        try:
            return await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code == 405 and self.lookup_path(path)[1] is not None:
                raise HTTPException(405, f"{scope['path']} takes GET, HEAD, not {scope['method']}", ALLOW) from None
            raise HTTPException(404, f"there is no {scope['path'][:80]}; /openapi.json lists what there is") from None


def about(app: FastAPI, service: Service) -> None:
    """Add what the page asks for first: version, models, prompts, and the viewer in which it shares runs."""

    @app.get("/page.json", include_in_schema=False)
    def page_json() -> dict[str, Any]:
        models, found = service.public.value(service.engine.names), prompts(service.engine)
        return {"version": __version__, "models": models, "prompts": found, "viewer": page.template()}


def mount(app: FastAPI) -> None:
    """Add the page's files; to be called when all other routes are there, since it answers every other path."""
    app.mount("/viewer", Files(directory=str(page.VIEWER)))
    app.mount("/", Files(directory=str(files("draftwood.serve") / "page"), html=True))


def prompts(engine: Engine) -> list[dict[str, str]]:
    """Prompts of documents of the embedded corpus that no model was trained on; none for other models."""
    from draftwood.corpus import documents

    if not is_embedded(engine.names.get("target")):
        return []
    found = [
        {"label": label, "prompt": next(documents(domain, "held-out")).prompt} for domain, label in DOMAINS.items()
    ]
    return [{"label": "a sailor", "prompt": PROMPT}, *found]
