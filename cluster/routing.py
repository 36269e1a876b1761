"""The router of the engines' pools: it keeps a search's calls on one replica, unless that is far busier than the rest.

A replica knows the paths that it has worked on: the generator keeps their KV, a reward model that and their rewards.
Serve by itself sends a call to the less busy of two replicas, and a search of ten rounds reads its paths again on every
one of them.

It lives in every process that has a handle: a controller's. Private parts of Ray 2.60: what a router sees of a call,
how it is told which call it has found a replica for, and how many calls each replica has.
"""

from typing import Any, NamedTuple

from ray.serve._private.common import RequestMetadata
from ray.serve._private.request_router.common import PendingRequest
from ray.serve._private.request_router.replica_wrapper import RunningReplica
from ray.serve._private.request_router.request_router import RequestRouter

from cluster.homes import Homes, preferred


class Asked(NamedTuple):
    """What a router goes by."""

    search_id: str
    attempt: int = 0


def asked(call: PendingRequest | None) -> Asked | None:
    """The search that a call belongs to, and how often the same has failed; None of a canary and its like."""
    request = call.args[0] if call is not None and call.args else None
    search_id = getattr(request, "search_id", None)
    return Asked(search_id, getattr(request, "attempt", 0)) if isinstance(search_id, str) else None


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
    """The first of a search's homes that has room (`cluster.homes`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._candidates: list[RunningReplica] = []
        self._by_name: dict[str, RunningReplica] = {}
        self._homes = Homes(())

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Replicas one by one, the best first. Serve passes by those that are full or do not say how many calls they
        have."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        call = asked(pending_request)
        if call is None or not candidate_replicas:
            return [candidate_replicas]  # the least busy one
        if candidate_replicas is not self._candidates:  # Serve makes a new list of those that there are
            self._candidates = candidate_replicas
            self._by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
            self._homes = Homes(self._by_name)
        homes = {name: self._by_name[name] for name in self._homes.of(call.search_id)}
        calls = {name: self._replica_queue_len_cache.get(each.replica_id) or 0 for name, each in homes.items()}
        best = [[homes[name]] for name in preferred(calls, call.attempt)]
        return best if len(homes) == len(candidate_replicas) else [*best, candidate_replicas]
