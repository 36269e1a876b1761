"""Family ``step_head``: a two-class head, read at a special token after every step."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.family import RewardFamily, RewardModelSettings, Shapes, two_layers
from deployments.engines.rewards.heads import StepwiseHead
from deployments.engines.settings import EMBEDDED_PRM, MODEL, SystemPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


class StepHead(StepwiseHead):
    """The format of Qwen2.5-Math-PRM (arXiv 2501.07301).

    The path is one chat turn of the assistant: each step's text, without surrounding whitespace, then the tag as a
    token id. A reward is the softmax probability of class 1 at the tag.
    """

    classes = 2
    classifier: ClassVar[str | None] = "ForTokenClassification"
    reads_chat = True

    def __init__(self, settings: "StepHeadSettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises EngineStartError when the step tag is not a special token of the model."""
        super().__init__(settings, tokenizer)
        tag = tokenizer.get_added_vocab().get(settings.step_tag)
        if tag is None:
            raise EngineStartError(f"prm.step_tag {settings.step_tag!r} is not a special token of {settings.model!r}")
        self._tag = tag

    @classmethod
    def head_shapes(cls, config: "PreTrainedConfig") -> Shapes | None:
        return two_layers("score.", config.hidden_size, cls.classes)

    def step_ids(self, step: str) -> list[int]:
        return [*self.chat.encode_text(step.strip()), self._tag]


class StepHeadSettings(RewardModelSettings):
    """A model with a two-class head at a tag behind every step, such as the embedded one."""

    family: Literal["step_head"] = "step_head"
    model: str = Field(EMBEDDED_PRM, description=MODEL)
    step_tag: str = Field("<extra_0>", min_length=1, description="Token at which a step's reward is read.")
    system_prompt: SystemPrompt = None
    reader: ClassVar[type[RewardFamily]] = StepHead
