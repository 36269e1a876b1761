"""A router for Ray Serve that keeps a search's calls on one replica, unless that is busier than the rest.

A replica knows the paths that it has worked on: the generator keeps their KV, a reward model that and their rewards.
Serve sends calls to the less busy of two replicas, and a search of ten rounds reads its paths again on every replica.

Private parts of Ray 2.60: what a router sees of a call, and how it is told which call it has found a replica for.
"""

from ray.serve._private.common import RequestMetadata
from ray.serve._private.request_router.common import PendingRequest
from ray.serve._private.request_router.replica_wrapper import RunningReplica
from ray.serve._private.request_router.request_router import RequestRouter

from benchmarks.homes import BALANCE, preferred


def search_of(call: PendingRequest | None) -> str | None:
    """The search that a call belongs to; None of a canary and its like."""
    request = call.args[0] if call is not None and call.args else None
    search_id = getattr(request, "search_id", None)
    return search_id if isinstance(search_id, str) else None


class CallMatching:
    """Makes a router answer the call that it was asked for.

    Serve finds a waiting call again by the id of the HTTP request that it came from. A search makes several at once;
    all but one of them would wait for good.
    """

    def _add_pending_request_to_indices(self, call: PendingRequest) -> None:
        waiting: dict[int, PendingRequest] = self.__dict__.setdefault("_waiting", {})
        waiting[id(call.metadata)] = call

    def _remove_pending_request_from_indices(self, call: PendingRequest) -> None:
        self.__dict__.setdefault("_waiting", {}).pop(id(call.metadata), None)

    def _get_pending_request_matching_internal_request_id(
        self, metadata: RequestMetadata | None = None
    ) -> PendingRequest | None:
        call: PendingRequest | None = self.__dict__.setdefault("_waiting", {}).get(id(metadata))
        return call if call is not None and not call.future.done() else None


class HomeRouter(CallMatching, RequestRouter):
    """Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018) over searches."""

    balance = BALANCE

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Replicas one by one, the best first."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        search_id = search_of(pending_request)
        if search_id is None:
            return [candidate_replicas]  # the least busy one
        replicas = {each.replica_id.unique_id: each for each in candidate_replicas}
        calls = {name: self._replica_queue_len_cache.get(each.replica_id) or 0 for name, each in replicas.items()}
        return [[replicas[name]] for name in preferred(search_id, calls, self.balance)]
