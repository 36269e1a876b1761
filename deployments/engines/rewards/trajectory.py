"""Family ``trajectory``: one number for question and solution as they are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from deployments.engines.encoding import ChatEncoder
from deployments.engines.rewards.family import RewardFamily, RewardModelSettings
from deployments.engines.rewards.outcome import Outcome

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Trajectory(Outcome):
    """The format of ReasonFlux-PRM-1.5B (arXiv 2506.18896).

    The text is the question and directly after it the solution, without a chat template. A reward is the sigmoid of the
    head at the last token. Like those of `Outcome` it is meaningful only for solutions that have ended. Source:
    ``RewardDataset`` and ``RewardModel`` in ``ReasonFlux_PRM/utils/rm_utils.py`` of Gen-Verse/ReasonFlux.
    """

    vllm_model = "deployments.engines.rewards.qwen2_heads:Qwen2ForTrajectoryReward"

    def __init__(self, settings: "TrajectorySettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        self._chat = ChatEncoder(tokenizer)
        self._start = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]

    def encode(self, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
        token_ids = [*self._start, *self._chat.encode_text(question + "".join(steps))]
        if not token_ids:
            raise ValueError("question and steps are empty")
        return token_ids, [len(token_ids) - 1]


class TrajectorySettings(RewardModelSettings):
    """A model that scores a question and its solution with a linear layer in ``reward_head.pt``."""

    family: Literal["trajectory"] = "trajectory"
    reader: ClassVar[type[RewardFamily]] = Trajectory
