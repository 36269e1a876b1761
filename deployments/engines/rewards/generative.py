"""Generative verifiers: a language model that writes a critique of a solution before its verdict is read.

The published formats are in ``generative_presets``; `deployments.engines.verification` writes the critiques.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from deployments.engines.encoding import ChatEncoder
from deployments.engines.rewards.family import Query, RewardFamily, RewardModelSettings
from deployments.engines.rewards.labels import LabelReader, Labels
from deployments.engines.settings import Runner, Settings, SystemPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from deployments.engines.engine_calls import Output

SPARE_TOKENS = 32
"""Tokens of the context that a critique leaves free: its text, encoded again, may take a few tokens more."""
_TURN_TOKENS = 12
"""Tokens of two turns of a chat, beside their texts."""
_PLACEHOLDER = re.compile(r"\{(question|steps|previous|step|number|next)\}")
_USER_NAMES = (["question", "steps"], ["question", "step"], ["previous", "question", "step"])
"""Texts that a user turn may name, sorted."""
_OWN_NUMBER = re.compile(r"Step \d+:")

INSTRUCTION = """You are given a problem and a proposed step-by-step solution:

[Problem]
{question}

[Solution]
{steps}

Review and critique each step in the proposed solution to determine whether each step is correct. If the solution is \
incomplete, only verify the provided steps. At the end, write either "Is the solution correct? Yes" or \
"Is the solution correct? No"."""


class VerifierTemplate(Settings):
    """How a question and a path become a verifier's prompt, and where its verdict is read.

    The prompt is a chat. `user` is its one user turn or, with `answer`, the first of a turn for each step. The critique
    ends at `cue`, at a text of `stop`, or at its last token. The label is predicted behind it: behind the cue, or
    else behind the text of `verdict`, which takes the place of `stop`.
    """

    system_prompt: SystemPrompt = None
    user: str = Field(
        INSTRUCTION,
        max_length=20_000,
        description="Template of the user message. It contains {question} and either {steps}, all steps, or {step}, "
        "the last one; {previous} stands for the earlier steps, {number} for the number of steps, "
        "{next} for that number plus one.",
    )
    step: str = Field(
        "Step {number}: {step}", max_length=200, description="Template of one step within {steps} and {previous}."
    )
    renumber: bool = Field(False, description="Whether a leading `Step 1:` is removed from the text of a step.")
    no_previous: str = Field("", max_length=1000, description="Text of {previous} for the first step.")
    answer: str | None = Field(
        None,
        max_length=1000,
        description="Assistant message after each earlier step. If set, each step is a user message of its own and "
        "`user` is the first one.",
    )
    opening: str = Field(
        "Let's verify step by step:", max_length=1000, description="Text with which each critique begins."
    )
    stop: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        (), max_length=8, description="Stop strings of a critique; they are not part of it."
    )
    cue: str | None = Field(
        "Is the solution correct?",
        min_length=1,
        max_length=200,
        description="Text after which the model writes its own label.",
    )
    verdict: str = Field(
        "\nIs the solution correct?",
        min_length=1,
        max_length=1000,
        description="Text to append before the label if the critique ended without `cue`.",
    )
    labels: Labels = (" Yes", " No")

    @model_validator(mode="after")
    def _names_question_and_step(self) -> Self:
        found = [name for name in _PLACEHOLDER.findall(self.user) if name not in ("number", "next")]
        # A text that stood twice in the prompt would need twice the context.
        if sorted(found) not in _USER_NAMES:
            raise ValueError("user must name, once, {question} and {steps}; or {question}, {step} and maybe {previous}")
        if self.step.count("{step}") != 1:
            raise ValueError("step must name {step}, once")
        return self

    @property
    def tokens_per_step(self) -> int:
        """Maximum number of tokens that the template adds to a step. A token has at least one byte."""
        turns = 0 if self.answer is None else _TURN_TOKENS + len(self.answer.encode())
        return turns + len(self.step.encode())

    @property
    def fixed_text(self) -> str:
        """Text that the template adds once to a path."""
        parts = (self.system_prompt, self.user, self.no_previous, self.opening, self.verdict, self.cue)
        return "".join(part or "" for part in parts)

    def messages(self, question: str, steps: Sequence[str]) -> list[dict[str, str]]:
        """The chat up to the turn in which the critique of ``steps`` is written."""
        steps = [self._plain(step) for step in steps]
        first = steps if self.answer is None else steps[:1]
        turns = [{"role": "user", "content": _filled(self.user, self._values(first, question))}]
        if self.system_prompt is not None:
            turns.insert(0, {"role": "system", "content": self.system_prompt})
        if self.answer is not None:
            for step in steps[1:]:
                turns += {"role": "assistant", "content": self.answer}, {"role": "user", "content": step}
        return turns

    def opening_of(self, steps: int) -> str:
        """The opening of a critique of so many steps."""
        return _filled(self.opening, _numbers(steps))

    def stops_of(self, steps: int) -> list[str]:
        """The texts that end a critique of so many steps, the cue among them."""
        own = () if self.cue is None else (self.cue,)
        return [*own, *(_filled(text, _numbers(steps)) for text in self.stop)]

    def _plain(self, step: str) -> str:
        return (_OWN_NUMBER.sub("", step) if self.renumber else step).strip()

    def _values(self, steps: Sequence[str], question: str) -> dict[str, str]:
        lines = [_filled(self.step, {"step": step, "number": str(number)}) for number, step in enumerate(steps, 1)]
        previous = "\n".join(lines[:-1]) or self.no_previous
        own = {"question": question, "steps": "\n".join(lines), "previous": previous, "step": steps[-1]}
        return own | _numbers(len(steps))


class Generative(RewardFamily):
    """The reward of a step is the probability of the good label behind a critique of the path up to the step, as
    `LabelReader` reads it; the mean over several critiques.

    Every published verifier of this kind judges a whole solution, most of them each of its steps in turn. Here only the
    verdict about the path's end is read: the earlier steps have their rewards.

    A query is the prompt of a critique. `verdict` makes the query that reads the label behind the critique's text. That
    text is encoded again, as the authors' code does: it ends where it was cut, within a token or not.
    """

    runner: ClassVar[Runner] = "generate"
    reads_chat = True
    step_by_step = True

    def __init__(self, settings: "VerifierSettings", tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises EngineStartError when the labels are not two different tokens of the model."""
        self._settings = settings
        self._template = template = settings.verifier_template
        self._chat = ChatEncoder(tokenizer)
        texts = [template.verdict] if template.cue is None else [template.verdict, template.cue]
        self._labels, *_ = [LabelReader(tokenizer, template.labels, settings.model, before) for before in texts]
        self.reserved_tokens = 1 + max(len(self._chat.encode_text(text, written=True)) for text in texts)

    def rewards(self, output: "Output", query: Query) -> list[float]:
        return [self._labels.reward(output)]

    def prompt_ids(self, question: str, steps: Sequence[str]) -> list[int]:
        template = self._template
        return self._chat.encode_chat(template.messages(question, steps), opening=template.opening_of(len(steps)))

    def verdict(self, query: Query, critique: str, stopped_by: object = None) -> Query:
        """The query that reads the verdict.

        Args:
            query: that of the critique.
            critique: its text, without what stopped it.
            stopped_by: the text that stopped it, if one did.
        """
        cue = self._template.cue
        before = cue if cue is not None and stopped_by == cue else self._template.verdict
        token_ids = [*query.token_ids, *self._chat.encode_text(critique + before, written=True)]
        return Query(token_ids, self._labels.params, (len(token_ids) - 1,))

    def query(self, question: str, steps: Sequence[str], unscored: int) -> Query:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        template, settings = self._template, self._settings
        token_ids = self.prompt_ids(question, steps)
        params = SamplingParams(
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            stop=template.stops_of(len(steps)),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        return Query(token_ids, params, (len(token_ids) - 1,))


class VerifierSettings(RewardModelSettings):
    """A language model that writes a critique before its verdict is read. Its subclasses are the presets."""

    samples: int = Field(4, ge=1, le=64, description="Critiques per step; its reward is the mean of their verdicts.")
    max_tokens: int = Field(2048, ge=1, le=131_072, description="Maximum tokens of a critique.")
    temperature: float = Field(
        0.6, ge=0, le=2, description="Sampling temperature of critiques; 0 is greedy and allows one sample only."
    )
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=1_000_000, description="Top-k sampling of critiques; 0 turns it off.")
    scoring_delay_s: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Target for the longest wait of a step before it is scored, seconds; the pool scales up at 0.8 "
        "of it.",
    )
    preset: ClassVar[VerifierTemplate] = VerifierTemplate()
    reader: ClassVar[type[RewardFamily]] = Generative

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(f"samples must be 1 with temperature 0, not {self.samples}: they would all be the same")
        return self

    @property
    def seeded(self) -> bool:
        return self.temperature > 0

    @property
    def verifier_template(self) -> VerifierTemplate:
        """The preset, or what the settings make of it."""
        return self.preset

    @property
    def tokens_per_step(self) -> int:
        return self.verifier_template.tokens_per_step

    @property
    def critique_tokens(self) -> int:
        return self.max_tokens + SPARE_TOKENS

    @property
    def added_text(self) -> str:
        return self.verifier_template.fixed_text


def _numbers(steps: int) -> dict[str, str]:
    return {"number": str(steps), "next": str(steps + 1)}


def _filled(pattern: str, values: Mapping[str, str]) -> str:
    """The pattern with values in place of their names in braces, whatever the values spell."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), pattern)
