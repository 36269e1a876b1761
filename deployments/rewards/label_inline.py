"""Label tokens inline: a tag behind every step of one text, and the label read at the tag."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from deployments.config import PrmSettings
from deployments.rewards.family import Query
from deployments.rewards.labels import LabelTokens, last_token

DEFAULT_TAG = "ки"


class LabelInline(LabelTokens):
    """As Math-Shepherd (arXiv 2312.08935).

    The text is the question, a space, and the steps in a line each, every one followed by the tag as a token id. No
    chat template; the tokenizer's beginning-of-text token first, where it has one.
    """

    def __init__(self, settings: PrmSettings, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises EngineStartError when the step tag is no token of the model."""
        super().__init__(settings, tokenizer)
        self._tag = last_token(tokenizer, settings.step_tag or DEFAULT_TAG)
        self._start = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]

    def queries(self, question: str, steps: Sequence[str], unscored: int) -> list[Query]:
        token_ids = [*self._start, *self.chat.encode_text(question)]
        queries: list[Query] = []
        for place, step in enumerate(steps):
            token_ids += [*self.chat.encode_text(("\n" if place else " ") + step.strip() + " "), self._tag]
            if place >= len(steps) - unscored:
                queries.append(self.query(list(token_ids)))
        return queries
