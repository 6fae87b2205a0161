"""The server on Ray Serve: replicas, each with an engine behind the server's application, and a front for all of them.

The front hands a request over as it is, so that keys, limits, errors and streams are the application's own. It adds
what needs several replicas: the prompt's blocks for the router, another try where a replica died before anything was
sent, the end of a stream that broke, metrics of all, and draining.
"""

# without `from __future__ import annotations`: Ray Serve hands FastAPI methods whose types must be no strings
import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ConfigDict
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.responses import Response
from starlette.types import Message

from draftwood.cluster.metrics import CombinedMetrics
from draftwood.cluster.relay import Call, FrontLoad, RelayedResponse
from draftwood.cluster.routing import PrefixRouter
from draftwood.cluster.spec import ServeSpec
from draftwood.serve.app import create_app
from draftwood.serve.asgi import full_answer, messages, scope_of
from draftwood.serve.errors import RETRY_AFTER, ApiError, error_response
from draftwood.serve.service import Service
from draftwood.util import config

log = logging.getLogger(__name__)

APPLICATION_NAME = "draftwood"
REPLICA_SECONDS = 10.0  # for a replica to answer what all are asked
DRAIN_POLL_SECONDS = 0.05  # between looks at whether all requests have ended
BROADCAST_PATHS = {  # paths that concern all replicas -> paths that each is asked for
    "/metrics": "/metrics",
    "/metrics/replicas": "/metrics",
    "/reset_prefix_cache": "/reset_prefix_cache",
}


class Replica:
    """An engine, and the server's application."""

    def __init__(self, spec: dict[str, Any]) -> None:
        made = ServeSpec.model_validate(spec)
        self.app = create_app(made.engine(), made.server, made.method)
        self.service: Service = self.app.state.service
        self.name: str = serve.get_replica_context().replica_id.unique_id

    async def stream(self, call: Call, body: bytes, blocks: list[int]) -> AsyncGenerator[Message, None]:
        """The messages that the application sends, as they come. `blocks` are for the router."""
        async for message in messages(self.app, scope_of(*call), body):
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-replica", self.name.encode())]
            yield message

    async def answer(self, call: Call, body: bytes) -> tuple[str, int, bytes]:
        """The replica's name, and the status and the body of its answer."""
        return self.name, *await full_answer(self.app, scope_of(*call), body)

    def end(self) -> None:
        """End the streams that go on as long as the server does."""
        self.service.draining.set()

    def check_health(self) -> None:
        """Ray Serve replaces a replica whose engine is broken."""
        if self.service.async_engine.broken:
            raise RuntimeError(f"the engine is broken: {self.service.async_engine.broken}")


api = FastAPI(title="draftwood", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)


@serve.ingress(api)
class Front:
    """Hands requests to replicas."""

    def __init__(self, replicas: DeploymentHandle, spec: dict[str, Any]) -> None:
        self.replicas, self.settings = replicas, ServeSpec.model_validate(spec).server
        self.load = FrontLoad()

    @api.api_route("/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
    async def handle(self, request: Request) -> Response:
        """Any request."""
        path, is_post = request.url.path, request.method == "POST"
        if self.load.draining and (is_post or path == "/ready"):
            return error_response(
                ApiError(503, "the server is about to end and takes no more requests", headers=RETRY_AFTER)
            )
        try:
            body = await self._body(request)
        except ApiError as error:
            return error_response(error)
        call = request.method, path, request.url.query.encode(), list(request.headers.raw)
        if path in BROADCAST_PATHS:
            return await self._broadcast(call, body)
        return RelayedResponse(self.replicas, call, body, self.load)

    async def _body(self, request: Request) -> bytes:
        body, limit = bytearray(), self.settings.max_body
        try:
            async with asyncio.timeout(self.settings.client_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > limit:
                        raise ApiError(413, f"the body has more than {limit:,} bytes, the most that are taken")
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time") from None
        return bytes(body)

    async def _broadcast(self, call: Call, body: bytes) -> Response:
        """Ask all replicas, and combine their answers into one as of a single server."""
        method, path, query, headers = call
        try:
            answers = self.replicas.broadcast("answer", (method, BROADCAST_PATHS[path], query, headers), body)
            result = await answers.results_async(timeout_s=REPLICA_SECONDS)
        except (RayError, RayServeException, TimeoutError) as error:
            log.warning("a replica does not answer: %s", error)
            return error_response(ApiError(503, "a replica does not answer; ask again", headers=RETRY_AFTER))
        wrong = next((answer for answer in result if answer[1] != 200), None)
        if wrong is not None or not path.startswith("/metrics"):
            _, status, content = wrong or result[0]
            return Response(content, status, media_type="application/json")
        texts = {name: content.decode() for name, _, content in sorted(result)}
        text = CombinedMetrics(texts, each=path != "/metrics").text()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def drain(self) -> int:
        """Take no more requests, and wait for those that run; how many were left when the time was over."""
        self.load.draining = True
        until = asyncio.get_running_loop().time() + self.settings.drain_seconds
        while self.load.busy and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        await self.replicas.broadcast("end").results_async(timeout_s=REPLICA_SECONDS, return_exceptions=True)
        return self.load.busy


class Autoscaling(AutoscalingConfig):
    """Ray Serve's options, all of them known."""

    model_config = ConfigDict(extra="forbid")


def application(args: ServeSpec) -> serve.Application:
    """The application for `serve run` and serve.yaml, whose `args` are fields of `ServeSpec`.

    Raises ConfigurationError for options of autoscaling that Ray Serve does not take.
    """
    config.parse(Autoscaling, args.autoscaling, "autoscaling")
    plain = args.model_dump(mode="json")
    ongoing = int(args.models.get("max_running", 64)) + int(args.models.get("max_queued") or 256)
    how: dict[str, Any] = {
        "name": "Replica",
        "ray_actor_options": args.resources,
        "max_ongoing_requests": 2 * ongoing,  # above, the engine itself says that its queue is full
        "graceful_shutdown_timeout_s": args.server.drain_seconds,
        "graceful_shutdown_wait_loop_s": 0.2,
        "max_constructor_retry_count": 3,
        "request_router_config": RequestRouterConfig(
            request_router_class=PrefixRouter, request_router_kwargs={"unbalanced": args.unbalanced}
        ),
    }
    how |= {"autoscaling_config": args.autoscaling} if args.autoscaling else {"num_replicas": args.replicas}
    front: dict[str, Any] = {
        "name": "Front",
        "ray_actor_options": {"num_cpus": 0},
        "max_ongoing_requests": args.server.max_connections,
        "graceful_shutdown_timeout_s": args.server.drain_seconds,
        "graceful_shutdown_wait_loop_s": 0.2,
    }
    replicas = serve.deployment(Replica).options(**how).bind(plain)
    return serve.deployment(Front).options(**front).bind(replicas, plain)
