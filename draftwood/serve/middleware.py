"""The ASGI middleware of all requests: checks host, origin, key and size, adds an id, writes the line in the log."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import Collection, Mapping
from typing import Any

from draftwood.serve import tracing
from draftwood.serve.asgi import App, Message, Receive, Send
from draftwood.serve.errors import RETRY_AFTER, ApiError, ClientGone, ServerEnded, error_response
from draftwood.serve.request_body import RequestBody
from draftwood.serve.service import Service

log = logging.getLogger("draftwood.serve.access")

REQUEST_ID = re.compile(r"[\w.:-]{1,128}")
PATHS_WITHOUT_KEY = {"/health", "/ready", "/version"}
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
]


class RequestMiddleware:
    """Wraps the application; `api` maps each path of the API to its HTTP methods, all other paths are the page's."""

    def __init__(self, app: App, service: Service, api: Mapping[str, Collection[str]]) -> None:
        self.app, self.service, self.api = app, service, api
        self._keys = [hashlib.sha256(key.encode()).digest() for key in service.keys]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        logged: dict[str, Any] = {}
        scope.setdefault("state", {}).update(request_id=request_id, logged=logged)
        method, path = scope["method"], scope["path"]
        counted = method == "POST" and path in self.api
        began, status, span = time.perf_counter(), 0, tracing.span()
        body = RequestBody(receive, headers, self.service.settings)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    *SECURITY_HEADERS,
                ]
            elif not message.get("more_body"):
                tracing.set_attributes(span, {"request_id": request_id, **logged})
                if body.unread and not self.service.ended:
                    await send({**message, "more_body": True})
                    await body.discard_rest()
                    message = {"type": message["type"]}
            await send(message)

        try:
            self._check(scope, headers, body)
            self.service.busy += counted
            try:
                await self.app(scope, body.receive, answer)
            finally:
                self.service.busy -= counted
        except ClientGone:
            status = 499
        except asyncio.CancelledError:
            if not self.service.ended:
                raise
            if not status:
                await error_response(self.service.client_error(ServerEnded()))(scope, receive, answer)
        except Exception as error:
            shown = self.service.logged_error(error, f"({request_id})")
            if not status:
                await error_response(shown)(scope, receive, answer)
        finally:
            facts = {"request_id": request_id, "method": method, "path": path, "status": status}
            facts |= {"ms": round(1000 * (time.perf_counter() - began), 1), **logged}
            self._log(facts)

    def _check(self, scope: Message, headers: dict[str, str], body: RequestBody) -> None:
        settings, path = self.service.settings, scope["path"]
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if settings.hosts and name not in settings.hosts:
            raise ApiError(400, f"this server does not answer for the host {name[:80]!r}; its --allowed-host can")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host and not self._allowed(origin):
            raise ApiError(403, f"pages of {origin[:80]} may not ask this server; its --allowed-origin says who")
        if path in self.api and scope["method"] not in self.api[path]:
            allow = ", ".join(sorted(self.api[path]))
            raise ApiError(405, f"{path} takes {allow}, not {scope['method']}", headers={"allow": allow})
        if path in PATHS_WITHOUT_KEY:
            return
        if scope["state"].get("crowded"):
            crowd = f"the server has its {settings.max_connections} connections; ask again"
            raise ApiError(503, crowd, headers={**RETRY_AFTER, "connection": "close"})
        if path not in self.api:
            return
        if self._keys and not self._has_key(headers.get("authorization", "")):
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        if self.service.draining.is_set() and scope["method"] == "POST":
            raise ApiError(503, "the server is about to end and takes no more requests", headers=RETRY_AFTER)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 20 or int(length) > settings.max_body:
            raise body.too_large()

    def _allowed(self, origin: str) -> bool:
        return bool({origin, "*"} & set(self.service.settings.allowed_origin))

    def _has_key(self, authorization: str) -> bool:
        """Compare a header with all keys, in a time that does not depend on which of them it carries."""
        scheme, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        found = [hmac.compare_digest(digest, known) for known in self._keys]
        return scheme.lower() == "bearer" and any(found)

    def _log(self, facts: dict[str, Any]) -> None:
        if self.service.settings.log_json:
            log.info(json.dumps(facts))
        else:
            log.info(
                " ".join(f"{key}={value!r}" if key == "prompt" else f"{key}={value}" for key, value in facts.items())
            )
