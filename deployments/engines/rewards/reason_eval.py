"""Family ``reason_eval``: a head of three classes, read at the end of every step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.family import LinearHead, RewardFamily, RewardModelSettings
from deployments.engines.rewards.heads import StepwiseHead

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPT = "Question:\n{question}\nAnswer:\nLet's think step by step.\n"


class ReasonEval(StepwiseHead):
    """The format of ReasonEval-7B and -34B (arXiv 2404.05692): three classes, nothing between the steps.

    Question and steps are encoded with the padding token between them, which is then removed. A reward is the validity,
    the softmax probability of the classes neutral and positive, at the last token of the step. Source: ``get_results``
    in ``codes/examples.py`` of GAIR-NLP/ReasonEval. For the 7B model, whose padding token is the beginning-of-text
    token, its positions are one before the steps' last ones.
    """

    classes = 3
    head = LinearHead("score_head.", classes, bias="use_bias")

    def __init__(self, settings: "ReasonEvalSettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises EngineStartError when the tokenizer has no padding token."""
        super().__init__(settings, tokenizer)
        if tokenizer.pad_token is None:
            raise EngineStartError(f"the tokenizer of {settings.model!r} has no padding token, which separates steps")
        self._separator = str(tokenizer.pad_token)
        self._one_before = tokenizer.pad_token == tokenizer.bos_token

    def question_ids(self, question: str) -> list[int]:
        return [*self.start, *self.chat.encode_text(PROMPT.replace("{question}", question))]

    def step_ids(self, step: str) -> list[int]:
        return self.chat.encode_joined(["", step.strip()], self._separator)[1:]

    def encode(self, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
        token_ids, tags = super().encode(question, steps)
        return (token_ids[:-1], [tag - 1 for tag in tags]) if self._one_before else (token_ids, tags)


class ReasonEvalSettings(RewardModelSettings):
    """A model that says whether a step is positive, neutral or negative."""

    family: Literal["reason_eval"] = "reason_eval"
    reader: ClassVar[type[RewardFamily]] = ReasonEval

    @property
    def added_text(self) -> str:
        return PROMPT
