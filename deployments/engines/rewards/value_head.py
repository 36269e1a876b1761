"""A value head: one number at every token, read at the last token of a step."""

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from deployments.config import PrmSettings
from deployments.engines.encoding import ChatEncoder
from deployments.engines.rewards.heads import Head
from deployments.engines.rewards.plugin import VALUE_HEAD


class ValueHead(Head):
    """As Skywork-o1-Open-PRM.

    The text is the question and the steps in a line each, without a chat template; the tokenizer's beginning-of-text
    token first, where it has one. A reward is the sigmoid of the head at the newline that ends the step.
    """

    classes = 1
    architecture = VALUE_HEAD

    def __init__(self, settings: PrmSettings, tokenizer: PreTrainedTokenizerBase) -> None:
        self._chat = ChatEncoder(tokenizer)
        self._start = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]

    def encode(self, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
        token_ids = [*self._start, *self._chat.encode_text(question + "\n")]
        tags: list[int] = []
        for step in steps:
            token_ids += self._chat.encode_text(step.strip() + "\n")
            tags.append(len(token_ids) - 1)
        return token_ids, tags

    def rewards_of(self, rows: Tensor) -> Tensor:
        return rows[:, 0].sigmoid()
