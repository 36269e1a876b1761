"""Reward models that predict a label, such as ``+`` or ``-``, after every step: one reader and a template of its input.

The published formats are in ``label_presets``.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Self, TypeAlias

from pydantic import Field, model_validator

from deployments.engines.encoding import ChatEncoder
from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.family import Query, RewardFamily, RewardModelSettings
from deployments.engines.settings import Delimiter, Runner, Settings, SystemPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm import SamplingParams

    from deployments.engines.engine_calls import Output

Labels: TypeAlias = Annotated[tuple[str, str], Field(description="The tokens for right and wrong.")]
Question: TypeAlias = Annotated[str, Field(max_length=1000, pattern=r"^[^{}]*\{question\}[^{}]*$")]

_SEPARATOR = "\n"
_TURN_TOKENS = 12
"""Tokens of a step's turn and its answer, beside the step."""
_TAG_TOKENS = 3
"""A tag, and two tokens that the step's text may gain beside it: it is not merged with the delimiter, nor with a
separator."""
_STEP_NUMBER = "0000"


class TextTemplate(Settings):
    """How a question and steps become a text: the question in its pattern, then for every step the step in its pattern,
    the tag and the separator. A step is scored at its tag."""

    question: Question = "{question} "
    strip_question: bool = Field(False, description="Whether whitespace around the question is removed.")
    step: str = Field(
        "{step}",
        max_length=200,
        pattern=r"^[^{}]*(\{number\}[^{}]*)?\{step\}[^{}]*$",
        description="Template of a step; it may contain {number}, counted from 1. A step that begins with `Step` "
        "gets no number.",
    )
    tag: str | None = Field(
        " ки",
        min_length=1,
        max_length=50,
        description="Token at which a step's label is read, with the space before it.",
    )
    separator: Delimiter = Field(_SEPARATOR, max_length=50, description="Text after each tag except the last.")
    begin_of_text: bool = Field(
        True, description="Whether the prompt begins with the tokenizer's begin-of-text token, if it has one."
    )

    @property
    def step_suffix(self) -> str:
        """Text between a step and its tag."""
        return self.step.partition("{step}")[2]

    @property
    def tokens_per_step(self) -> int:
        """Maximum number of tokens that the template adds to a step. A token has at least one byte."""
        around = self.step.replace("{step}", "").replace("{number}", _STEP_NUMBER)
        if self.tag is None:
            return _TURN_TOKENS + len(around.encode())
        return _TAG_TOKENS + len((around + self.separator).encode())

    def texts(self, question: str, steps: Sequence[str]) -> list[str]:
        """One text for each step, without its tag. The first one begins with the question."""
        prefix, _, suffix = self.step.partition("{step}")
        texts: list[str] = []
        for number, step in enumerate(map(str.strip, steps), 1):
            has_number = "{number}" in prefix and step.startswith(("Step", "step"))
            texts.append(("" if has_number else prefix.replace("{number}", str(number))) + step + suffix)
        asked = question.strip() if self.strip_question else question
        return [self.question.replace("{question}", asked) + texts[0], *texts[1:]]


class LabelTemplate(TextTemplate):
    """How a question and steps become the text after which the model predicts a label, at the tag.

    Without a tag, the text is a chat: every step is a user turn, the first one begins with the question, and the
    assistant has answered all earlier ones with the first label.
    """

    labels: Labels = ("+", "-")
    system_prompt: SystemPrompt = None

    @model_validator(mode="after")
    def _read_with_this_tag(self) -> Self:
        if self.tag is None and self.separator != _SEPARATOR:
            raise ValueError("separator has no effect without a tag")
        if self.tag is not None and self.system_prompt is not None:
            raise ValueError("system_prompt has an effect only without a tag (tag: null)")
        return self


