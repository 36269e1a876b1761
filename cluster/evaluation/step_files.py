"""Files of solutions whose steps or final answers are known to be right or wrong: JSON lines or Parquet.

The form of each line is told by its fields:

- ProcessBench: ``problem``, ``steps``, ``label`` (the index of the first wrong step, or -1), ``final_answer_correct``.
- PRM800K: ``question`` and ``label``, which are objects.
- Math-Shepherd: ``input``, the question and the solution with ``ки`` after each step, and ``label``, the same text with
  ``+`` or ``-`` in its place.
- A tree, as ``banyan eval --export`` and ``banyan batch --export`` write it: every path that has ended is a solution.
- Solutions: ``question``, ``problem`` or ``prompt``; ``steps`` or ``completions``; and ``correct`` (whether the final
  answer is right), ``labels`` (whether each step is right), or both. TRL's stepwise supervision is of this form.

What is right or wrong may be written as true and false, 1 and 0, or + and -.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from cluster.evaluation.math_shepherd import SIGNS, tagged_solution
from cluster.evaluation.problem_files import BadLine, OnBadLine, Record, usable_lines
from cluster.evaluation.training_file import TrainingLine
from search.training_data import TrainingNode, ended_paths

MIN_SOLUTIONS = 8
"""Wrong solutions that it takes to call a step wrong from which they all go on; Math-Shepherd samples as many."""
MAX_NAMES = 8
"""Fields of a line of no known form that are named in the message."""


def _as_flag(given: Any) -> Any:
    if isinstance(given, str) and given in SIGNS:
        return SIGNS[given]
    if isinstance(given, bool | int | float) and given in (0, 1):
        return bool(given)
    raise PydanticCustomError("flag", "must be true or false, 1 or 0, or + or -")


def _as_whole(given: Any) -> Any:
    return int(given) if isinstance(given, float) and given.is_integer() else given


Text = Annotated[str, StringConstraints(min_length=1)]
Flag = Annotated[bool, BeforeValidator(_as_flag)]
"""Whether something is right."""
Whole = Annotated[int, BeforeValidator(_as_whole)]
"""An integer, also as tables with gaps have it: 1.0."""
FORMS = (
    "'problem', 'steps' and 'label' (ProcessBench); 'question' and 'label' as objects (PRM800K); 'input' and 'label' "
    "as texts (Math-Shepherd); 'nodes' (a tree of banyan's export); or a question, 'steps', and 'correct' or 'labels'"
)


class LabelledSolution(NamedTuple):
    """One solution of a problem with what is known of it."""

    line: int
    """Line or row of the file, counted from 1."""
    problem: str
    steps: tuple[str, ...]
    labels: tuple[bool | None, ...]
    """Whether each step is right. None: not known, or a step of a tree that an earlier solution has too."""
    first_mistake: int | None
    """Index of the first wrong step, -1 if all are right; None if not known."""
    right: bool | None
    """Whether the final answer is right; None if not known."""
    times: int = 1
    """How often it was written."""


class SolutionFile(NamedTuple):
    """Content of a file: the usable solutions in order, and the skipped lines."""

    solutions: list[LabelledSolution]
    skipped: list[BadLine]


class _Line(BaseModel):
    """Fields that are read; others, such as ProcessBench's ``generator``, are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)


class _ProcessBench(_Line):
    problem: Text
    steps: list[Text] = Field(min_length=1)
    label: Whole = Field(ge=-1)
    final_answer_correct: Flag | None = None

    @model_validator(mode="after")
    def _label_is_a_step(self) -> Self:
        if self.label >= len(self.steps):
            raise ValueError(f"label must be -1 or the index of one of the {len(self.steps)} steps, not {self.label}")
        return self


class _Completion(_Line):
    text: Text
    rating: Annotated[Literal[-1, 0, 1], BeforeValidator(_as_whole)] | None = None


class _Step(_Line):
    completions: list[_Completion] | None = None
    human_completion: str | _Completion | None = None
    chosen_completion: Annotated[Whole, Field(ge=0)] | None = None


class _Question(_Line):
    problem: Text


class _Label(_Line):
    steps: list[_Step] = Field(min_length=1)
    finish_reason: str | None = None


class _PRM800K(_Line):
    question: _Question
    label: _Label


class _MathShepherd(_Line):
    input: Text
    label: Text


class _Solution(_Line):
    question: Text = Field(validation_alias=AliasChoices("question", "problem", "prompt"))
    steps: list[Text] = Field(min_length=1, validation_alias=AliasChoices("steps", "completions"))
    correct: Flag | None = None
    labels: list[Flag | None] | None = None

    @model_validator(mode="after")
    def _something_is_known(self) -> Self:
        if self.correct is None and self.labels is None:
            raise ValueError("'correct' or 'labels' is missing")
        if self.labels is not None and len(self.labels) != len(self.steps):
            raise ValueError(f"there must be {len(self.steps)} labels, one for each step, not {len(self.labels)}")
        return self


def read_solutions(path: Path, on_bad_line: OnBadLine = OnBadLine.REFUSE, limit: int | None = None) -> SolutionFile:
    """The first ``limit`` solutions of a file (all without a limit); skips empty lines.

    Raises:
        ProblemFileError: the file cannot be read, has no usable line, has more than ``MAX_PROBLEMS`` solutions, or has
            bad lines that are to be refused.
    """
    return SolutionFile(*usable_lines(path, parse_solutions, "solutions", on_bad_line, limit))


