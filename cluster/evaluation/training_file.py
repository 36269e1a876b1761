"""Training data as JSON lines: one for each problem under each strategy, in the order of the problems.

A line is written as soon as all earlier ones are. Only trees that wait for a slower search are held in memory.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from cluster.evaluation.problem_files import EvalProblem
from search.answers.equivalence import AnswerMatcher
from search.snapshot import TreeView
from search.training_data import Kind, TrainingExample, TrainingNode, answers_of, training_data

TRAINING_FORMAT: Literal[1] = 1


class TrainingLine(BaseModel):
    """One line of the file: a problem, its tree with the values of its steps, and the paths to learn from."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal[1]
    problem: str
    answer: str
    """The problem file's answer, against which the paths were graded."""
    level: int | str | None
    unique_id: str
    strategy: str
    """As it was written on the command line."""
    seed: int
    accuracy: float | None
    """Share of the ended paths that are right; None if none has ended."""
    nodes: list[TrainingNode]
    """Ordered by id; lookaheads are left out."""
    examples: list[TrainingExample]


async def training_line(
    problem: EvalProblem, strategy: str, seed: int, tree: TreeView, matcher: AnswerMatcher
) -> TrainingLine:
    """The line for one tree. Every ended path is graded against the problem's answer."""
    answers = answers_of(tree)
    given = {answer for answer in answers.values() if answer is not None}
    right = {answer for answer in given if await matcher.same(problem.answer, answer)}
    data = training_data(tree, {end for end, answer in answers.items() if answer in right})
    return TrainingLine(
        format=TRAINING_FORMAT,
        problem=problem.problem,
        answer=problem.answer,
        level=problem.level,
        unique_id=problem.unique_id,
        strategy=strategy,
        seed=seed,
        accuracy=data.accuracy,
        nodes=data.nodes,
        examples=data.examples,
    )


class TrainingFile:
    """Writes lines to a draft, which `finish` renames to the file. Use as a context manager.

    Raises:
        OSError: the draft cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.trees = 0
        self.missing = 0
        """Problems without a line: their searches failed."""
        self.examples = dict.fromkeys(Kind, 0)
        self.path = path
        self._draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._file = self._draft.open("w", encoding="utf-8")
        self._waiting: dict[int, str] = {}
        self._next = 0
        self._error: OSError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._file.close()
        self._draft.unlink(missing_ok=True)

    def begin(self) -> None:
        """Begins the lines of another strategy."""
        self._write_waiting()
        self._next = 0

    def put(self, index: int, line: TrainingLine | None) -> None:
        """Takes the line of the problem with that index in the problem file; None if its search failed."""
        if line is None:
            self.missing += 1
        else:
            self.trees += 1
            for example in line.examples:
                self.examples[example.kind] += 1
        # ASCII: a model's text may contain separators that some readers take for line ends.
        self._waiting[index] = json.dumps(line.model_dump(mode="json"), allow_nan=False) + "\n" if line else ""
        while self._next in self._waiting:
            self._write(self._waiting.pop(self._next))
            self._next += 1

    @property
    def summary(self) -> str:
        """One line about the exported data."""
        if not self.trees:
            return f"exported nothing: no search returned a tree; {self.path} is unchanged"
        correct, incorrect = (_count(self.examples[kind], f"{kind} path") for kind in (Kind.CORRECT, Kind.INCORRECT))
        missing = f"; {_count(self.missing, 'failed problem')} left out" if self.missing else ""
        return f"exported {_count(self.trees, 'tree')}, {correct} of hard problems, {incorrect} to {self.path}{missing}"

    def finish(self) -> None:
        """Replaces the file with the draft. Without any tree the file stays as it was.

        Raises:
            OSError: a line could not be written.
        """
        self._write_waiting()
        try:
            self._file.close()
        except OSError as error:
            self._error = self._error or error
        if self._error is not None:
            raise self._error
        if self.trees:
            self._draft.replace(self.path)

    def _write_waiting(self) -> None:
        for index in sorted(self._waiting):
            self._write(self._waiting.pop(index))

    def _write(self, text: str) -> None:
        """Writes text. An error is kept for `finish`: a full disk must not end the evaluation."""
        try:
            if self._error is None:
                self._file.write(text)
        except OSError as error:
            self._error = error


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
