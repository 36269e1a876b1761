"""Family ``label_turns``: a conversation in which every step is a user turn and its label the assistant's answer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from deployments.engines.rewards.family import Query, RewardFamily
from deployments.engines.rewards.labels import LabelSettings, LabelTokens
from deployments.engines.settings import SystemPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LabelTurns(LabelTokens):
    """The format of RLHFlow's Llama3.1-8B-PRM.

    The first user turn is the question, a space and the first step; each further user turn is a step. The assistant has
    answered all earlier ones with the good label.
    """

    def __init__(self, settings: "LabelTurnsSettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        super().__init__(settings, tokenizer)
        self._system = [] if settings.system_prompt is None else [{"role": "system", "content": settings.system_prompt}]
        self._answer = {"role": "assistant", "content": settings.labels[0]}

    def queries(self, question: str, steps: Sequence[str], unscored: int) -> list[Query]:
        turns = [*self._system]
        queries: list[Query] = []
        for index, step in enumerate(steps):
            text = step.strip()
            turns.append({"role": "user", "content": text if index else f"{question} {text}"})
            if index >= len(steps) - unscored:
                queries.append(self.query(self.chat.encode_chat(turns)))
            turns.append(self._answer)
        return queries


class LabelTurnsSettings(LabelSettings):
    """A language model that answers every step with a label."""

    family: Literal["label_turns"] = "label_turns"
    system_prompt: SystemPrompt = None
    reader: ClassVar[type[RewardFamily]] = LabelTurns
    tokens_per_step: ClassVar[int] = 12
