"""The list of reward families, and how settings choose one."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import SerializeAsAny, ValidationError, WrapValidator
from pydantic_core import InitErrorDetails, PydanticCustomError

from deployments.engines.rewards.ensemble_head import EnsembleHeadSettings
from deployments.engines.rewards.execution import ExecutionSettings
from deployments.engines.rewards.family import RewardModelSettings
from deployments.engines.rewards.function import FunctionSettings
from deployments.engines.rewards.generative_presets import GENERATIVE_PRESETS
from deployments.engines.rewards.implicit import ImplicitSettings
from deployments.engines.rewards.label_presets import LABEL_PRESETS
from deployments.engines.rewards.no_rewards import NoRewardSettings
from deployments.engines.rewards.outcome import EurusRmSettings, OutcomeSettings, TrajectorySettings
from deployments.engines.rewards.reason_eval import ReasonEvalSettings
from deployments.engines.rewards.several import SeveralSettings
from deployments.engines.rewards.step_head import StepHeadSettings
from deployments.engines.rewards.text_heads import TEXT_HEADS
from deployments.engines.rewards.token_class import TokenClassSettings
from deployments.engines.rewards.value_head import ValueHeadSettings

RewardSettings: TypeAlias = (
    RewardModelSettings | FunctionSettings | ExecutionSettings | SeveralSettings | NoRewardSettings
)
BUILT_IN: tuple[type[RewardSettings], ...] = (
    StepHeadSettings,
    *LABEL_PRESETS,
    TokenClassSettings,
    ValueHeadSettings,
    *TEXT_HEADS,
    ReasonEvalSettings,
    EnsembleHeadSettings,
    ImplicitSettings,
    OutcomeSettings,
    TrajectorySettings,
    EurusRmSettings,
    *GENERATIVE_PRESETS,
    FunctionSettings,
    ExecutionSettings,
    SeveralSettings,
    NoRewardSettings,
)
"""The settings class of every built-in family, in the order in which messages list them. A new family needs its module
and one line here; a new preset only its class: one of label tokens in ``label_presets``, one with a head at a tag in
``text_heads``, one of a generative verifier in ``generative_presets``."""

FAMILIES: dict[str, type[RewardSettings]] = {settings.model_fields["family"].default: settings for settings in BUILT_IN}
"""The settings of every family by the name that ``prm.family`` gives it."""
DEFAULT_FAMILY = "step_head"


def parse_prm(given: Any) -> RewardSettings:
    """Validates the settings of the family that ``given`` names.

    A function and not a pydantic union, which would put the family's name into the path of every error.

    Raises:
        ValidationError: there is no such family, or a setting is wrong, unknown or another family's.
    """
    if isinstance(given, RewardSettings):
        return given
    if not isinstance(given, Mapping):
        raise _refused((), given, "must be a mapping")
    name = given.get("family", DEFAULT_FAMILY)
    if not isinstance(name, str) or name not in FAMILIES:
        raise _refused(("family",), name, f"unknown family; available: {', '.join(FAMILIES)}")
    return FAMILIES[name].model_validate(given)


def execution_of(settings: RewardSettings) -> ExecutionSettings | None:
    """The settings of the verifier that runs programs, alone or one of several; None if there is none."""
    members = [member.prm for member in settings.of] if isinstance(settings, SeveralSettings) else [settings]
    return next((each for each in members if isinstance(each, ExecutionSettings)), None)


def _refused(path: tuple[str, ...], given: Any, message: str) -> ValidationError:
    fault = PydanticCustomError("family", "{message}", {"message": message})
    return ValidationError.from_exception_data("prm", [InitErrorDetails(type=fault, loc=path, input=given)])


PrmSettings: TypeAlias = Annotated[SerializeAsAny[RewardSettings], WrapValidator(lambda given, _: parse_prm(given))]
"""The type of ``prm`` in the settings tree."""
