"""Ray Serve's ready-made routers, told what they would not find by themselves in a search's calls, and a switch."""

import os
from pathlib import Path
from typing import Any

from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter
from ray.serve._private.common import DeploymentID
from ray.serve._private.request_router.common import PendingRequest
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve._private.request_router.request_router import RequestRouter
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from benchmarks.routing import ROUTER_FILE
from deployments.scaling.homes import Homes
from deployments.scaling.router import CallMatching, HomeRouter, asked

PRM = "ProcessRewardModel"
"""The deployment."""


class BySession(CallMatching, ConsistentHashRouter):
    """The search is the session."""

    def _routing_key(self, pending_request: PendingRequest | None) -> str | None:
        call = asked(pending_request)
        return call.search_id if call is not None else super()._routing_key(pending_request)


class ByPrefix(CallMatching, PrefixCacheAffinityRouter):
    """Looks for text in ``.prompt`` or ``.messages``: a character a token stands for a call's first prefix, a question
    and its steps for a path to be scored."""

    def _extract_text_from_request(self, pending_request: PendingRequest) -> str | None:  # type: ignore[override]  # so it is used
        request: Any = pending_request.args[0] if pending_request.args else None
        if expansions := getattr(request, "expansions", None):
            return "".join(chr(0x100 + token) for token in expansions[0].prefix)
        if items := getattr(request, "items", None):
            return f"{request.question}\n{''.join(items[0].steps)}"
        return None


class NearerHome(HomeRouter):
    """Searches leave a replica sooner: at 1.5 times its share, of any number of replicas."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._homes = Homes(1.5)


ROUTERS: dict[str, type[RequestRouter]] = {
    "power of two": PowerOfTwoChoicesRequestRouter,
    "consistent hash": BySession,
    "scores by hash": PowerOfTwoChoicesRequestRouter,
    "prefix": ByPrefix,
    "home at 1.5": NearerHome,
    "home": HomeRouter,
}
OF_SCORES: dict[str, type[RequestRouter]] = {**ROUTERS, "scores by hash": BySession}
"""The same for reward models. Those know paths from their own caches alone, where generators have LMCache beside them,
and have short calls, so that one of them is not busy for long."""


class Switched:
    """All of them side by side, each as it is and with queues of its own, so that they can take turns of seconds on the
    same engines. A call goes through the one that is on; what is learned of replicas, all are told."""

    TOLD = frozenset(
        {
            "_update_running_replicas",
            "decrement_queue_len_cache",
            "initialize_state",
            "on_new_queue_len_info",
            "on_replica_actor_died",
            "on_replica_actor_unavailable",
            "on_request_completed",
            "on_send_request",
            "update_backoff_params",
            "update_replicas",
        }
    )

    def __init__(self, deployment_id: DeploymentID, **given: Any) -> None:
        self._file = Path(os.environ[ROUTER_FILE])
        routers = OF_SCORES if deployment_id.name == PRM else ROUTERS
        self._routers = {name: router(deployment_id=deployment_id, **given) for name, router in routers.items()}

    def __getattr__(self, name: str) -> Any:
        if name not in self.TOLD:
            return getattr(self._routers[self._file.read_text(encoding="utf-8")], name)

        def tell(*args: Any, **kwargs: Any) -> None:
            for router in self._routers.values():
                getattr(router, name)(*args, **kwargs)

        return tell
