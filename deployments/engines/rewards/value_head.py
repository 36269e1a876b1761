"""Family ``value_head``: one number for every token, read at the last token of a step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from deployments.engines.encoding import ChatEncoder
from deployments.engines.rewards.family import RewardFamily, RewardModelSettings
from deployments.engines.rewards.heads import Head

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase


class ValueHead(Head):
    """The format of Skywork-o1-Open-PRM.

    The text is the question and the lines of the steps, without a chat template, behind the tokenizer's
    beginning-of-text token if there is one. Question and newline are encoded together. Each line of a step is encoded
    alone and followed by the token of a lone newline, so merged tokens such as ``.\\n`` never appear. A reward is the
    sigmoid of the head at the newline that ends the step. Source: ``prepare_input`` of
    SkyworkAI/skywork-o1-prm-inference, which takes every line for a step. Here lines inside a step are encoded in the
    same way, but get no reward.
    """

    classes = 1
    vllm_model = "deployments.engines.rewards.qwen2_heads:Qwen2ForPrmModel"

    def __init__(self, settings: "ValueHeadSettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        self._chat = ChatEncoder(tokenizer)
        self._start = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
        self._newline = self._chat.encode_text("\n")[-1]

    def encode(self, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
        token_ids = [*self._start, *self._chat.encode_text(question + "\n")]
        tags: list[int] = []
        for step in steps:
            for line in step.strip().split("\n"):
                token_ids += [*self._chat.encode_text(line), self._newline]
            tags.append(len(token_ids) - 1)
        return token_ids, tags

    def rewards_of(self, rows: "Tensor") -> "Tensor":
        return rows[:, 0].sigmoid()


class ValueHeadSettings(RewardModelSettings):
    """A model with one number at every token."""

    family: Literal["value_head"] = "value_head"
    reader: ClassVar[type[RewardFamily]] = ValueHead
