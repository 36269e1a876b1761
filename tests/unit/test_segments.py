"""The segments of a branch follow from its limits and from how each one ended, and keep every limit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines.segments import (
    Draft,
    Ending,
    GivenTokens,
    Segment,
    Task,
    Until,
    behind_program,
    first_segment,
    following,
)
from search.ports import Child, ThoughtRequest
from search.tree import StepEnd

MARKS = GivenTokens(opening=(1,), closing=(2, 3, 4), no_thought=(5, 6))
STOP = Ending(StepEnd.DELIMITER)
BLANK = Ending(StepEnd.DELIMITER, blank=True)
OPENED = Ending(StepEnd.DELIMITER, opened=True, blank=True)
PROGRAM = Ending(StepEnd.DELIMITER, program=True)
LENGTH = Ending(StepEnd.LENGTH)
EOS = Ending(StepEnd.END_OF_SEQUENCE)


def task(until: Until = Until.STEP, *, opened: bool = True, closes: bool = False, grammar: bool = False) -> Task:
    return Task(until, 100, 200, ThoughtRequest(opened, 50, closes, 30), grammar, MARKS)


def begun(wanted: Task) -> Draft:
    segment = first_segment(wanted)
    return Draft(Child((), 0, (), 0), wanted, segment, logprobs=()).began(segment)


def then(draft: Draft, tokens: int, ending: Ending) -> Segment | None:
    return following(draft.wrote(range(100, 100 + tokens), [-1.0] * tokens), ending)


def after(draft: Draft, tokens: int, ending: Ending) -> Draft:
    written = draft.wrote(range(100, 100 + tokens), [-1.0] * tokens)
    segment = following(written, ending)
    assert segment is not None
    return written.began(segment)


@pytest.mark.parametrize("until", [Until.STEP, Until.SOLUTION])
@pytest.mark.parametrize("grammar", [False, True])
def test_without_thinking_it_is_one_segment_of_all_tokens(until: Until, grammar: bool) -> None:
    plain = Task(until, 100, 80, None, grammar)
    assert first_segment(plain) == Segment(until, 80, grammar=grammar)
    assert then(begun(plain), 5, STOP) is None


def test_a_blank_step_goes_on_with_what_is_left() -> None:
    draft = begun(Task(Until.STEP, 10, 200))
    assert then(draft, 4, BLANK) == Segment(Until.STEP, 6)
    assert then(draft, 10, BLANK) is None


def test_a_thought_that_the_prompt_opens_comes_first_and_has_a_limit_of_its_own() -> None:
    draft = begun(task())
    assert draft.segment == Segment(Until.THOUGHT, 50)
    solution = after(draft, 20, STOP)
    assert solution.segment == Segment(Until.STEP, 30, behind_thought=True)
    assert solution.thought == 20
    assert then(solution, 4, BLANK) == Segment(Until.STEP, 26)
    assert then(solution, 4, STOP) is None


def test_a_thought_that_the_model_opens_begins_behind_its_mark() -> None:
    draft = begun(task(opened=False))
    assert draft.segment == Segment(Until.STEP_OR_THOUGHT, 30)
    blank = after(draft, 2, BLANK)
    assert blank.segment == Segment(Until.STEP_OR_THOUGHT, 28)
    assert after(blank, 1, OPENED).segment == Segment(Until.THOUGHT, 50)
    assert then(draft, 9, STOP) is None, "it wrote a step without thinking"
    in_the_middle = Ending(StepEnd.DELIMITER, opened=True)
    assert then(draft, 9, in_the_middle) == Segment(Until.STEP, 21)


@pytest.mark.parametrize("ending", [LENGTH, EOS])
def test_a_thought_that_is_never_closed_ends_the_branch(ending: Ending) -> None:
    assert then(begun(task()), 50, ending) is None


def test_a_budget_closes_the_thought_and_the_solution_follows() -> None:
    draft = begun(task(closes=True))
    closed = after(draft, 50, LENGTH)
    assert closed.segment == Segment(Until.STEP, 30, MARKS.closing, behind_thought=True)
    assert closed.token_ids[-3:] == MARKS.closing
    assert closed.given == ((50, 53),)
    assert closed.thought == 53
    assert closed.logprobs == (*[-1.0] * 50, 0.0, 0.0, 0.0)
    assert closed.written == 50
    assert then(draft, 50, EOS) is None


@pytest.mark.parametrize(("opened", "given"), [(True, (5, 6)), (False, (1, 5, 6))])
@pytest.mark.parametrize("until", [Until.STEP, Until.SOLUTION])
def test_a_budget_of_zero_gives_an_empty_thought(until: Until, opened: bool, given: tuple[int, ...]) -> None:
    none = task(until, opened=opened, closes=True)
    assert none.thought is not None
    draft = begun(none._replace(thought=none.thought._replace(max_tokens=0)))
    assert draft.segment == Segment(until, 30, given, behind_thought=True)
    assert draft.thought == len(given)


def test_a_grammar_holds_the_solution_and_not_the_thought() -> None:
    draft = begun(task(Until.SOLUTION, opened=False, grammar=True))
    assert draft.segment == Segment(Until.THOUGHT, 50, MARKS.opening)
    assert after(draft, 20, STOP).segment == Segment(Until.SOLUTION, 30, grammar=True, behind_thought=True)


def test_a_whole_solution_is_one_request_unless_its_thought_is_a_segment() -> None:
    assert first_segment(task(Until.SOLUTION, opened=False)) == Segment(Until.SOLUTION, 100)
    assert first_segment(task(Until.SOLUTION, opened=False, closes=True)).until is Until.SOLUTION_OR_THOUGHT


@pytest.mark.parametrize("until", [Until.STEP, Until.SOLUTION])
def test_a_program_is_a_segment_with_its_output_behind_it(until: Until) -> None:
    draft = begun(Task(until, 100, 60, tool=True))
    program = after(draft, 10, PROGRAM)
    assert program.segment == Segment(Until.PROGRAM, 50)
    closed = program.wrote(range(20), [-1.0] * 20)
    rest = behind_program(closed, (7, 8, 9))
    assert rest == Segment(until, 27, (7, 8, 9), behind_program=True)
    going_on = closed.began(rest)
    assert going_on.given == ((30, 33),)
    assert going_on.programs == ((10, 33),)
    assert going_on.start == 33
    assert going_on.written == 30
    again = after(going_on, 5, PROGRAM)
    assert again.wrote(range(3), [-1.0] * 3).began(Segment(until, 1, (7,), behind_program=True)).programs == (
        (10, 33),
        (38, 42),
    )
    assert behind_program(closed, (7,) * 30) is None, "there is no token left behind the output"
    assert then(program, 50, LENGTH) is None


def test_a_program_may_follow_a_thought_which_is_then_a_request_of_its_own() -> None:
    thinks = task(Until.SOLUTION, opened=True)._replace(tool=True)
    solution = after(begun(thinks), 20, STOP)
    assert solution.segment == Segment(Until.SOLUTION, 30, behind_thought=True)
    closed = after(solution, 10, PROGRAM).wrote(range(5), [-1.0] * 5)
    assert behind_program(closed, (7,)) == Segment(Until.SOLUTION, 14, (7,), behind_program=True)


TASKS = st.builds(
    lambda until, max_tokens, room, opened, most, closes, solution, grammar: Task(
        until, max_tokens, room, ThoughtRequest(opened, most, closes, solution), grammar, MARKS
    ),
    st.sampled_from([Until.STEP, Until.SOLUTION]),
    *(st.integers(1, 40), st.integers(1, 40), st.booleans()),
    *(st.integers(0, 20), st.booleans(), st.integers(1, 20), st.booleans()),
)
ENDINGS = st.sampled_from([STOP, BLANK, OPENED, Ending(StepEnd.DELIMITER, opened=True), LENGTH, EOS])


@settings(max_examples=500, deadline=None)
@given(TASKS, st.lists(st.tuples(st.integers(1, 40), ENDINGS), max_size=30))
def test_no_limit_is_passed_however_segments_end(wanted: Task, endings: list[tuple[int, Ending]]) -> None:
    thought = wanted.thought
    assert thought is not None
    draft = begun(wanted)
    if draft.segment.max_tokens < 1:
        assert wanted.room <= len(draft.segment.given) + len(MARKS.closing) + 1 or wanted.max_tokens <= 1
        return
    segmented = draft.segment.until is not Until.SOLUTION or draft.segment.behind_thought
    for tokens, ending in endings:
        segment = draft.segment
        assert segment.max_tokens > 0
        assert not (segment.grammar and segment.until is Until.THOUGHT)
        if segment.until is Until.THOUGHT:
            assert segment.max_tokens <= thought.max_tokens
        written = draft.wrote([9] * (segment.max_tokens if ending is LENGTH else min(tokens, segment.max_tokens)), [])
        assert written.written <= wanted.max_tokens
        assert len(written.token_ids) <= wanted.room
        if segmented and segment.until is not Until.THOUGHT and written.thought:
            assert len(written.token_ids) - written.thought <= thought.solution_tokens
        follows = following(written, ending)
        if segment.until is Until.THOUGHT and ending is LENGTH and thought.closes:
            assert follows is not None, "a thought that is closed has a solution"
        if follows is None:
            break
        draft = written.began(follows)
