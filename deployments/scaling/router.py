"""The router of the engines' pools: it keeps a search's calls on one replica, unless that is far busier than the rest.

A replica knows the paths that it has worked on: the generator keeps their KV, a reward model that and their rewards.
Serve by itself sends a call to the less busy of two replicas, and a search of ten rounds reads its paths again on every
one of them.

It lives in every process that has a handle: a controller's. Private parts of Ray 2.60: what a router sees of a call,
how it is told which call it has found a replica for, and what becomes of calls.
"""

import random
from typing import Any, NamedTuple

from ray.serve._private.common import ReplicaID, RequestMetadata
from ray.serve._private.request_router.common import PendingRequest
from ray.serve._private.request_router.replica_wrapper import RunningReplica
from ray.serve._private.request_router.request_router import RequestRouter

from deployments.scaling.homes import Homes


class Asked(NamedTuple):
    """What a router goes by."""

    search_id: str
    avoid: tuple[str, ...] = ()
    """See `search.ports.ExpandRequest`: actors' ids."""


def asked(call: PendingRequest | None) -> Asked | None:
    """What a call says of its search; None of a canary and its like."""
    request = call.args[0] if call is not None and call.args else None
    search_id = getattr(request, "search_id", None)
    return Asked(search_id, getattr(request, "avoid", ())) if isinstance(search_id, str) else None


class CallMatching:
    """Makes a router answer the call that it was asked for.

    Serve finds a waiting call again by the id of the HTTP request that it came from. A search makes several at once;
    all but one of them would wait for good.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._waiting: dict[int, PendingRequest] = {}
        super().__init__(*args, **kwargs)

    def _add_pending_request_to_indices(self, call: PendingRequest) -> None:
        self._waiting[id(call.metadata)] = call

    def _remove_pending_request_from_indices(self, call: PendingRequest) -> None:
        self._waiting.pop(id(call.metadata), None)

    def _get_pending_request_matching_internal_request_id(
        self, metadata: RequestMetadata | None = None
    ) -> PendingRequest | None:
        call = self._waiting.get(id(metadata))
        return call if call is not None and not call.future.done() else None


class HomeRouter(CallMatching, RequestRouter):
    """A search's calls go to its home (`deployments.scaling.homes`).

    Of the calls at work it counts this process's own. What replicas tell of all is known to Serve only of those that
    it has asked within ten seconds, and of a call without a stream only as it was when that began.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._homes: Homes[str] = Homes()
        self._candidates: list[RunningReplica] = []
        self._there: dict[str, RunningReplica] = {}
        self._calls: dict[str, int] = {}
        """Of each replica that is there, by its name."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The search's home, and then any two. Serve goes on to these where the first is full or does not answer."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        any_two = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        call = asked(pending_request)
        if call is None or not candidate_replicas:
            return [any_two]  # the less busy one
        if candidate_replicas is not self._candidates:  # Serve makes a new list of those that there are
            self._candidates = candidate_replicas
            self._there = {each.replica_id.unique_id: each for each in candidate_replicas}
            self._calls = {name: self._calls.get(name, 0) for name in self._there}
        avoid = {name for name, each in self._there.items() if each.actor_id.hex() in call.avoid} if call.avoid else ()
        return [[self._there[self._homes.choose(call.search_id, self._calls, avoid)]], any_two]

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        if (name := replica_id.unique_id) in self._calls:
            self._calls[name] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        super().on_request_completed(replica_id, internal_request_id)
        if self._calls.get(name := replica_id.unique_id):
            self._calls[name] -= 1
