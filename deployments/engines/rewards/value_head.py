"""Family ``value_head``: one number for every token, read at the newline after a step."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from deployments.engines.rewards.family import LinearHead, RewardFamily, RewardModelSettings
from deployments.engines.rewards.heads import StepwiseHead

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ValueHead(StepwiseHead):
    """The format of Skywork-o1-Open-PRM.

    The text is the question and the lines of the steps, without a chat template, behind the tokenizer's
    beginning-of-text token if there is one. Question and newline are encoded together. Each line of a step is encoded
    alone and followed by the token of a lone newline, so merged tokens such as ``.\\n`` never appear. A reward is the
    sigmoid of the head at the newline that ends the step. Source: ``prepare_input`` of
    SkyworkAI/skywork-o1-prm-inference, which takes every line for a step. Here lines inside a step are encoded in the
    same way, but get no reward.
    """

    head = LinearHead("v_head.summary.")

    def __init__(self, settings: Any, tokenizer: "PreTrainedTokenizerBase") -> None:
        super().__init__(settings, tokenizer)
        self._newline = self.chat.encode_text("\n")[-1]

    def question_ids(self, question: str) -> list[int]:
        return [*self.start, *self.chat.encode_text(question + "\n")]

    def step_ids(self, step: str) -> list[int]:
        lines = map(self.chat.encode_text, step.strip().split("\n"))
        return [token for line in lines for token in (*line, self._newline)]


class ValueHeadSettings(RewardModelSettings):
    """A model with one number at every token."""

    family: Literal["value_head"] = "value_head"
    reader: ClassVar[type[RewardFamily]] = ValueHead