class TextEncoder:
    """Encodes texts of a template with a tag.

    The text up to a step's tag is encoded as a whole, earlier tags with it, and its own tag is appended as token ids: a
    step's text cannot merge with it.
    """

    def __init__(self, template: TextTemplate, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises EngineStartError when the tag is no token of the model."""
        assert template.tag is not None
        self._template = template
        self._chat = ChatEncoder(tokenizer)
        bos = tokenizer.bos_token_id if template.begin_of_text else None
        self._start = [] if bos is None else [int(bos)]
        self._between = template.tag + template.separator
        self._tag = last_tokens(tokenizer, template.tag, "x" + template.step_suffix)

    def encode(self, texts: Sequence[str]) -> list[int]:
        """The token ids of the steps' texts, up to the last one's tag. Raises ValueError: a text is not valid
        Unicode."""
        return [*self._start, *self._chat.encode_joined(texts, self._between), *self._tag]


class LabelReader:
    """Reads the probability of the good one of two labels: the softmax over the logits of the two.

    The request has a prompt that ends where the label is predicted, and generates one token. Only the two
    log-probabilities leave the engine. Their difference is that of the logits, so the softmax over two is the same.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", labels: Labels, model: str, before: str = "") -> None:
        """
        Args:
            before: text before each label, to which no token of the label belongs.

        Raises:
            EngineStartError: the labels are not two different tokens of ``model``.
        """
        ids = [last_tokens(tokenizer, label, before) for label in labels]
        if before and any(len(each) > 1 for each in ids):
            raise EngineStartError(f"prm labels {labels} are not one token each after {before!r}")
        self._good, self._bad = (each[-1] for each in ids)
        if self._good == self._bad:
            raise EngineStartError(f"prm labels {labels} are the same token of {model!r}")

    @property
    def params(self) -> "SamplingParams":
        """Parameters of a request that reads the labels."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprob_token_ids=[self._good, self._bad],
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def reward(self, output: "Output") -> float:
        """The probability of the good label. Raises ValueError when the output does not have those of both."""
        rows = output.outputs[0].logprobs
        if not rows or not {self._good, self._bad} <= rows[0].keys():
            raise ValueError("the engine returned no log-probabilities of the labels")
        margin = rows[0][self._bad].logprob - rows[0][self._good].logprob
        return 0.0 if margin >= 700 else 1.0 / (1.0 + math.exp(margin))


class LabelTokens(RewardFamily):
    """The reward of a step is the probability of the good label. Each step takes one query."""

    runner: ClassVar[Runner] = "generate"
    reserved_tokens = 1
    step_by_step = True

    def __init__(self, settings: "LabelSettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises EngineStartError when the labels are not two different tokens of the model, or the tag is no token."""
        self._template = template = settings.label_template
        self._chat = ChatEncoder(tokenizer)
        self._labels = LabelReader(tokenizer, template.labels, settings.model)
        self._text = None if template.tag is None else TextEncoder(template, tokenizer)

    def query(self, question: str, steps: Sequence[str], unscored: int) -> Query:
        token_ids = self.prompt_ids(question, steps)
        return Query(token_ids, self._labels.params, (len(token_ids) - 1,))

    def rewards(self, output: "Output", query: Query) -> list[float]:
        return [self._labels.reward(output)]

    def prompt_ids(self, question: str, steps: Sequence[str]) -> list[int]:
        texts = self._template.texts(question, steps)
        return self._in_turns(texts) if self._text is None else self._text.encode(texts)

    def _in_turns(self, texts: Sequence[str]) -> list[int]:
        turns: list[dict[str, str]] = []
        if self._template.system_prompt is not None:
            turns.append({"role": "system", "content": self._template.system_prompt})
        for text in texts:
            turns += {"role": "user", "content": text}, {"role": "assistant", "content": self._template.labels[0]}
        return self._chat.encode_chat(turns[:-1])


class LabelSettings(RewardModelSettings):
    """A language model that predicts a label after every step. Its subclasses are the presets."""

    preset: ClassVar[LabelTemplate] = LabelTemplate()
    reader: ClassVar[type[RewardFamily]] = LabelTokens

    @property
    def label_template(self) -> LabelTemplate:
        """The preset, or what the settings make of it."""
        return self.preset

    @property
    def reads_chat(self) -> bool:
        return self.label_template.tag is None

    @property
    def tokens_per_step(self) -> int:
        return self.label_template.tokens_per_step


def last_tokens(tokenizer: "PreTrainedTokenizerBase", text: str, before: str = "") -> list[int]:
    """The ids that ``text`` adds behind ``before``. The last one spells the text, but for a space in front, which some
    tokenizers do not return.

    Raises EngineStartError when it does not.
    """
    head = tokenizer.encode(before, add_special_tokens=False) if before else []
    ids = tokenizer.encode(before + text, add_special_tokens=False)
    if ids[: len(head)] != head or not ids or tokenizer.decode(ids[-1:]).lstrip(" ") != text.lstrip(" "):
        raise EngineStartError(f"{text!r} is not a token of the process reward model")
    return [int(token) for token in ids[len(head) :]]
