"""Label tokens in turns: a conversation in which every step is a user's turn and its label the answer."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from deployments.config import PrmSettings
from deployments.engines.rewards.family import Query
from deployments.engines.rewards.labels import LabelTokens


class LabelTurns(LabelTokens):
    """As RLHFlow's Llama3.1-8B-PRM.

    The first turn is the question, a space and the first step, each further turn a step; the assistant answered all
    earlier ones with the good label.
    """

    def __init__(self, settings: PrmSettings, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(settings, tokenizer)
        self._system = [] if settings.system_prompt is None else [{"role": "system", "content": settings.system_prompt}]
        self._answer = {"role": "assistant", "content": settings.labels[0]}

    def queries(self, question: str, steps: Sequence[str], unscored: int) -> list[Query]:
        turns = [*self._system]
        queries: list[Query] = []
        for place, step in enumerate(steps):
            text = step.strip()
            turns.append({"role": "user", "content": text if place else f"{question} {text}"})
            if place >= len(steps) - unscored:
                queries.append(self.query(self.chat.encode_chat(turns)))
            turns.append(self._answer)
        return queries