def parse_solutions(record: Record) -> list[LabelledSolution] | BadLine:
    """The solutions in a record: several for a tree, else one."""
    number, fields = record
    try:
        if "nodes" in fields:
            return list(_of_tree(number, TrainingLine.model_validate(fields)))
        if isinstance(fields.get("question"), dict):
            solution = _of_prm800k(number, _PRM800K.model_validate(fields))
            return [solution] if solution.steps else BadLine(number, "label.steps: no step has a completion")
        if fields.keys() >= {"input", "label"}:
            return [_of_math_shepherd(number, _MathShepherd.model_validate(fields))]
        if fields.keys() >= {"steps", "label"}:
            return [_of_process_bench(number, _ProcessBench.model_validate(fields))]
        if {"steps", "completions"} & fields.keys():
            return [_of_solution(number, _Solution.model_validate(fields))]
    except ValidationError as error:
        return BadLine(number, _first(error))
    except KeyError as error:
        return BadLine(number, f"nodes: the tree has no node {error}")
    except ValueError as error:
        return BadLine(number, str(error))
    has = ", ".join(map(repr, [*fields][:MAX_NAMES])) or "no field"
    return BadLine(number, f"unknown format. Known are: {FORMS}; this line has {has}")


def _of_process_bench(number: int, line: _ProcessBench) -> LabelledSolution:
    """Nothing is known of the steps after the first mistake."""
    before = len(line.steps) if line.label < 0 else line.label
    labels = [True] * before + ([False] if line.label >= 0 else [])
    return _solution(number, line.problem, line.steps, labels, line.final_answer_correct)


def _of_prm800k(number: int, line: _PRM800K) -> LabelledSolution:
    """The solution that the labeller followed, up to the step at which none was chosen. A neutral rating (0) counts as
    right, one of the labeller's own steps too.

    Source: the format in PRM800K's README, and Lightman et al. 2023 (arXiv 2305.20050).
    """
    steps: list[str] = []
    labels: list[bool | None] = []
    for step in line.label.steps:
        completions = step.completions or []
        own = step.human_completion.text if isinstance(step.human_completion, _Completion) else step.human_completion
        if step.chosen_completion is None and own:
            steps.append(own)
            labels.append(True)
            continue
        index = step.chosen_completion or 0
        if index < len(completions):
            steps.append(completions[index].text)
            rating = completions[index].rating
            labels.append(None if rating is None else rating >= 0)
        if step.chosen_completion is None or index >= len(completions):
            break
    right = {"solution": True, "found_error": False}.get(line.label.finish_reason or "")
    return _solution(number, line.question.problem, steps, labels, right)


def _of_math_shepherd(number: int, line: _MathShepherd) -> LabelledSolution:
    """Raises ValueError when the two texts do not fit each other."""
    question, steps, labels = tagged_solution(line.input, line.label)
    return _solution(number, question, steps, labels, right=None)


def _of_tree(number: int, line: TrainingLine) -> Iterator[LabelledSolution]:
    """A step is right if a right solution goes on from it (Math-Shepherd's hard label, arXiv 2312.08935). It is wrong
    if it ends a wrong solution, or if `MIN_SOLUTIONS` go on from it and all are wrong. Solutions that begin with the
    same texts share these steps."""
    paths = [path for path in ended_paths(line.nodes) if any(node.solution for node in path)]
    texts = [tuple(node.solution for node in path if node.solution) for path in paths]
    all_from: Counter[tuple[str, ...]] = Counter()
    right_from: Counter[tuple[str, ...]] = Counter()
    for path, steps in zip(paths, texts, strict=True):
        for begin in _beginnings(steps):
            all_from[begin] += path[-1].count
            right_from[begin] += path[-1].count * _is_right(path[-1])
    counted: set[tuple[str, ...]] = set()
    for path, steps in zip(paths, texts, strict=True):
        begins = _beginnings(steps)
        labels = [
            True if right_from[begin] else False if begin == steps or all_from[begin] >= MIN_SOLUTIONS else None
            for begin in begins
        ]
        solution = _solution(number, line.problem, steps, labels, _is_right(path[-1]), path[-1].count)
        first = [None if begin in counted else label for begin, label in zip(begins, labels, strict=True)]
        yield solution._replace(labels=tuple(first))
        counted.update(begins)


def _beginnings(steps: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The steps up to each step."""
    return [steps[:depth] for depth in range(1, len(steps) + 1)]


def _is_right(end: TrainingNode) -> bool:
    return end.value is not None and end.value > 0


def _of_solution(number: int, line: _Solution) -> LabelledSolution:
    return _solution(number, line.question, line.steps, line.labels or [], line.correct)


def _solution(
    number: int,
    problem: str,
    steps: Sequence[str],
    labels: Sequence[bool | None],
    right: bool | None,
    times: int = 1,
) -> LabelledSolution:
    """The solution whose first steps have these labels; of the others nothing is known."""
    known = (*labels, *[None] * (len(steps) - len(labels)))
    unclear = [index for index, label in enumerate(known) if not label]
    first_mistake = -1 if not unclear else unclear[0] if known[unclear[0]] is False else None
    return LabelledSolution(number, problem, tuple(steps), known, first_mistake, right, times)


def _first(error: ValidationError) -> str:
    """The first fault of a line, with its path."""
    fault = error.errors()[0]
    path = ".".join(map(str, fault["loc"]))
    message = fault["msg"].removeprefix("Value error, ")
    return f"{path}: {message}" if path else message
