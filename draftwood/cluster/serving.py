"""The server on Ray Serve: replicas, each with an engine behind the server's application, and a front for all of them.

The router prefers the replica that has computed the beginning of a prompt. The front hands a request over as it is, so
that keys, limits, errors and streams are the application's own. It adds what needs several replicas: the prompt's
blocks for the router, another try where a replica died before anything was sent, the end of a stream that broke,
metrics of all, and draining.
"""

# without `from __future__ import annotations`: Ray Serve hands FastAPI methods whose types must be no strings
import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ConfigDict
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from draftwood.cluster.metrics import CombinedMetrics
from draftwood.cluster.prefix_routing import InFlight, PrefixLocations, blocks_of
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


MAX_ATTEMPTS = 3  # on different replicas, as long as the client was sent nothing
REPLICA_ENDED = "the replica that computed this has ended; ask again"

Call = tuple[str, str, bytes, list[tuple[bytes, bytes]]]  # method, path, query and headers of a request


def _blocks(request: PendingRequest | None) -> Sequence[int]:
    return () if request is None else request.kwargs.get("blocks") or ()


class PrefixRouter(RequestRouter):
    """Prefers replicas as `PrefixLocations` does, by the argument `blocks` of a call; calls without it go anywhere.

    It counts requests from the moment it chooses a replica. The queue lengths that replicas report leave out requests
    that have not arrived yet, so by them a burst of requests would be spread by chance.
    """

    def initialize_state(self, unbalanced: int = 8) -> None:
        """Ray Serve hands over `request_router_kwargs`."""
        self.prefixes = PrefixLocations(unbalanced)
        self.in_flight = InFlight()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """All replicas, in the order in which they are tried: those that are full are passed over."""
        request = pending_request.metadata.internal_request_id if pending_request else ""
        queues = self.in_flight.queues(request)
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        ranked = self.prefixes.ranked(_blocks(pending_request), {name: queues[name] for name in replicas})
        if pending_request and ranked:
            pending_request.routing_context.should_backoff = True  # where all are full
            self.in_flight.chosen(request, ranked[0], pending_request.future)
        return [[replicas[name]] for name in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """A replica has taken a request."""
        self.in_flight.taken(pending_request.metadata.internal_request_id, replica_id.unique_id)
        self.prefixes.add(_blocks(pending_request), replica_id.unique_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """A request is over, or a replica did not take it."""
        self.in_flight.over(internal_request_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget what the replica had computed."""
        super().on_replica_actor_died(replica_id)
        self.prefixes.forget(replica_id.unique_id)


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
        if self.service.broken:
            raise RuntimeError(f"the engine is broken: {self.service.broken}")


@dataclass(slots=True)
class FrontLoad:
    """The state of a front."""

    draining: bool = False
    busy: int = 0  # requests that are being worked on


class RelayedResponse(Response):
    """The answer of a replica, passed on as it comes."""

    def __init__(self, replicas: DeploymentHandle, call: Call, body: bytes, load: FrontLoad) -> None:
        super().__init__()
        self.replicas, self.call, self.request_body, self.load = replicas, call, body, load
        self.counted = call[0] == "POST"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.load.busy += self.counted
        try:
            await self._relay(send)
        finally:
            self.load.busy -= self.counted

    async def _relay(self, send: Send) -> None:
        blocks = blocks_of(self.request_body) if self.counted else []
        head: Message | None = None  # what was sent of the answer
        for _ in range(MAX_ATTEMPTS):
            answer = self.replicas.options(method_name="stream", stream=True).remote(
                self.call, self.request_body, blocks=blocks
            )
            start: Message = {}
            try:
                async for message in answer:
                    if message["type"] == "http.response.start":
                        start = message
                        continue
                    if head is None:
                        await send(head := start)
                    await send(message)
                return
            except (RayError, RayServeException) as error:
                log.warning("a replica ended during %s: %s", self.call[1], error)
                if head is not None:
                    break
            finally:
                answer.cancel()
        if head is None:
            await error_response(ApiError(503, REPLICA_ENDED, headers=RETRY_AFTER))({}, None, send)  # type: ignore[arg-type]
        elif (b"content-type", b"text/event-stream; charset=utf-8") in head["headers"]:
            await send({"type": "http.response.body", "body": stream_error(self.call[1]), "more_body": False})
        else:
            raise ConnectionError(REPLICA_ENDED)  # the connection is cut, so that nobody takes a part for the whole


def stream_error(path: str) -> bytes:
    """The event that ends a stream whose replica died, in the form of its endpoint; [DONE] does not come."""
    document = ApiError(503, REPLICA_ENDED, code="replica_ended").document
    if path == "/v1/responses":
        return f"event: error\ndata: {json.dumps({'type': 'error', **document['error']})}\n\n".encode()
    return f"data: {json.dumps(document)}\n\n".encode()


api = FastAPI(title="draftwood", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)


@serve.ingress(api)
class RayFront:
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
    return serve.deployment(RayFront).options(**front).bind(replicas, plain)
