"""GSM8K: problems with answers, and a seeded choice of them."""

import json
import random
from pathlib import Path
from typing import NamedTuple

INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Follows every question: the model then writes steps and boxes its answer."""
CHOICE_SEED = 43
"""Seed of the order of the problems. The first N of this order are the problems of every table of N problems."""


class MathProblem(NamedTuple):
    """One problem of GSM8K."""

    split: str
    number: int
    """Line of the problem in its split's file, from 0."""
    question: str
    answer: str

    @property
    def id(self) -> str:
        return f"{self.split}-{self.number}"

    @property
    def text(self) -> str:
        """The user's message. Generator and reward model read the same text, as they do when they are served."""
        return self.question + INSTRUCTION


def chosen_problems(directory: Path, split: str, count: int) -> list[MathProblem]:
    """The first ``count`` problems of a split in the order of `CHOICE_SEED`.

    Raises:
        OSError: there is not a file ``SPLIT.jsonl`` in the directory.
        ValueError: it has fewer problems, or a line that is no problem of GSM8K.
    """
    path = directory / f"{split}.jsonl"
    problems = [_problem(split, number, line) for number, line in enumerate(path.read_text("utf-8").splitlines())]
    if count > len(problems):
        raise ValueError(f"{path} has {len(problems)} problems, not {count}")
    random.Random(CHOICE_SEED).shuffle(problems)
    return problems[:count]


def _problem(split: str, number: int, line: str) -> MathProblem:
    try:
        given = json.loads(line)
        solution, mark, answer = given["answer"].rpartition("####")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"line {number + 1} is no problem of GSM8K: {line[:80]!r}") from error
    if not (mark and solution and answer.strip()):
        raise ValueError(f"line {number + 1} has no answer after ####")
    return MathProblem(split, number, given["question"], answer.strip().replace(",", ""))
