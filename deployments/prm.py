"""The ProcessRewardModel deployment: one scoring engine per replica."""

from ray import serve

from deployments.backends.prm_settings import UrlPrmSettings
from deployments.calls.envelope import FIRST_ATTEMPT, Envelope
from deployments.config import UNSEEN, TelemetrySettings
from deployments.engines.rewards.several import Scorer, SeveralSettings, Single, scorer_of
from deployments.engines.template import begin_templates
from deployments.replica import ENGINE_DEPLOYMENT, EngineReplica
from deployments.startup.nodes import Built
from deployments.telemetry.engine_telemetry import EngineTelemetry
from search.ports import ScoreRequest
from search.rewards import RewardRows


class PrmReplica(EngineReplica):
    """The class of each PRM replica: it holds a ``ScoringEngine``, which documents the methods, or what stands in for
    one."""

    _engine: Scorer

    async def __init__(  # type: ignore[misc]
        self,
        settings: Single | SeveralSettings | UrlPrmSettings,
        telemetry: TelemetrySettings = UNSEEN,
        log_level: str = "WARNING",
        built: Built | None = None,
    ) -> None:
        """
        Raises:
            NodeDiffers: the node differs from the one where the application was built.
            EngineStartError: the engine did not start.
        """
        begin_templates(settings.engines.values())
        if built:
            built.check([*settings.engines.values()])
        self._telemetry = EngineTelemetry(telemetry, log_level)
        self._engine = _scorer_of(settings)
        await self._start(settings.max_num_seqs)

    async def score(self, request: ScoreRequest, envelope: Envelope = FIRST_ATTEMPT) -> RewardRows:
        """Scores steps. Cancelling the call aborts its requests at the engine."""
        async with self._exit_if_engine_dies():
            return await self._engine.score(request, envelope.alone)


def _scorer_of(settings: Single | SeveralSettings | UrlPrmSettings) -> Scorer:
    if not isinstance(settings, UrlPrmSettings):
        return scorer_of(settings)
    from deployments.backends.scorer import UrlScorer  # only where there is a URL

    return UrlScorer(settings)


ProcessRewardModel = serve.deployment(name="ProcessRewardModel", **ENGINE_DEPLOYMENT)(PrmReplica)
"""Set the replica options with ``options``, then bind it with the settings of a reward model."""
