"""The Generator deployment: one generation engine per replica, a client of the node's KV cache server."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from ray import serve

from deployments.config import GeneratorSettings
from deployments.node_cache import attach_node_cache, keep_node_cache
from kvstore.connector import QUIET_ENVIRONMENT, connector_config
from kvstore.settings import CacheSettings
from search.ports import ChildGroup, ExpandRequest, TokenBeamReply, TokenBeamRequest


class GeneratorReplica:
    """What runs in each replica. Its methods are those of ``GenerationEngine``; see there."""

    async def __init__(self, settings: GeneratorSettings, cache: CacheSettings | None = None) -> None:  # type: ignore[misc]
        # Here and not above: it imports vLLM, ten seconds that only replicas should spend.
        from deployments.engines.generation import GenerationEngine

        self._cache = await attach_node_cache(cache) if cache else None
        kv_transfer = None
        if cache and self._cache:
            os.environ.update(QUIET_ENVIRONMENT)
            kv_transfer = connector_config(self._cache, cache)
        self._engine = GenerationEngine(settings, kv_transfer)
        await self._engine.start()

    async def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]:
        """A streaming method: cancelling the call aborts its branches at the engine."""
        # Closed here and now, not when the garbage is collected: leaving it is what aborts the branches.
        async with aclosing(self._engine.expand(request)) as groups:
            async for group in groups:
                yield group

    async def token_beam(self, request: TokenBeamRequest) -> TokenBeamReply:
        """Cancelling the call aborts its requests at the engine."""
        return await self._engine.token_beam(request)

    async def abort_search(self, search_id: str) -> int:
        return await self._engine.abort_search(search_id)

    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self._engine.encode_chat(messages)

    async def context_tokens(self) -> int:
        return self._engine.context_tokens

    async def canary(self, deadline_s: float = 20.0) -> float:
        return await self._engine.canary(deadline_s)

    async def stats(self) -> dict[str, int]:
        return self._engine.stats()

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        return await self._engine.check_integrity(settle_s)

    async def check_health(self) -> None:
        """Called by Serve: a replica whose engine is dead is replaced."""
        self._engine.check_alive()
        await keep_node_cache(self._cache)

    def __del__(self) -> None:
        """Called by Serve when the replica is stopped; and by Python, also after a failed start."""
        if hasattr(self, "_engine"):
            self._engine.shutdown()


Generator = serve.deployment(
    name="Generator",
    max_ongoing_requests=512,
    health_check_period_s=5.0,
    health_check_timeout_s=20.0,
    graceful_shutdown_timeout_s=10.0,
)(GeneratorReplica)
"""To be bound with ``GeneratorSettings`` and ``CacheSettings``, after ``options`` for the replicas."""
