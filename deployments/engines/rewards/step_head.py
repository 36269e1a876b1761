"""Family ``step_head``: a two-class head, read at a special token after every step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from deployments.engines.encoding import ChatEncoder
from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.family import (
    MAX_REMEMBERED_CHARACTERS,
    RewardFamily,
    RewardModelSettings,
    remembered_ids,
)
from deployments.engines.rewards.heads import Head
from deployments.engines.settings import EMBEDDED_PRM, SystemPrompt

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase


class StepHead(Head):
    """The format of Qwen2.5-Math-PRM (arXiv 2501.07301).

    The path is one chat turn of the assistant: each step's text, without surrounding whitespace, then the tag as a
    token id. A reward is the softmax probability of class 1 at the tag.
    """

    classes = 2

    def __init__(self, settings: "StepHeadSettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises EngineStartError when the step tag is no special token of the model."""
        self._chat = ChatEncoder(tokenizer)
        self._system = settings.system_prompt
        tag = tokenizer.get_added_vocab().get(settings.step_tag)
        if tag is None:
            raise EngineStartError(f"prm.step_tag {settings.step_tag!r} is no special token of {settings.model!r}")
        self._tag = tag
        self._questions = remembered_ids()
        self._steps = remembered_ids()

    def encode(self, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
        token_ids = list(self._question_ids(question))
        tags: list[int] = []
        for step in steps:
            token_ids += self._step_ids(step)
            tags.append(len(token_ids) - 1)
        return token_ids, tags

    def rewards_of(self, rows: "Tensor") -> "Tensor":
        return rows.softmax(dim=-1)[:, 1]

    def _question_ids(self, question: str) -> list[int]:
        ids = self._questions.get(question)
        if ids is None:
            turns = [{"role": "user", "content": question}]
            if self._system is not None:
                turns.insert(0, {"role": "system", "content": self._system})
            ids = self._chat.encode_chat(turns)
            if len(question) <= MAX_REMEMBERED_CHARACTERS:
                self._questions[question] = ids
        return ids

    def _step_ids(self, step: str) -> list[int]:
        ids = self._steps.get(step)
        if ids is None:
            ids = [*self._chat.encode_text(step.strip()), self._tag]
            if len(step) <= MAX_REMEMBERED_CHARACTERS:
                self._steps[step] = ids
        return ids


class StepHeadSettings(RewardModelSettings):
    """A model with a two-class head at a tag behind every step, such as the embedded one."""

    family: Literal["step_head"] = "step_head"
    model: str = EMBEDDED_PRM
    step_tag: str = Field("<extra_0>", min_length=1, description="The token at which a step is scored.")
    system_prompt: SystemPrompt = None
    reader: ClassVar[type[RewardFamily]] = StepHead
