"""The router of the engines' pools: it keeps a search's calls on one replica, unless that is far busier than the rest.

A replica caches the paths that it has worked on: a generator their KV, a reward model their KV and rewards. Serve's
default router sends a call to the less busy of two replicas, so a search of ten rounds would have its paths computed
again on every replica.

The router runs in every process that has a handle: the controllers. It uses private parts of Ray 2.60: the call as the
router sees it, the matching of pending calls to replicas, and the callbacks at a call's start and end.
"""

import random
from typing import Any, NamedTuple

from ray.serve._private.common import ReplicaID, RequestMetadata
from ray.serve._private.request_router.common import PendingRequest
from ray.serve._private.request_router.replica_wrapper import RunningReplica
from ray.serve._private.request_router.request_router import RequestRouter

from deployments.scaling.homes import Homes


class RoutedCall(NamedTuple):
    """The fields of a call that the router uses."""

    search_id: str
    avoid: tuple[str, ...] = ()
    """Actor ids of replicas to avoid; see `deployments.calls.envelope`."""
    alone: bool = False
    """Whether the call has its engine alone."""


def asked(call: PendingRequest | None) -> RoutedCall | None:
    """The search of a call; None for a call without one, such as a canary."""
    args: list[Any] = [] if call is None else call.args
    request, envelope, *_ = (*args, None, None)
    search_id = getattr(request, "search_id", None)
    if not isinstance(search_id, str):
        return None
    return RoutedCall(search_id, getattr(envelope, "avoid", ()), getattr(envelope, "alone", False))


class CallMatching:
    """Mixin: a chosen replica goes to the call for which it was chosen.

    Serve matches pending calls by the id of their HTTP request. A search makes several calls at once under one id, and
    all but one of them would wait forever.
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
    """Sends a search's calls to its home (`deployments.scaling.homes`).

    A call that has the engine alone goes to the replica with the lowest id, whichever controller makes it: two such
    calls meet there, and the second one waits for the first.

    It counts only the open calls of this process. Serve knows the calls of all processes only for replicas that it has
    asked within ten seconds, and for a call without a stream only as of its start.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._homes: Homes[str] = Homes()
        self._candidates: list[RunningReplica] = []
        self._there: dict[str, RunningReplica] = {}
        self._calls: dict[str, int] = {}
        """Number of this process's open calls at each current replica."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The search's home, then two random replicas. Serve tries these if the home is full or does not answer."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        any_two = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        call = asked(pending_request)
        if call is None or not candidate_replicas:
            return [any_two]  # Serve takes the less busy one
        if candidate_replicas is not self._candidates:  # Serve makes a new list when replicas come or go
            self._candidates = candidate_replicas
            self._there = {each.replica_id.unique_id: each for each in candidate_replicas}
            self._calls = {name: self._calls.get(name, 0) for name in self._there}
        avoid = {name for name, each in self._there.items() if each.actor_id.hex() in call.avoid} if call.avoid else ()
        if call.alone:
            return [[self._there[min(self._there, key=lambda name: (name in avoid, name))]]]
        return [[self._there[self._homes.choose(call.search_id, self._calls, avoid)]], any_two]

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        if (name := replica_id.unique_id) in self._calls:
            self._calls[name] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        super().on_request_completed(replica_id, internal_request_id)
        if self._calls.get(name := replica_id.unique_id):
            self._calls[name] -= 1
