"""The segments in which a branch is written: text of the model, and tokens that are given to it between.

Each segment of the model is an engine request of its own, with its own stop condition and limit. When one has finished,
`following` says what comes next: another segment, behind tokens that may be given to the model, or nothing. It knows
neither the engine nor its tokenizer, so it is the same wherever a branch is written again.

A program is a segment: no step delimiter ends anything in it. `behind_program` says what comes after its output.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from search.ports import Child, ThoughtRequest
from search.tree import Span, StepEnd


class Until(StrEnum):
    """Where the engine stops writing a segment, if neither the end of the sequence nor a limit comes first."""

    STEP = "step"
    """The step delimiter."""
    SOLUTION = "solution"
    """The end of the sequence."""
    STEP_OR_THOUGHT = "step_or_thought"
    """The step delimiter, or the mark that opens a thought."""
    SOLUTION_OR_THOUGHT = "solution_or_thought"
    """The mark that opens a thought."""
    THOUGHT = "thought"
    """The mark that closes the thought."""
    PROGRAM = "program"
    """The fence that closes a program."""

    @property
    def after_thought(self) -> "Until":
        return Until.SOLUTION if self in (Until.SOLUTION, Until.SOLUTION_OR_THOUGHT) else Until.STEP

    @property
    def or_thought(self) -> "Until":
        return Until.SOLUTION_OR_THOUGHT if self is Until.SOLUTION else Until.STEP_OR_THOUGHT


class Segment(NamedTuple):
    """What the model writes next."""

    until: Until
    max_tokens: int
    given: tuple[int, ...] = ()
    """Tokens that it is given before."""
    grammar: bool = False
    """Whether it is held to the call's JSON schema."""
    behind_thought: bool = False
    """Whether the thought is over with the given tokens."""
    behind_program: bool = False
    """Whether the given tokens are the output of the program before them."""


class GivenTokens(NamedTuple):
    """The tokens of a model's marks, as they are given to it."""

    opening: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()
    """Close a thought that was cut off."""
    no_thought: tuple[int, ...] = ()
    """Follow the opening mark where there is to be no thinking."""


class Task(NamedTuple):
    """What one branch is to write."""

    until: Until
    """``STEP`` or ``SOLUTION``."""
    max_tokens: int
    """Most tokens that the model writes."""
    room: int
    """Most tokens behind the prefix, given ones included: what the context holds."""
    thought: ThoughtRequest | None = None
    grammar: bool = False
    marks: GivenTokens = GivenTokens()
    tool: bool = False
    """Whether every segment of the solution also ends where the model begins a program."""
    solution: int = 0
    """As in `search.ports.ExpandItem`."""


class Draft(NamedTuple):
    """A branch while it is written: the label of its engine requests."""

    child: Child
    """Without steps."""
    task: Task
    segment: Segment
    """The one that is being written, or was written last."""
    token_ids: tuple[int, ...] = ()
    """All tokens of the branch so far, given ones included."""
    logprobs: tuple[float, ...] | None = None
    """One for each token, 0 for given ones; None if none are wanted."""
    given: tuple[Span, ...] = ()
    programs: tuple[Span, ...] = ()
    """The programs that were run, outputs included."""
    start: int = 0
    """Index of the first token of ``segment`` that the model writes."""
    thought: int = 0
    """Number of its first tokens that are thinking; 0 until a thought is over, or has ended the branch."""

    @property
    def written(self) -> int:
        """Number of tokens that the model wrote."""
        return len(self.token_ids) - sum(end - start for start, end in self.given)

    def began(self, segment: Segment) -> "Draft":
        """The draft with ``segment`` begun, whose given tokens are part of it."""
        begin, end = len(self.token_ids), len(self.token_ids) + len(segment.given)
        programs = (*self.programs, (self.start, end)) if segment.behind_program else self.programs
        return self._replace(
            segment=segment,
            programs=programs,
            start=end,
            token_ids=(*self.token_ids, *segment.given),
            logprobs=None if self.logprobs is None else (*self.logprobs, *(0.0 for _ in segment.given)),
            given=(*self.given, (begin, end)) if segment.given else self.given,
            thought=end if segment.behind_thought else self.thought,
        )

    def wrote(self, token_ids: Sequence[int], logprobs: Sequence[float] | None) -> "Draft":
        """The draft with what an engine request has written."""
        both = None if self.logprobs is None or logprobs is None else (*self.logprobs, *logprobs)
        return self._replace(token_ids=(*self.token_ids, *token_ids), logprobs=both)


