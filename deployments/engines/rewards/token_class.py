"""Family ``token_class``: a token classification model, read at a separator after every step."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.family import RewardFamily, RewardModelSettings
from deployments.engines.rewards.heads import StepwiseHead
from deployments.engines.settings import Delimiter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TokenClass(StepwiseHead):
    """The format of TRL's ``PRMTrainer`` and of PURE-PRM-7B, which it trained (arXiv 2504.15275).

    Question, steps and separator are encoded one by one, behind the tokenizer's beginning-of-text token if there is
    one. A reward is the softmax probability of class 1 at the separator's last token. PURE's own reward is p(1) - p(0),
    which is twice this one, less one.

    Source: ``PRMTrainer.tokenize_row`` in ``trl/experimental/prm/prm_trainer.py`` of huggingface/trl. Of
    CJReinforce/PURE: ``NaiveExperienceMaker`` in ``openrlhf/trainer/ppo_utils/experience_maker.py`` and
    ``turn_process_reward_logits_to_reward`` in ``openrlhf/utils/utils.py``; the separator is ``\\n`` there and in the
    model card. (PRMBench reads that model at ``\\n\\n``.)
    """

    classes = 2
    classifier = "ForTokenClassification"

    def __init__(self, settings: "TokenClassSettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises EngineStartError when the separator has no tokens."""
        super().__init__(settings, tokenizer)
        # As it is, not as a text: it may be a special token.
        self._separator = tokenizer.encode(settings.step_separator, add_special_tokens=False)
        if not self._separator:
            raise EngineStartError(f"prm.step_separator {settings.step_separator!r} has no token in {settings.model!r}")

    def question_ids(self, question: str) -> list[int]:
        return [*self.start, *self.chat.encode_text(question)]

    def step_ids(self, step: str) -> list[int]:
        return [*self.chat.encode_text(step.strip()), *self._separator]


class TokenClassSettings(RewardModelSettings):
    """A token classification model with two classes, such as ``Qwen2ForTokenClassification``."""

    family: Literal["token_class"] = "token_class"
    step_separator: Delimiter = Field(
        "\n", min_length=1, max_length=50, description="Text after each step; the step is scored at its last token."
    )
    reader: ClassVar[type[RewardFamily]] = TokenClass

    @property
    def tokens_per_step(self) -> int:
        return len(self.step_separator.encode())
