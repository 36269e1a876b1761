"""Families whose model has a head that is read at a tag in one text, as presets of a template."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from deployments.engines.rewards.family import LinearHead, RewardFamily, RewardModelSettings
from deployments.engines.rewards.heads import LastTokenHead
from deployments.engines.rewards.labels import Question, TextEncoder, TextTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextHead(LastTokenHead):
    """A reward is the sigmoid of the head at the step's tag."""

    classifier = "ForTokenClassification"

    def __init__(self, settings: "TextHeadSettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises EngineStartError when the tag is no token of the model."""
        super().__init__(settings, tokenizer)
        self._template = settings.template_of_text
        self._text = TextEncoder(self._template, tokenizer)

    def path_ids(self, question: str, steps: Sequence[str]) -> list[int]:
        return self._text.encode(self._template.texts(question, steps))


class TextHeadSettings(RewardModelSettings):
    """A model with a head at a tag. Its subclasses are the presets."""

    preset: ClassVar[TextTemplate]
    reader: ClassVar[type[RewardFamily]] = TextHead

    @property
    def template_of_text(self) -> TextTemplate:
        """The preset, or what the settings make of it."""
        return self.preset

    @property
    def tokens_per_step(self) -> int:
        return self.template_of_text.tokens_per_step

    @property
    def added_text(self) -> str:
        return self.template_of_text.question


class Pqm(TextHead):
    """A language model with TRL's value head."""

    head = LinearHead("v_head.summary.")


class PqmSettings(TextHeadSettings):
    """PQM (arXiv 2410.11287): a value head, read at the token ``[PRM]``, which the tokenizer must have.

    Source: ``instruction_format`` and ``data_collator`` in ``bon_eval_hf.py`` of WindyLee0822/Process_Q_Model, which
    adds the token to deepseek-math-7b-base's tokenizer, and encodes without a beginning-of-text token.
    """

    family: Literal["pqm"] = "pqm"
    question: Question = (
        "Below is an instruction that describes a task.\nWrite a response that appropriately completes the request."
        "\n\n### Instruction:\n{question}\n\n### Response: Let's think step by step\n"
    )
    reader: ClassVar[type[RewardFamily]] = Pqm

    @property
    def template_of_text(self) -> TextTemplate:
        return TextTemplate(question=self.question, step="Step {number}: {step}", tag=" [PRM]", begin_of_text=False)


class LlemmaPrm(TextHead):
    """A language model whose logits stand for their mean."""

    head = LinearHead("lm_head.", mean=True, bias=False)


class LlemmaPrmSettings(TextHeadSettings):
    """Llemma-PRM (arXiv 2403.09472): the mean of all logits at the first newline of the empty line after a step.

    Source: the example in the model card of ScalableMath/llemma-7b-prm-prm800k-level-1to3-hf, whose ``lm_head`` repeats
    the two rows of the reward head (``scripts/convert_checkpoint_to_hf.py`` of Edward-Sun/easy-to-hard), and
    ``Llemma7bPRM`` in ``mr_eval/models/llemma7b_prm.py`` of ssmisya/PRMBench.
    """

    family: Literal["llemma_prm"] = "llemma_prm"
    preset: ClassVar[TextTemplate] = TextTemplate(
        question="# Question\n\n{question}\n\n# Solution\n\n", tag="\n", separator="\n"
    )
    reader: ClassVar[type[RewardFamily]] = LlemmaPrm


class MathMinosSettings(TextHeadSettings):
    """MATH-Minos's PRM (arXiv 2406.14024): a token classification model with one class, read at `` и``.

    Source: ``MathMinos_Mistral`` in ``mr_eval/models/mathminos_mistral.py`` of ssmisya/PRMBench. The authors' own
    training, ``RM/process_reward_modeling_pointwise.py`` of KbsdJames/MATH-Minos, is at the same token.
    """

    family: Literal["math_minos"] = "math_minos"
    preset: ClassVar[TextTemplate] = TextTemplate(
        question="Human: {question}\n\nAssistant:", step="Step {number}: {step}", tag=" и"
    )


TEXT_HEADS: tuple[type[TextHeadSettings], ...] = tuple(TextHeadSettings.__subclasses__())
"""All of this module."""
