"""Reads solved problems: trees of `banyan batch` and `banyan eval`, or sampled solutions without trees.

The lines of a file are of one of these forms, told by their fields:

- ``tree``: results of ``banyan batch --trees``;
- ``nodes``: the export of ``banyan eval --export`` and ``banyan batch --export``;
- ``steps``: one sampled solution: ``question`` or ``problem``, ``steps`` and ``correct``. The lines of a problem have
  the same question and may stand anywhere in the file.

Every ended path of a tree is a solution. A solution that was written several times counts as often.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from cluster.evaluation.problem_files import MAX_PROBLEMS, BadLine, EvalProblem, ProblemFileError, Record, read_records
from cluster.evaluation.step_files import Flag
from cluster.evaluation.training_file import TrainingLine, training_line
from search.answers.equivalence import AnswerMatcher
from search.snapshot import TreeView
from search.training_data import ended_paths

MAX_LINE_BYTES = 1 << 28
MAX_SOLUTIONS = 1_000_000
MAX_CHARACTERS = 1 << 30
"""Texts of all solutions, which are held in memory."""
MAX_STEPS = 4_096


class InputForm(StrEnum):
    """What the lines of a file are."""

    RESULTS = "tree"
    EXPORT = "nodes"
    SOLUTIONS = "steps"
    PROBLEMS = "problem"
    """Problems with answers, which have to be solved first."""


@dataclass(frozen=True)
class Solution:
    """A solution of a problem."""

    steps: tuple[str, ...]
    """Without surrounding whitespace; at least one."""
    right: bool
    """Whether its final answer is right."""
    count: int = 1
    """How often it was written."""


class SolvedProblem(NamedTuple):
    """A problem and all its solutions."""

    question: str
    solutions: list[Solution]


class _SolutionLine(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    question: Annotated[str, StringConstraints(min_length=1)] = Field(
        validation_alias=AliasChoices("question", "problem")
    )
    steps: list[str] = Field(min_length=1, max_length=MAX_STEPS)
    correct: Flag


def form_of(path: Path) -> InputForm:
    """The form of a file, told by its first line that is a JSON object.

    Raises:
        ProblemFileError: the file cannot be read or has no such line.
    """
    try:
        for record in read_records(path, MAX_LINE_BYTES):
            if isinstance(record, Record):
                return next((form for form in InputForm if form.value in record.fields), InputForm.PROBLEMS)
    except OSError as error:
        raise ProblemFileError(f"cannot read {path}: {error.strerror or error}") from error
    raise ProblemFileError(f"{path} has no line that is a JSON object")


async def read_solved(path: Path) -> list[SolvedProblem]:
    """The problems of a file in the order of their first lines, without those that have no solution.

    Raises:
        ProblemFileError: the file cannot be read, has a line of another form, or is past a cap.
    """
    form = form_of(path)
    found: dict[str, dict[tuple[tuple[str, ...], bool], int]] = {}
    solutions = characters = 0
    matcher = AnswerMatcher()
    try:
        for record in read_records(path, MAX_LINE_BYTES):
            if isinstance(record, BadLine):
                raise _bad(path, record)
            question, read = await _solutions(path, record, form, matcher)
            known = found.setdefault(question, {})
            for each in read:
                key = each.steps, each.right
                known[key] = known.get(key, 0) + each.count
                solutions += 1
                characters += sum(map(len, each.steps))
            for number, most, name in (
                (len(found), MAX_PROBLEMS, "problems"),
                (solutions, MAX_SOLUTIONS, "solutions"),
                (characters, MAX_CHARACTERS, "characters of solutions"),
            ):
                if number > most:
                    raise ProblemFileError(f"{path} has more than {most:,} {name}")
    except OSError as error:
        raise ProblemFileError(f"cannot read {path}: {error.strerror or error}") from error
    finally:
        matcher.close()
    return [
        SolvedProblem(question, [Solution(steps, right, count) for (steps, right), count in known.items()])
        for question, known in found.items()
        if known
    ]


async def _solutions(path: Path, record: Record, form: InputForm, matcher: AnswerMatcher) -> tuple[str, list[Solution]]:
    if form.value not in record.fields:
        raise _bad(path, BadLine(record.number, f"no {form.value!r}, which the lines before it have"))
    if form is InputForm.RESULTS and record.fields.get("expected") == "":
        raise _bad(path, BadLine(record.number, "graded by a test; a reward model learns from problems with an answer"))
    try:
        match form:
            case InputForm.RESULTS:
                line = await _graded(record.fields, matcher)
                return line.problem, list(_of_tree(line))
            case InputForm.EXPORT:
                line = TrainingLine.model_validate(record.fields)
                return line.problem, list(_of_tree(line))
            case _:
                given = _SolutionLine.model_validate(record.fields)
                steps = _stripped(given.steps)
                return given.question, [Solution(steps, given.correct)] if steps else []
    except ValidationError as error:
        fault = error.errors()[0]
        reason = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
    except KeyError as error:
        reason = f"no {error}, which results of banyan batch have"
    raise _bad(path, BadLine(record.number, reason))


async def _graded(fields: dict[str, Any], matcher: AnswerMatcher) -> TrainingLine:
    problem = EvalProblem(fields["problem_id"], fields["problem"], fields["expected"], fields["level"])
    tree = TreeView.model_validate(fields["tree"])
    return await training_line(problem, fields["strategy"], fields["seed"], tree, matcher)


def _of_tree(line: TrainingLine) -> Iterator[Solution]:
    for path in ended_paths(line.nodes):
        steps, end = _stripped(node.text or "" for node in path), path[-1]
        if steps:
            yield Solution(steps, (end.value or 0.0) > 0, end.count)


def _stripped(steps: Any) -> tuple[str, ...]:
    return tuple(step.strip() for step in steps if step.strip())


def _bad(path: Path, line: BadLine) -> ProblemFileError:
    return ProblemFileError(f"{path} has a line that cannot be used", (line,))
