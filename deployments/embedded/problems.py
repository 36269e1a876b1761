"""Arithmetic chains in five levels: the task of the embedded models.

A problem is a start value and a list of operations. Its split is decided by a hash of the chain, not by the seed that
drew it, so no seed can draw a test problem that was trained on.
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Split(StrEnum):
    """The three disjoint sets of chains."""

    TRAIN = "train"
    """Eight tenths of all chains: the training data of the embedded models."""
    VALIDATION = "validation"
    """One tenth: for the choice of checkpoints."""
    TEST = "test"
    """One tenth: for every reported figure."""


class Operation(NamedTuple):
    symbol: str
    operand: int

    def apply(self, value: int) -> int:
        match self.symbol:
            case "+":
                return value + self.operand
            case "-":
                return value - self.operand
            case "*":
                return value * self.operand
        raise ValueError(f"unknown operation {self.symbol!r}")


class Level(NamedTuple):
    operations: int
    """Number of operations in a chain."""
    largest: int
    """Largest value within a chain."""


LEVELS = {1: Level(2, 99), 2: Level(3, 199), 3: Level(4, 399), 4: Level(5, 699), 5: Level(6, 999)}

_PHRASES = (
    ("Start with {0}.", {"+": " Add {0}.", "-": " Subtract {0}.", "*": " Multiply by {0}."}, " What is the result?"),
    ("Take {0}.", {"+": " Increase by {0}.", "-": " Take away {0}.", "*": " Multiply by {0}."}, " What do you get?"),
    ("Begin at {0}.", {"+": " Go up by {0}.", "-": " Go down by {0}.", "*": " Multiply by {0}."}, " Where do you end?"),
)


@dataclass(frozen=True)
class Problem:
    """A chain in words, with the data to check a solution step by step."""

    unique_id: str
    level: int
    start: int
    operations: tuple[Operation, ...]
    phrasing: int

    @property
    def text(self) -> str:
        opening, verbs, question = _PHRASES[self.phrasing]
        middle = "".join(verbs[op.symbol].format(op.operand) for op in self.operations)
        return opening.format(self.start) + middle + question

    @property
    def values(self) -> tuple[int, ...]:
        """The start value and the value after each operation."""
        values = [self.start]
        for operation in self.operations:
            values.append(operation.apply(values[-1]))
        return tuple(values)

    @property
    def answer(self) -> str:
        return str(self.values[-1])

    @property
    def solution(self) -> tuple[str, ...]:
        """The correct steps, without delimiters: one operation each, then the answer."""
        values = self.values
        steps = [
            operation_step(before, operation, after)
            for before, operation, after in zip(values, self.operations, values[1:], strict=False)
        ]
        return (*steps, closing_step(values[-1]))

    def as_json(self) -> dict[str, object]:
        """The fields of a MATH-500 line."""
        return {"problem": self.text, "answer": self.answer, "level": self.level, "unique_id": self.unique_id}


def operation_step(before: int, operation: Operation, after: int) -> str:
    return f"{before} {operation.symbol} {operation.operand} = {after}"


def closing_step(value: int) -> str:
    return rf"The answer is \boxed{{{value}}}"


def check_steps(problem: Problem, steps: list[str]) -> list[bool]:
    """Whether each step is correct: it equals the expected step, except for spaces, and all steps before it are
    correct."""
    expected = problem.solution
    verdicts: list[bool] = []
    right = True
    for index, step in enumerate(steps):
        right = right and index < len(expected) and _without_spaces(step) == _without_spaces(expected[index])
        verdicts.append(right)
    return verdicts


def draw_problems(split: Split, seed: int, level: int | None = None) -> Iterator[Problem]:
    """An endless stream of distinct problems of a split; the same for the same arguments.

    Levels take turns (1, 2, … 5, 1, …) unless ``level`` fixes one.
    Raises ValueError for a level outside 1 to 5.
    """
    if level is not None and level not in LEVELS:
        raise ValueError(f"level must be one of {sorted(LEVELS)}, got {level}")
    rng = random.Random(f"{split.value}:{seed}")
    seen: set[str] = set()
    index = 0
    while True:
        wanted = level or index % len(LEVELS) + 1
        start, operations = _draw_chain(rng, LEVELS[wanted])
        chain = f"{start} " + " ".join(f"{op.symbol}{op.operand}" for op in operations)
        if _split_of(chain) is not split or chain in seen:
            continue
        if split is not Split.TRAIN:  # the endless training stream would fill the set for ever
            seen.add(chain)
        phrasing = rng.randrange(len(_PHRASES))
        yield Problem(f"{split.value}/{seed}/{index}", wanted, start, operations, phrasing)
        index += 1


def _draw_chain(rng: random.Random, level: Level) -> tuple[int, tuple[Operation, ...]]:
    start = value = rng.randint(2, level.largest // 2)
    operations: list[Operation] = []
    while len(operations) < level.operations:
        symbol = rng.choice("++--**+")
        if symbol == "+" and value < level.largest - 2:
            operation = Operation("+", rng.randint(2, level.largest - value))
        elif symbol == "-" and value > 4:
            operation = Operation("-", rng.randint(2, value - 1))
        elif symbol == "*" and 2 <= value <= level.largest // 2:
            operation = Operation("*", rng.randint(2, min(9, level.largest // value)))
        else:
            continue
        operations.append(operation)
        value = operation.apply(value)
    return start, tuple(operations)


def _split_of(chain: str) -> Split:
    tenth = hashlib.sha256(chain.encode()).digest()[0] % 10
    return {0: Split.TEST, 1: Split.VALIDATION}.get(tenth, Split.TRAIN)


def _without_spaces(step: str) -> str:
    return re.sub(r"\s+", "", step)
