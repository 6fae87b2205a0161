"""The ASGI middleware of all requests: checks host, origin, key, size and time, and adds an id, a log line, a span."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwood.serve.errors import RETRY_AFTER, ApiError, ClientGone, ServerEnded, error_response
from draftwood.serve.front import Front
from draftwood.serve.settings import ServeSettings

try:
    from opentelemetry.trace import get_current_span
except ModuleNotFoundError:
    get_current_span = None  # type: ignore[assignment]

log = logging.getLogger("draftwood.serve.access")

REQUEST_ID = re.compile(r"[\w.:-]{1,128}")
PATHS_WITHOUT_KEY = {"/health", "/ready", "/version"}
MAX_UNREAD_BYTES = 64 << 20  # bytes that are read off a body that was refused
ANY_CONTENT_TYPE = ("/api/", "/completion", "/infill", "/apply-template")  # paths whose clients name none, or another
JSON = (b"content-type", b"application/json")
CLOSE_CONNECTION = {"connection": "close"}
SPAN_ATTRIBUTES = {  # what the log says of a request -> its name in OpenTelemetry
    "request_id": "draftwood.request_id",
    "speculation": "draftwood.speculation",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
}
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
]


class RequestBody:
    """Hands on what `receive` gives, up to the body's end; behind it only a disconnect comes."""

    def __init__(self, receive: Receive, headers: Mapping[str, str], settings: ServeSettings) -> None:
        self._receive, self._settings = receive, settings
        self._until: float | None = None  # the body has to be there
        self._size = 0
        self._over = not {"content-length", "transfer-encoding"} & headers.keys()
        self._asks = headers.get("expect", "").lower() == "100-continue"  # whether it is to be sent

    async def receive(self) -> Message:
        """The next part; HTTPException where the body is late or too long."""
        if self._over:
            return await self._receive()
        self._asks = False
        try:
            async with asyncio.timeout_at(self._deadline()):
                message = await self._next()
        except TimeoutError:
            raise HTTPException(408, "the body did not arrive in time", CLOSE_CONNECTION) from None
        if self._size > self._settings.max_body:
            raise self.too_large()
        return message

    @property
    def unread(self) -> bool:
        """True while the client may still be sending the body."""
        return not self._over and not self._asks and self._size <= MAX_UNREAD_BYTES

    async def discard_rest(self) -> None:
        """Read what is left of the body: a connection that is closed before is reset, and the answer with it."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline()):
                while self.unread:
                    await self._next()

    def too_large(self) -> HTTPException:
        """The error of a body that is too long."""
        sentence = f"the body has more than {self._settings.max_body:,} bytes, the most that are taken"
        return HTTPException(413, sentence, CLOSE_CONNECTION)

    def _deadline(self) -> float:
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self._settings.client_seconds
        return self._until

    async def _next(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        self._over = not message.get("more_body", False)
        return message


class RequestMiddleware:
    """Wraps the application; `methods_of` gives the HTTP methods of a path of the API, of others none."""

    def __init__(self, app: ASGIApp, service: Front, methods_of: Callable[[str], Collection[str]]) -> None:
        self.app, self.service, self._methods = app, service, methods_of
        self._keys = [hashlib.sha256(key.encode()).digest() for key in service.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        logged: dict[str, Any] = {}
        scope.setdefault("state", {}).update(request_id=request_id, logged=logged, head=scope["method"] == "HEAD")
        method, path = scope["method"], scope["path"]
        taken = self._methods(path)
        counted = method == "POST" and bool(taken)
        began, status = time.perf_counter(), 0
        span = None if get_current_span is None else get_current_span()
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
                if span is not None:
                    facts = {"request_id": request_id, **logged}
                    span.set_attributes({SPAN_ATTRIBUTES[key]: facts[key] for key in SPAN_ATTRIBUTES.keys() & facts})
                if body.unread and not self.service.ended:
                    await send({**message, "more_body": True})
                    await body.discard_rest()
                    message = {"type": message["type"]}
            await send(message)

        try:
            self._check(scope, headers, body)
            self.service.busy += counted
            try:
                read = {**scope, "method": "GET"} if method == "HEAD" and taken else scope
                if path.startswith(ANY_CONTENT_TYPE):
                    read = {**read, "headers": [*(one for one in read["headers"] if one[0] != b"content-type"), JSON]}
                await self.app(read, body.receive, answer)
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

    def _check(self, scope: Scope, headers: dict[str, str], body: RequestBody) -> None:
        settings, path = self.service.settings, scope["path"]
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if settings.hosts and name not in settings.hosts:
            raise ApiError(400, f"this server does not answer for the host {name[:80]!r}; its --allowed-host can")
        origin = headers.get("origin")
        if (
            origin is not None
            and origin.partition("://")[2].lower() != host
            and not {origin, "*"} & set(settings.allowed_origin)
        ):
            raise ApiError(403, f"pages of {origin[:80]} may not ask this server; its --allowed-origin says who")
        taken = self._methods(path)
        if taken and scope["method"] not in taken and (scope["method"] != "HEAD" or "GET" not in taken):
            allow = ", ".join(sorted(taken))
            raise ApiError(405, f"{path} takes {allow}, not {scope['method']}", headers={"allow": allow})
        if path in PATHS_WITHOUT_KEY:
            return
        if scope["state"].get("crowded"):
            crowd = f"the server has its {settings.max_connections} connections; ask again"
            raise ApiError(503, crowd, headers={**RETRY_AFTER, "connection": "close"})
        if not taken:
            return
        given = headers.get("authorization") or f"Bearer {headers.get('x-api-key', '')}"
        if self._keys and not self._has_key(given):
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer KEY, or as x-api-key: KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        if self.service.draining.is_set() and scope["method"] == "POST":
            raise ApiError(503, "the server is about to end and takes no more requests", headers=RETRY_AFTER)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 20 or int(length) > settings.max_body:
            raise body.too_large()

    def _has_key(self, authorization: str) -> bool:
        """Compare a header with all keys, in a time that does not depend on which of them it carries."""
        scheme, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._keys]
        return scheme.lower() == "bearer" and any(matches)

    def _log(self, facts: dict[str, Any]) -> None:
        if self.service.settings.log_json:
            log.info(json.dumps(facts))
        else:
            log.info(
                " ".join(f"{key}={value!r}" if key == "prompt" else f"{key}={value}" for key, value in facts.items())
            )
