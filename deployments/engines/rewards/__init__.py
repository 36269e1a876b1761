"""The reward families that an engine serves, one module each."""

from deployments.engines.rewards.family import RewardFamily
from deployments.engines.rewards.label_inline import LabelInline
from deployments.engines.rewards.label_turns import LabelTurns
from deployments.engines.rewards.outcome import Outcome
from deployments.engines.rewards.step_head import StepHead
from deployments.engines.rewards.value_head import ValueHead

FAMILIES: dict[str, type[StepHead | LabelTurns | LabelInline | ValueHead | Outcome]] = {
    "step_head": StepHead,
    "label_turns": LabelTurns,
    "label_inline": LabelInline,
    "value_head": ValueHead,
    "outcome": Outcome,
}
"""By the name that ``prm.family`` gives them."""

__all__ = ["FAMILIES", "RewardFamily"]
