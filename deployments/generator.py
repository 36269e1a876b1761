"""The Generator deployment: one generation engine per replica, a client of the node's KV cache server."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from ray import serve

from deployments.calls.envelope import FIRST_ATTEMPT, Envelope
from deployments.config import UNSEEN, TelemetrySettings
from deployments.engines.environment import shared_memory_bytes
from deployments.engines.settings import GeneratorSettings
from deployments.engines.template import begin_templates
from deployments.node_cache import CacheClient
from deployments.replica import ENGINE_DEPLOYMENT, EngineReplica
from deployments.startup.nodes import Built, kv_identity
from deployments.telemetry.engine_telemetry import EngineTelemetry
from kvstore.connector.arguments import QUIET_ENVIRONMENT, connector_config
from kvstore.settings import CacheSettings
from search.ports import ChildGroup, ExpandRequest, TokenBeamReply, TokenBeamRequest
from search.tools.quick_import import quick_import

if TYPE_CHECKING:
    from deployments.engines.generation import GenerationEngine


class GeneratorReplica(EngineReplica):
    """The class of each generator replica: it holds a ``GenerationEngine``, which documents the methods."""

    _engine: "GenerationEngine"

    async def __init__(  # type: ignore[misc]
        self,
        settings: GeneratorSettings,
        cache: CacheSettings | None = None,
        telemetry: TelemetrySettings = UNSEEN,
        log_level: str = "WARNING",
        built: Built | None = None,
    ) -> None:
        """
        Raises:
            NodeDiffers: the node differs from the one where the application was built.
            CacheServerError: the node has no usable cache server, and the settings require one.
            EngineStartError: the engine did not start.
        """
        begin_templates([settings])
        if built:
            built.check([settings])
        self._telemetry = EngineTelemetry(telemetry, log_level)
        self._keeping: asyncio.Task[bool] | None = None
        cache = cache or CacheSettings(enabled=False)
        self._cache = CacheClient(cache)
        # The cache server starts while this process imports vLLM, which takes seconds that only replicas should spend.
        address, _ = await asyncio.gather(
            self._cache.attach(shared_memory_bytes(settings)),
            asyncio.to_thread(quick_import, "deployments.engines.generation"),
        )
        from deployments.engines.generation import GenerationEngine

        kv_transfer = None
        if address:
            os.environ.update(QUIET_ENVIRONMENT)
            shared = settings.replicas.max_replicas > 1
            kv_transfer = connector_config(address, cache, kv_identity(settings), shared)
        self._engine = GenerationEngine(settings, kv_transfer)
        try:
            await self._start(settings.max_num_seqs)
        finally:
            self._cache.engine_started()

    async def expand(
        self, request: ExpandRequest, envelope: Envelope = FIRST_ATTEMPT
    ) -> AsyncGenerator[ChildGroup, None]:
        """Streams groups of finished children. Cancelling the call aborts its branches at the engine."""
        # Closing the generator aborts the branches: `aclosing` does so at once, not at garbage collection.
        async with self._exit_if_engine_dies(), aclosing(self._engine.expand(request, envelope.alone)) as groups:
            async for group in groups:
                yield group

    async def token_beam(self, request: TokenBeamRequest, envelope: Envelope = FIRST_ATTEMPT) -> TokenBeamReply:
        """Cancelling the call aborts its requests at the engine."""
        async with self._exit_if_engine_dies():
            return await self._engine.token_beam(request, envelope.alone)

    def _figures(self) -> dict[str, int]:
        return super()._figures() | dict(self._cache.figures)

    async def check_health(self) -> None:
        await super().check_health()
        # Not awaited: a cache server that is slow to come back says nothing about the engine's health.
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._cache.keep())


Generator = serve.deployment(name="Generator", **ENGINE_DEPLOYMENT)(GeneratorReplica)
"""Set the replica options with ``options``, then bind it with ``GeneratorSettings`` and ``CacheSettings``."""
