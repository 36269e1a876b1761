"""Prompts in which a model reads solutions: the default texts, and how the messages of a chat are made of one.

A template replaces the question in its chat, so system messages, examples and earlier turns stay as they are. Every
default is a published form, worded for questions of any kind; its ``source`` says which.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MAX_PROMPT_CHARS = 16_384
NEEDED = ("question", "candidates", "note")
"""Placeholders of a prompt. Each stands in it once."""
CONVERSATION = "The conversation above."
"""Stands for the question in a chat whose last message is no user's, such as a tool's result."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NOTE = re.compile(r"\{note\}\s*")
_NUMBER = re.compile(r"(?:[^\w\n]|\\boxed){0,8}(?<![-\u2212])(\d{1,6})\b")

Message: TypeAlias = Mapping[str, Any]
"""A message of a chat: ``role``, ``content``, and what it has of tools."""


class Template(BaseModel):
    """The text of a prompt that shows a question and solutions to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: str = Field(
        max_length=MAX_PROMPT_CHARS,
        description="The user's message, with {question}, {candidates}, and {note} for what is known besides, such as "
        "failed checks. A search without a note leaves {note} out, with the whitespace behind it. {count} is how many "
        "solutions are shown, and {last} the number of the last one.",
    )
    candidate: str = Field(
        "---- Solution {number} ----\n{text}",
        max_length=MAX_PROMPT_CHARS,
        description="How each solution is shown: {text}, and {number} if they are numbered.",
    )
    separator: str = Field("\n\n", max_length=64, description="Text between two solutions.")
    first: int = Field(1, ge=0, le=1, description="Number of the first solution.")
    choice: str = Field(
        "",
        max_length=64,
        description="Text before the number of the chosen solution in a reply, as the prompt asks for it. Empty: the "
        "reply chooses none.",
    )
    source: str = Field("", description="Where the prompt comes from.")

    @field_validator("prompt")
    @classmethod
    def _has_its_placeholders(cls, prompt: str) -> str:
        for name in NEEDED:
            if (count := prompt.count(f"{{{name}}}")) != 1:
                raise ValueError(f"must have {{{name}}} once, not {count} times")
        return prompt

    @field_validator("candidate")
    @classmethod
    def _has_the_text(cls, candidate: str) -> str:
        if "{text}" not in candidate:
            raise ValueError("must have {text}, the place of the solution")
        return candidate

    @model_validator(mode="after")
    def _asks_for_the_choice(self) -> Self:
        if self.choice and not _plain(self.choice).strip():
            raise ValueError(f"choice: must be a text, not {self.choice!r}")
        if self.choice and self.choice not in self.prompt:
            raise ValueError(f"choice: the prompt does not ask for {self.choice!r}")
        if self.choice and "{number}" not in self.candidate:
            raise ValueError("candidate: must have {number}: the reply chooses a number")
        return self

    def text(self, question: str, shown: Sequence[str], note: str = "") -> str:
        """The prompt that shows the solutions ``shown`` to ``question``, in their order."""
        candidates = self.separator.join(
            _filled(self.candidate, number=str(self.first + index), text=each.strip())
            for index, each in enumerate(shown)
        )
        prompt = self.prompt if note else _NOTE.sub("", self.prompt)
        last = self.first + len(shown) - 1
        values = {"question": question, "candidates": candidates, "note": note}
        return _filled(prompt, **values, count=str(len(shown)), last=str(last))

    def chosen(self, reply: str, count: int) -> int | None:
        """The index of the solution that a reply chooses among ``count`` shown ones: the number behind the last
        ``choice`` in it, bold or not. None if there is none behind that, or no solution has it."""
        if not self.choice:
            return None
        words = r"\s+".join(map(re.escape, _plain(self.choice).split()))
        behind = re.split(words, _plain(reply), flags=re.IGNORECASE)[1:]
        number = _NUMBER.match(behind[-1]) if behind else None
        index = int(number[1]) - self.first if number else -1
        return index if 0 <= index < count else None


def composed(messages: Sequence[Message], template: Template, shown: Sequence[str], note: str = "") -> list[Message]:
    """The messages of a chat in which the model reads ``shown`` solutions to the last message of ``messages``."""
    *earlier, last = messages
    if last["role"] == "user":
        return [*earlier, {**last, "content": template.text(last["content"], shown, note)}]
    return [*messages, {"role": "user", "content": template.text(CONVERSATION, shown, note)}]


def _plain(text: str) -> str:
    return text.replace("*", "")


def _filled(template: str, **values: str) -> str:
    """``template`` with the values of its placeholders, which are not searched for placeholders themselves."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)


TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {
        "select": Template(
            source="GenSelect, arXiv 2504.16891 and 2507.17797",
            first=0,
            choice="Judgment:",
            candidate="Solution {number}: {text}",
            prompt="""\
You will be given a problem followed by {count} solutions. Your task is to systematically analyze these solutions to \
identify the best one.

Problem: {question}

Solutions:
{candidates}

{note}

Evaluation process:

1. Initial screening: group the solutions by their final answers, identify and explain contradictions between \
different answers, and eliminate solutions with clear errors.
2. Detailed analysis: evaluate the accuracy, the logical progression and the completeness of the remaining solutions, \
and how they handle edge cases.
3. Comparison: compare the viable solutions by the soundness and the clarity of their reasoning.

End your evaluation with exactly:
Judgment: [IDX]
where IDX is the index 0-{last} of the best solution.""",
        ),
        "fuse": Template(
            source="RSA, arXiv 2509.26626, appendix F",
            prompt="""\
You are given a problem and several candidate solutions. Some candidates may be incorrect or contain errors. Aggregate \
the useful ideas and produce a single, high-quality solution. Reason carefully; if candidates disagree, choose the \
correct path. If all are incorrect, then attempt a different strategy.

Problem:
{question}

Candidate solutions (may contain mistakes):
{candidates}

{note}

Now write a single improved solution. Provide clear reasoning and end with the final answer in the form that the \
problem asks for.""",
        ),
        "refine": Template(
            source="RSA with one candidate, arXiv 2509.26626, appendix F",
            candidate="---- Candidate ----\n{text}",
            prompt="""\
You are given a problem and a candidate solution. The candidate may be incomplete or contain errors. Refine it and \
produce an improved, higher-quality solution. If it is entirely wrong, attempt a new strategy.

Problem:
{question}

Candidate solution (may contain mistakes):
{candidates}

{note}

Now refine the candidate into an improved solution. Provide clear reasoning and end with the final answer in the \
form that the problem asks for.""",
        ),
        "critique": Template(
            source="The feedback step of Self-Refine, arXiv 2303.17651",
            candidate="---- Candidate ----\n{text}",
            prompt="""\
You are given a problem and a candidate solution, which may contain errors. To find them, go through the solution step \
by step and check whether each step is right.

Problem:
{question}

Candidate solution:
{candidates}

{note}

Name every error and say what is wrong with it. If everything is right, say so. Do not write a new solution.""",
        ),
    }
)
"""The default templates, by name."""
