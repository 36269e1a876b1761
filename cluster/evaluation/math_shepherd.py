"""The lines of Math-Shepherd's own file: a text with a tag after each step, and the same text with a label in place of
each tag."""

import re
from typing import NamedTuple

STEP_TAG = "ки"
SIGNS = {"+": True, "-": False}
FIRST_STEP = re.compile(r"\bStep 1:", re.IGNORECASE)
STEP_NUMBER = re.compile(r"Step \d+:", re.IGNORECASE)
NO_FIT = f"label: must be the input with + or - in place of each {STEP_TAG}, as in Math-Shepherd"
NO_QUESTION = "input: there must be a question and then 'Step 1:', as in Math-Shepherd"


class TaggedSolution(NamedTuple):
    """A question and a solution with labels."""

    question: str
    steps: list[str]
    """Without their numbers, which reward models that want them write."""
    labels: list[bool]
    """Whether each step is right; of a last step without a tag nothing is known, and it has no label."""


def tagged_solution(tagged: str, labelled: str) -> TaggedSolution:
    """Reads the fields ``input`` and ``label`` of a line.

    Source: the data set peiyi9979/Math-Shepherd. As in TRL's conversion (``examples/datasets/math_shepherd.py``), a tag
    within the question, a mistake of the annotation, is left out with its label.

    Raises:
        ValueError: the fields do not fit each other, or no question and steps are found. The message names the field.
    """
    *texts, untagged = tagged.split(STEP_TAG)
    labels: list[bool] = []
    position = 0
    for text in texts:
        end = position + len(text)
        if labelled[position:end] != text or (sign := labelled[end : end + 1]) not in SIGNS:
            raise ValueError(NO_FIT)
        labels.append(SIGNS[sign])
        position = end + 1
    if not labels:
        raise ValueError(f"input: there is no {STEP_TAG}, which ends each step in Math-Shepherd")
    if labelled[position:] != untagged:
        raise ValueError(NO_FIT)
    if untagged.strip():
        texts.append(untagged)
    for index, text in enumerate(texts):
        if found := [*FIRST_STEP.finditer(text)]:
            question = "".join([*texts[:index], text[: found[-1].start()]]).strip()
            steps = [text[found[-1].end() :].strip(), *(_without_number(each) for each in texts[index + 1 :])]
            if question and "" not in steps:
                return TaggedSolution(question, steps, labels[index:])
            raise ValueError(f"input: step {steps.index('') + 1} is empty" if question else NO_QUESTION)
    raise ValueError(NO_QUESTION)


def _without_number(step: str) -> str:
    step = step.strip()
    number = STEP_NUMBER.match(step)
    return step[number.end() :].strip() if number else step
