"""Family ``label_inline``: one text with a tag after every step, and the label read at the tag."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from deployments.engines.rewards.family import Query, RewardFamily
from deployments.engines.rewards.labels import LabelSettings, LabelTokens, last_token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LabelInline(LabelTokens):
    """The format of Math-Shepherd (arXiv 2312.08935).

    The text is the question, a space, and one line per step: the step, a space and the tag. There is no chat template.
    The tag at which a label is read is appended as a token id; earlier tags are encoded with the text.
    """

    def __init__(self, settings: "LabelInlineSettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises EngineStartError when the step tag is no token of the model."""
        super().__init__(settings, tokenizer)
        self._tag = settings.step_tag
        self._tag_id = last_token(tokenizer, self._tag, before="x ")
        self._start = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]

    def queries(self, question: str, steps: Sequence[str], unscored: int) -> list[Query]:
        text = f"{question} "
        queries: list[Query] = []
        for index, step in enumerate(steps):
            text += step.strip()
            if index >= len(steps) - unscored:
                queries.append(self.query([*self._start, *self.chat.encode_text(text), self._tag_id]))
            text += f" {self._tag}\n"
        return queries


class LabelInlineSettings(LabelSettings):
    """A language model that says a label at a tag behind every step."""

    family: Literal["label_inline"] = "label_inline"
    step_tag: str = Field("ки", min_length=1, description="The token at which a step is scored.")
    reader: ClassVar[type[RewardFamily]] = LabelInline
    tokens_per_step: ClassVar[int] = 4
