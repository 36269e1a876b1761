"""The Backend deployment: a generator that another server serves, in place of an engine's replicas."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ray import serve

from deployments.backends.capabilities import Capabilities
from deployments.backends.generator import UrlGenerator
from deployments.backends.pool import Pool
from deployments.backends.settings import UrlGeneratorSettings
from deployments.calls.envelope import FIRST_ATTEMPT, Envelope
from deployments.config import UNSEEN, TelemetrySettings
from deployments.replica import ENGINE_DEPLOYMENT
from deployments.scaling.pressure import PRESSURE
from deployments.startup.nodes import Built
from deployments.telemetry.engine_telemetry import EngineTelemetry
from search.errors import GeneratorRefused
from search.ports import ChildGroup, ExpandRequest, TokenBeamReply, TokenBeamRequest
from search.tools.settling import settled


class BackendReplica:
    """The class of each replica: the methods of a generator's replica, over a `UrlGenerator`. It holds connections,
    and no engine that could die: a backend that is down fails calls, which is no reason to replace the replica."""

    async def __init__(  # type: ignore[misc]
        self,
        settings: UrlGeneratorSettings,
        capabilities: Capabilities,
        telemetry: TelemetrySettings = UNSEEN,
        log_level: str = "WARNING",
        built: Built | None = None,
    ) -> None:
        """
        Raises:
            NodeDiffers: the node differs from the one where the application was built.
            ValueError: a key or a certificate cannot be read on this node.
        """
        if built:
            built.check()
        self._capabilities = capabilities
        self._pool = Pool(settings)
        self._generator = UrlGenerator(self._pool, capabilities, settings.step_delimiter, settings.served_name)
        self._telemetry = EngineTelemetry(telemetry, log_level)
        self._telemetry.start(self._figures, None, {})

    async def expand(
        self, request: ExpandRequest, envelope: Envelope = FIRST_ATTEMPT
    ) -> AsyncGenerator[ChildGroup, None]:
        """Streams groups of finished children. Cancelling the call closes its connections to the backend."""
        async with aclosing(self._generator.expand(request)) as groups:
            async for group in groups:
                yield group

    async def token_beam(self, request: TokenBeamRequest, envelope: Envelope = FIRST_ATTEMPT) -> TokenBeamReply:
        """Raises GeneratorRefused: no backend tells the probabilities of all tokens."""
        raise GeneratorRefused("token-level beam search needs an engine")

    async def canary(self, deadline_s: float = 20.0) -> float:
        """Has the backend write one token; returns the seconds."""
        return await self._generator.canary(deadline_s)

    async def silent_s(self) -> float:
        """0: whether the backend works, only its replies say."""
        return 0.0

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve where the pool autoscales; see `deployments.scaling.pressure`."""
        most = sum(url.max_calls for url in self._pool.status())
        return {PRESSURE: self._generator.running / max(1, most)}

    async def stats(self) -> dict[str, Any]:
        """Counters, how each URL does, and what the backend can do."""
        urls = [url._asdict() for url in self._pool.status()]
        can = {finding.name: finding.holds for finding in self._capabilities.findings}
        return {**self._figures(), "urls": urls, "capabilities": can}

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        """Leak check of an idle replica; calls that were cancelled have ``settle_s`` seconds to end."""
        await settled(lambda: self._generator.running, settle_s)
        running = self._generator.running
        return [f"{running} requests are at the backend"] if running else []

    def _figures(self) -> dict[str, int]:
        written = self._generator.written_tokens
        return {"running": self._generator.running, "written_tokens": written, "generated_tokens": written}

    def __del__(self) -> None:
        """Called by Serve when the replica is stopped, and by Python, also after a failed start."""
        if hasattr(self, "_telemetry"):
            self._telemetry.close()


Backend = serve.deployment(name="Generator", **ENGINE_DEPLOYMENT)(BackendReplica)
"""Set the replica options with ``options``, then bind it with ``UrlGeneratorSettings`` and ``Capabilities``. It has
the name of the engine's deployment, whose place it takes."""
