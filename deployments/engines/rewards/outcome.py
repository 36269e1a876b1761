"""Family ``outcome``: a model that scores whole solutions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from deployments.engines.encoding import ChatEncoder
from deployments.engines.rewards.family import Query, RewardFamily, RewardModelSettings
from deployments.engines.rewards.heads import Head
from deployments.engines.settings import SystemPrompt

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase


class Outcome(Head):
    """The format of Qwen2.5-Math-RM (``Qwen2ForRewardModel``).

    The path is one completed chat turn of the assistant. A reward is the sigmoid of the head at the last token. A step
    is scored by the path up to it, as if that were the solution. That is meaningful only for solutions that have ended:
    use it for best-of-N with ``aggregation: last``, not for searches that prune.
    """

    classes = 1

    def __init__(self, settings: "OutcomeSettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        self._chat = ChatEncoder(tokenizer)
        self._system = [] if settings.system_prompt is None else [{"role": "system", "content": settings.system_prompt}]

    def queries(self, question: str, steps: Sequence[str], unscored: int) -> list[Query]:
        ends = range(len(steps) - unscored + 1, len(steps) + 1)
        return [query for end in ends for query in super(Outcome, self).queries(question, steps[:end], 1)]

    def encode(self, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
        turns = [*self._system, {"role": "user", "content": question}]
        token_ids = self._chat.encode_chat([*turns, {"role": "assistant", "content": "".join(steps)}], answered=True)
        return token_ids, [len(token_ids) - 1]

    def rewards_of(self, rows: "Tensor") -> "Tensor":
        return rows[:, 0].sigmoid()


class OutcomeSettings(RewardModelSettings):
    """A model with a one-number head that reads whole solutions."""

    family: Literal["outcome"] = "outcome"
    system_prompt: SystemPrompt = None
    reader: ClassVar[type[RewardFamily]] = Outcome
