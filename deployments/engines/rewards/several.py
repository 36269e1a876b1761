"""Family ``several``: several reward models, whose calibrated rewards become one."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, SerializeAsAny, WrapValidator, field_validator, model_validator

from deployments.engines.histograms import Histogram, HistogramSum
from deployments.engines.rewards.card_file import CardSetting
from deployments.engines.rewards.execution import ExecutionScorer, ExecutionSettings
from deployments.engines.rewards.family import RewardModelSettings
from deployments.engines.rewards.function import CallScorer, FunctionScorer, FunctionSettings
from deployments.engines.rewards.generative import VerifierSettings
from deployments.engines.rewards.no_rewards import NoRewardSettings
from deployments.engines.settings import ReplicaSettings, Settings
from search.errors import ScorerError
from search.ports import ScoreRequest
from search.rewards import RewardRows, ScoringCost
from search.tools.quick_import import quick_import

if TYPE_CHECKING:
    from deployments.engines.scoring import ScoringEngine

Scorer: TypeAlias = "ScoringEngine | CallScorer | SeveralScorer"
Single: TypeAlias = RewardModelSettings | FunctionSettings | ExecutionSettings
"""Settings of one reward model, or of what stands in for one."""
COMBINE: dict[str, Callable[[Iterable[float]], float]] = {"mean": fmean, "min": min}


def _single(given: Any) -> Single:
    from deployments.engines.rewards import parse_prm  # the list of families has this one in it

    prm = parse_prm(given)
    if isinstance(prm, SeveralSettings | NoRewardSettings):
        raise ValueError("a family several cannot contain another one, nor none")
    if prm.card is not None:
        raise ValueError("a card may be set for all models together only: prm.card")
    return prm


class Member(Settings):
    """One of several reward models, and the calibration of its rewards (Platt, 1999): a reward r becomes the sigmoid of
    scale times the logit of r, plus offset."""

    prm: Annotated[SerializeAsAny[Single], WrapValidator(lambda given, _: _single(given))] = Field(
        description="A reward model, with the settings of `prm`. Of its `replicas` only num_gpus is read."
    )
    scale: float = Field(
        1.0, gt=0, le=100, description="Scale of this model's rewards around 0.5; below 1 draws them towards 0.5."
    )
    offset: float = Field(0.0, ge=-100, le=100)

    @model_validator(mode="after")
    def _only_a_share_of_the_replica(self) -> Self:
        if self.prm.replicas.model_copy(update={"num_gpus": None}) != ReplicaSettings():
            raise ValueError(
                "only num_gpus may be set here, this model's share of a GPU; prm.replicas holds for all models"
            )
        return self

    def calibrated(self, reward: float) -> float:
        if not 0 < reward < 1 or (self.scale, self.offset) == (1.0, 0.0):
            return reward
        logit = self.scale * (math.log(reward) - math.log1p(-reward)) + self.offset
        return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


class SeveralSettings(Settings):
    """Several reward models in each replica, with an engine each."""

    family: Literal["several"] = "several"
    of: tuple[Member, ...] = Field(
        max_length=8, description="Two to eight reward models, each with `prm`, `scale` and `offset`."
    )
    combine: Literal["mean", "min"] = Field("mean", description="How the models' rewards of a step are combined.")
    card: CardSetting = None
    replicas: ReplicaSettings = ReplicaSettings()

    @field_validator("of")
    @classmethod
    def _are_several(cls, of: tuple[Member, ...]) -> tuple[Member, ...]:
        if len(of) < 2:  # not min_length, which does not count members that are wrong
            raise ValueError("there must be at least 2 reward models")
        return of

    @model_validator(mode="after")
    def _fit_the_replica(self) -> Self:
        shares = sum(member.prm.replicas.num_gpus or 0 for member in self.of)
        if shares > (self.replicas.num_gpus or 0) + 1e-6:
            raise ValueError(f"replicas.num_gpus must be at least {shares:g}, the sum of the models in `of`")
        return self

    @property
    def engines(self) -> dict[str, RewardModelSettings]:
        """Settings of the engines of a replica, by their path below these."""
        return {
            f".of.{index}.prm{path}": engine
            for index, member in enumerate(self.of)
            for path, engine in member.prm.engines.items()
        }

    @property
    def max_num_seqs(self) -> int:
        """Largest batch of an engine."""
        return max(member.prm.max_num_seqs for member in self.of)


class SeveralScorer:
    """Has the methods of a `ScoringEngine`; each calls the scorers of all members."""

    def __init__(self, settings: SeveralSettings) -> None:
        self._members = settings.of
        self._combine = COMBINE[settings.combine]
        self._scorers = [scorer_of(member.prm) for member in settings.of]

    async def start(self, stat_loggers: Sequence[Any] = ()) -> None:
        """Starts the scorers one after the other: an engine's start changes the environment of this process.

        Raises:
            EngineStartError: one did not start; none is left running.
        """
        try:
            for scorer in self._scorers:
                await scorer.start(stat_loggers)
        except BaseException:
            self.shutdown()
            raise

    async def score(self, request: ScoreRequest, alone: bool = False) -> RewardRows:
        """Returns the combined rewards in [0, 1] of each item's last ``unscored`` steps; see `ScoringEngine.score`.

        Raises:
            ScorerError: one of the scorers failed; the calls of the others end.
        """
        readers = [pair for pair in zip(self._members, self._scorers, strict=True) if _reads(pair[1], request)]
        readers = readers or [*zip(self._members, self._scorers, strict=True)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(scorer.score(request, alone)) for _, scorer in readers]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        found = [task.result() for task in tasks]
        members = [member for member, _ in readers]
        rows = RewardRows(
            [self._combined(members, step) for step in zip(*row, strict=True)] for row in zip(*found, strict=True)
        )
        rows.cost = ScoringCost.total(each.cost for each in found)
        rows.unsure = frozenset().union(*(each.unsure for each in found))
        return rows

    async def canary(self, deadline_s: float = 20.0) -> float:
        """Runs the canary of every scorer; returns the longest time, seconds. Raises ScorerError when one fails."""
        return max(await asyncio.gather(*(scorer.canary(deadline_s) for scorer in self._scorers)))

    def stats(self) -> dict[str, int]:
        """The sums of the scorers' figures."""
        sums: dict[str, int] = {}
        for scorer in self._scorers:
            for name, value in scorer.stats().items():
                sums[name] = sums.get(name, 0) + value
        return sums

    @property
    def histograms(self) -> Mapping[str, Histogram]:
        """Histograms of all engines' steps and KV blocks, by name."""
        parts: dict[str, list[Histogram]] = {}
        for scorer in self._scorers:
            for name, histogram in scorer.histograms.items():
                parts.setdefault(name, []).append(histogram)
        return {name: HistogramSum(of) for name, of in parts.items()}

    @property
    def pressure(self) -> float:
        """The greatest of the scorers' pressures: each reads every step."""
        return max(scorer.pressure for scorer in self._scorers)

    @property
    def at_engine(self) -> frozenset[str]:
        """Searches with requests at the engines; once one is dead, those that may have ended it."""
        dead = [scorer for scorer in self._scorers if _is_dead(scorer)]
        return frozenset().union(*(scorer.at_engine for scorer in dead or self._scorers))

    @property
    def silent_s(self) -> float:
        """The longest silence of a scorer that owes a reply, seconds."""
        return max(scorer.silent_s for scorer in self._scorers)

    def check_alive(self) -> None:
        """Raises ScorerError when one of the scorers is dead."""
        for scorer in self._scorers:
            scorer.check_alive()

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        """Leak check of idle scorers: a sentence for everything left over; empty when all is well."""
        return [left for scorer in self._scorers for left in await scorer.check_integrity(settle_s)]

    @property
    def notes(self) -> list[str]:
        """What is odd about the models, found at the start."""
        return [note for scorer in self._scorers for note in scorer.notes]

    @property
    def model_runners(self) -> dict[str, str]:
        """vLLM's model runners, by model."""
        return {model: runner for scorer in self._scorers for model, runner in scorer.model_runners.items()}

    def shutdown(self) -> None:
        for scorer in self._scorers:
            scorer.shutdown()

    def _combined(self, members: Sequence[Member], rewards: Sequence[float]) -> float:
        pairs = zip(members, rewards, strict=True)
        return self._combine([member.calibrated(reward) for member, reward in pairs])


def _reads(scorer: Scorer, request: ScoreRequest) -> bool:
    """Whether a scorer can say anything about the paths: a verifier of programs has nothing to run without checks."""
    return request.checks is not None or not isinstance(scorer, ExecutionScorer)


def _is_dead(scorer: Scorer) -> bool:
    try:
        scorer.check_alive()
    except ScorerError:
        return True
    return False


def scorer_of(settings: "Single | SeveralSettings") -> Scorer:
    """The scorer for these settings, not started."""
    if isinstance(settings, FunctionSettings):
        return FunctionScorer(settings)
    if isinstance(settings, ExecutionSettings):
        return ExecutionScorer(settings)
    if isinstance(settings, SeveralSettings):
        return SeveralScorer(settings)
    # Imported here: they import vLLM, which takes seconds that only replicas with a model should spend.
    quick_import("deployments.engines.scoring")
    from deployments.engines.scoring import ScoringEngine
    from deployments.engines.verification import VerificationEngine

    # Not a client of the KV cache server: the engine's own prefix cache holds the path before a new step.
    return VerificationEngine(settings) if isinstance(settings, VerifierSettings) else ScoringEngine(settings)
