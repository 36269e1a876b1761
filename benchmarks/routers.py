"""Ray Serve's ready-made routers, told what they would not find by themselves in a search's calls."""

from typing import Any

from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter
from ray.serve._private.request_router.common import PendingRequest
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from benchmarks.home_router import CallMatching, search_of


class BySession(CallMatching, ConsistentHashRouter):
    """The search is the session."""

    def _routing_key(self, pending_request: PendingRequest | None) -> str | None:
        return search_of(pending_request) or super()._routing_key(pending_request)


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
