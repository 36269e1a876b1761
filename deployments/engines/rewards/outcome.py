"""Families ``outcome``, ``trajectory`` and ``eurus_rm``: models that score whole solutions.

A step is scored by the path up to it, as if that were the solution, at the path's last token. That is meaningful only
for solutions that have ended: use it for best-of-N with ``aggregation: last``, not for searches that prune.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from deployments.engines.rewards.family import LinearHead, RewardFamily, RewardModelSettings, Shapes, two_layers
from deployments.engines.rewards.heads import LastTokenHead
from deployments.engines.settings import SystemPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class Outcome(LastTokenHead):
    """The format of Qwen2.5-Math-RM, AceMath-RM and Skywork-Reward.

    The path is one completed chat turn of the assistant. A reward is the sigmoid of the head. Source: the model cards.
    AceMath's has the system prompt "Please reason step by step, and check your final answer within \\\\boxed{}.".
    """

    classifier = "ForSequenceClassification"
    reads_chat = True

    @classmethod
    def head_shapes(cls, config: "PreTrainedConfig") -> Shapes | None:
        if cls.head is not None:
            return cls.head.shapes(config)
        if (config.architectures or [""])[0].endswith("RewardModel"):
            return two_layers("score.", config.hidden_size, cls.classes)
        return {"score.weight": (cls.classes, config.hidden_size)}

    def path_ids(self, question: str, steps: Sequence[str]) -> list[int]:
        turns = [*self.system, {"role": "user", "content": question}]
        return self.chat.encode_chat([*turns, {"role": "assistant", "content": "".join(steps)}], answered=True)


class OutcomeSettings(RewardModelSettings):
    """A model with a one-number head that reads whole solutions."""

    family: Literal["outcome"] = "outcome"
    system_prompt: SystemPrompt = None
    reader: ClassVar[type[RewardFamily]] = Outcome


class Trajectory(Outcome):
    """The format of ReasonFlux-PRM-1.5B (arXiv 2506.18896).

    The text is the question and directly after it the solution, without a chat template. A reward is the sigmoid of the
    head. Source: ``RewardDataset`` and ``RewardModel`` in ``ReasonFlux_PRM/utils/rm_utils.py`` of Gen-Verse/ReasonFlux.
    """

    head = LinearHead("reward_head.", file="reward_head.pt")
    reads_chat = False
    prompt: ClassVar[str] = "{question}"

    def path_ids(self, question: str, steps: Sequence[str]) -> list[int]:
        text = self.prompt.replace("{question}", question) + "".join(steps)
        token_ids = [*self.start, *self.chat.encode_text(text)]
        if not token_ids:
            raise ValueError("question and steps are empty")
        return token_ids


class TrajectorySettings(RewardModelSettings):
    """A model that scores a question and its solution with a linear layer in ``reward_head.pt``."""

    family: Literal["trajectory"] = "trajectory"
    reader: ClassVar[type[RewardFamily]] = Trajectory


class EurusRm(Trajectory):
    """The format of Eurus-RM-7B (arXiv 2404.02078). Source: the example of its model card, whose second mark is
    ``[\\INST]``, and ``EurusRewardModel`` in its ``modeling_eurus_rm.py``."""

    head = LinearHead("regression_head.", bias=False)
    prompt = "[INST] {question} [\\INST] "


class EurusRmSettings(RewardModelSettings):
    """A model that scores a question and its solution with a linear layer named ``regression_head``."""

    family: Literal["eurus_rm"] = "eurus_rm"
    reader: ClassVar[type[RewardFamily]] = EurusRm
