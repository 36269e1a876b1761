"""The reward families that an engine serves, one module each."""

from deployments.rewards.family import RewardFamily
from deployments.rewards.label_inline import LabelInline
from deployments.rewards.label_turns import LabelTurns
from deployments.rewards.step_head import StepHead

FAMILIES: dict[str, type[StepHead | LabelTurns | LabelInline]] = {
    "step_head": StepHead,
    "label_turns": LabelTurns,
    "label_inline": LabelInline,
}
"""By the name that ``prm.family`` gives them."""

__all__ = ["FAMILIES", "RewardFamily"]
