"""The reward families, one module each: which there are, and how settings choose one."""

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
"""A family is declared by its module and one line here. In the order in which they are listed to people."""

FAMILIES: dict[str, type[RewardModelSettings | FunctionSettings]] = {
    settings.model_fields["family"].default: settings for settings in map(imported, BUILT_IN)
}
"""The settings of every family by the name that ``prm.family`` gives it."""
DEFAULT_FAMILY = "step_head"


def parse_prm(given: Any) -> RewardModelSettings | FunctionSettings:
    """The settings of the family that ``given`` names.

    As a function and not as a union of pydantic's, which would put the family's name into the path of every error.

    Raises:
        ValidationError: there is no such family, or one of its settings is wrong, unknown or another family's.
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
"""What ``prm`` is in the settings tree."""