class Ending(NamedTuple):
    """How a segment ended."""

    end: StepEnd
    """``DELIMITER``: where it was to stop, whatever that was."""
    opened: bool = False
    """Whether it stopped at the mark that opens a thought."""
    program: bool = False
    """Whether it stopped where a program begins."""
    blank: bool = False
    """Whether there is nothing but whitespace and delimiters behind the thought, or, if the segment stopped at an
    opening mark, before that."""


def first_segment(task: Task) -> Segment:
    """The segment with which a branch begins. If its limit is below 1, the context is full."""
    thought, marks = task.thought, task.marks
    limit = min(task.max_tokens, task.room)
    if thought is None:
        return Segment(task.until, limit, grammar=task.grammar)
    if task.until is Until.SOLUTION and not thought.is_apart(task.grammar or task.tool):
        return Segment(Until.SOLUTION, limit)  # Its thought is told from its steps when all is written.
    opening = () if thought.opened else marks.opening
    if not thought.max_tokens:
        return _solution(task, (*opening, *marks.no_thought), 0, 0)
    if thought.opened or task.grammar:
        return _thought(task, opening, 0, 0)
    return Segment(task.until.or_thought, min(thought.solution_tokens, limit))


def following(draft: Draft, ending: Ending) -> Segment | None:
    """The next segment of ``draft``, whose last one has ended; None if the branch is done or has no tokens left."""
    task, segment = draft.task, draft.segment
    size, written = len(draft.token_ids), draft.written
    if segment.until is Until.THOUGHT:
        if ending.end is StepEnd.DELIMITER:
            following = _solution(task, (), size, written)
        elif ending.end is StepEnd.LENGTH and task.thought is not None and task.thought.closes:
            following = _solution(task, task.marks.closing, size, written)
        else:
            return None
    elif ending.program:
        following = _rest(draft, Until.PROGRAM)
    elif ending.opened:
        # A mark in the middle of a step opens nothing: the step goes on.
        blank = ending.blank
        following = _thought(task, (), size, written) if blank else _rest(draft, segment.until.after_thought)
    elif ending.end is StepEnd.DELIMITER and ending.blank and segment.until not in (Until.SOLUTION, Until.PROGRAM):
        following = _rest(draft, segment.until)
    else:
        return None
    return following if following.max_tokens > 0 else None


def behind_program(draft: Draft, output: tuple[int, ...]) -> Segment | None:
    """The segment behind a program that is closed and printed ``output``; None if there is no token left for it."""
    following = _rest(draft, draft.task.until, output)._replace(behind_program=True)
    return following if following.max_tokens > 0 else None


def _thought(task: Task, given: tuple[int, ...], size: int, written: int) -> Segment:
    """A thought after the branch's first ``size`` tokens; the model generated ``written`` of these. If a thought that
    is cut off is to be closed, its limit leaves room for the closing tokens and one token of the solution."""
    assert task.thought is not None
    room, tokens, closes = task.room - size - len(given), task.max_tokens - written, task.thought.closes
    if closes:
        room, tokens = room - len(task.marks.closing) - 1, tokens - 1
    limit = min(task.thought.max_tokens, room, tokens)
    if closes and limit < 1:
        return _solution(task, (*given, *task.marks.no_thought), size, written)
    return Segment(Until.THOUGHT, limit, given)


def _solution(task: Task, given: tuple[int, ...], size: int, written: int) -> Segment:
    """The solution after a thought of ``size`` tokens; the model generated ``written`` of these."""
    assert task.thought is not None
    limit = min(task.thought.solution_tokens, task.max_tokens - written, task.room - size - len(given))
    return Segment(task.until, limit, given, task.grammar, behind_thought=True)


def _rest(draft: Draft, until: Until, given: tuple[int, ...] = ()) -> Segment:
    """The rest of the segment that was written last, behind ``given``."""
    task, size = draft.task, len(draft.token_ids) + len(given)
    limit = min(task.max_tokens - draft.written, task.room - size)
    if task.thought is not None:
        limit = min(limit, task.thought.solution_tokens - (size - draft.thought))
    return Segment(until, limit, given, grammar=draft.segment.grammar)
