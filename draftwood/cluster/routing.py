"""Requests go to the replica that knows how their prompt begins: a router for Ray Serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from draftwood.prefixes import Prefixes


class PrefixRouter(RequestRouter):
    """Prefers replicas as `Prefixes` does, by the keyword argument `blocks` of a call; calls without go anywhere."""

    def initialize_state(self, unbalanced: int = 8) -> None:
        """Ray Serve hands over `request_router_kwargs`."""
        self.prefixes = Prefixes(unbalanced)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """All replicas, in the order in which they are tried: those that are full are passed over."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # where all are full
        found = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        queues = {name: self.replica_queue_len_cache.get(replica.replica_id) or 0 for name, replica in found.items()}
        return [[found[name]] for name in self.prefixes.ranked(_blocks(pending_request), queues)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """A replica has taken a request."""
        self.prefixes.note(_blocks(pending_request), replica_id.unique_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """What it had computed is gone."""
        super().on_replica_actor_died(replica_id)
        self.prefixes.forget(replica_id.unique_id)


def _blocks(request: PendingRequest | None) -> Sequence[int]:
    return () if request is None else request.kwargs.get("blocks") or ()
