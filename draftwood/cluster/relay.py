"""Responses that pass on a replica's answer as it comes, and try another replica where one dies."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from draftwood.cluster.prefix_routing import blocks_of
from draftwood.serve.errors import RETRY_AFTER, ApiError, error_response

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3  # on different replicas, as long as the client was sent nothing
REPLICA_ENDED = "the replica that computed this has ended; ask again"

Call = tuple[str, str, bytes, list[tuple[bytes, bytes]]]  # method, path, query and headers of a request


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
