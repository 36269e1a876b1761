"""The list of reward families, one module each, and how settings choose one."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import SerializeAsAny, ValidationError, WrapValidator
from pydantic_core import InitErrorDetails, PydanticCustomError

from deployments.engines.rewards.family import RewardModelSettings
from deployments.engines.rewards.function import FunctionSettings
from search.tools.import_path import imported

BUILT_IN = (
    "deployments.engines.rewards.step_head:StepHeadSettings",
    "deployments.engines.rewards.label_turns:LabelTurnsSettings",
    "deployments.engines.rewards.label_inline:LabelInlineSettings",
    "deployments.engines.rewards.value_head:ValueHeadSettings",
    "deployments.engines.rewards.outcome:OutcomeSettings",
    "deployments.engines.rewards.function:FunctionSettings",
)
"""The settings class of every built-in family, in the order in which messages list them. A new family needs its module
and one line here."""

FAMILIES: dict[str, type[RewardModelSettings | FunctionSettings]] = {
    settings.model_fields["family"].default: settings for settings in map(imported, BUILT_IN)
}
"""The settings of every family by the name that ``prm.family`` gives it."""
DEFAULT_FAMILY = "step_head"


def parse_prm(given: Any) -> RewardModelSettings | FunctionSettings:
    """Validates the settings of the family that ``given`` names.

    A function and not a pydantic union, which would put the family's name into the path of every error.

    Raises:
        ValidationError: there is no such family, or a setting is wrong, unknown or another family's.
    """
    if isinstance(given, RewardModelSettings | FunctionSettings):
        return given
    if not isinstance(given, Mapping):
        raise _refused((), given, "must be a mapping")
    name = given.get("family", DEFAULT_FAMILY)
    if not isinstance(name, str) or name not in FAMILIES:
        raise _refused(("family",), name, f"there is no such family; there are: {', '.join(FAMILIES)}")
    return FAMILIES[name].model_validate(given)


def _refused(path: tuple[str, ...], given: Any, message: str) -> ValidationError:
    fault = PydanticCustomError("family", "{message}", {"message": message})
    return ValidationError.from_exception_data("prm", [InitErrorDetails(type=fault, loc=path, input=given)])


PrmSettings: TypeAlias = Annotated[
    SerializeAsAny[RewardModelSettings | FunctionSettings], WrapValidator(lambda given, _: parse_prm(given))
]
"""The type of ``prm`` in the settings tree."""
