"""The ProcessRewardModel deployment: one scoring engine per replica."""

from typing import TYPE_CHECKING

from ray import serve

from deployments.config import UNSEEN, TelemetrySettings
from deployments.engines.rewards import PrmSettings
from deployments.engines.rewards.function import FunctionScorer, FunctionSettings
from deployments.replica import ENGINE_DEPLOYMENT, EngineReplica
from deployments.startup.nodes import Built
from deployments.telemetry.engine_telemetry import EngineTelemetry
from search.ports import ScoreRequest
from search.rewards import RewardRows

if TYPE_CHECKING:
    from deployments.engines.scoring import ScoringEngine


class PrmReplica(EngineReplica):
    """The class of each PRM replica: it holds a ``ScoringEngine`` or ``FunctionScorer``, which document the methods."""

    _engine: "ScoringEngine | FunctionScorer"

    async def __init__(  # type: ignore[misc]
        self,
        settings: PrmSettings,
        telemetry: TelemetrySettings = UNSEEN,
        log_level: str = "WARNING",
        built: Built | None = None,
    ) -> None:
        """
        Raises:
            NodeDiffers: the node differs from the one where the application was built.
            EngineStartError: the engine did not start.
        """
        if built:
            built.check(None if isinstance(settings, FunctionSettings) else settings)
        self._telemetry = EngineTelemetry(telemetry, log_level)
        if isinstance(settings, FunctionSettings):
            self._engine = FunctionScorer(settings)
        else:
            # Imported here: it imports vLLM, which takes ten seconds that only replicas with a model should spend.
            from deployments.engines.scoring import ScoringEngine

            # Not a client of the KV cache server: the engine's own prefix cache holds the path before a new step.
            self._engine = ScoringEngine(settings)
        await self._start(settings.max_num_seqs)

    async def score(self, request: ScoreRequest) -> RewardRows:
        """Scores steps. Cancelling the call aborts its requests at the engine."""
        with self._exit_if_engine_dies():
            return await self._engine.score(request)


ProcessRewardModel = serve.deployment(name="ProcessRewardModel", **ENGINE_DEPLOYMENT)(PrmReplica)
"""Set the replica options with ``options``, then bind it with ``PrmSettings``."""
