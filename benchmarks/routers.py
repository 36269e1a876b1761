"""Ray Serve's ready-made routers, adapted to the calls of a search; and a switch between routers."""

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
"""Name of the reward models' deployment."""


class BySession(CallMatching, ConsistentHashRouter):
    """Consistent hashing, with the search as the session."""

    def _routing_key(self, pending_request: PendingRequest | None) -> str | None:
        call = asked(pending_request)
        return call.search_id if call is not None else super()._routing_key(pending_request)


class ByPrefix(CallMatching, PrefixCacheAffinityRouter):
    """Prefix affinity. Serve's router looks for text in ``.prompt`` or ``.messages``; a call has neither. So one
    character per token stands for a call's first prefix, and a question with its steps for a path to score."""

    def _extract_text_from_request(self, pending_request: PendingRequest) -> str | None:  # type: ignore[override]  # so it is used
        request: Any = pending_request.args[0] if pending_request.args else None
        if expansions := getattr(request, "expansions", None):
            return "".join(chr(0x100 + token) for token in expansions[0].prefix)
        if items := getattr(request, "items", None):
            return f"{request.question}\n{''.join(items[0].steps)}"
        return None


class NearerHome(HomeRouter):
    """The home router, but searches leave a replica sooner: at 1.5 times its share, for any number of replicas."""

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
PRM_ROUTERS: dict[str, type[RequestRouter]] = {**ROUTERS, "scores by hash": BySession}
"""The same for the deployment of reward models. These find prefixes only in their own cache, while generators share
LMCache; and their calls are short, so that none is busy for long. Hence "scores by hash" hashes only their calls."""


class Switched:
    """All routers side by side, each unchanged and with its own queues, so that they can take turns of a few seconds on
    the same engines. Calls go through the active router; what Serve reports about replicas goes to all routers."""

    BROADCAST = frozenset(
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
        routers = PRM_ROUTERS if deployment_id.name == PRM else ROUTERS
        self._routers = {name: router(deployment_id=deployment_id, **given) for name, router in routers.items()}

    def __getattr__(self, name: str) -> Any:
        if name not in self.BROADCAST:
            return getattr(self._routers[self._file.read_text(encoding="utf-8")], name)

        def tell(*args: Any, **kwargs: Any) -> None:
            for router in self._routers.values():
                getattr(router, name)(*args, **kwargs)

        return tell
