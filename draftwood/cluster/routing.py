"""The router for Ray Serve: requests go to the replica that has computed the beginning of their prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from draftwood.cluster.prefix_routing import InFlight, PrefixLocations


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


def _blocks(request: PendingRequest | None) -> Sequence[int]:
    return () if request is None else request.kwargs.get("blocks") or ()
