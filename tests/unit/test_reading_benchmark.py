"""How `benchmarks.reading` compares readers with the vote: over the same first solutions, by the reading alone."""

from collections.abc import AsyncIterator
from typing import Any

from benchmarks.published.problems import MathProblem
from benchmarks.published.strategies import PoolSolution
from benchmarks.reading import (
    SIDES,
    KeptSolutions,
    are_alike,
    bounds_of,
    card_of,
    environment_of,
    figures_of,
    searched,
    steps_of,
    unread,
)
from cluster.evaluation.reader_check import ReadProblem
from search.answers.equivalence import AnswerMatcher
from search.ports import Child, ChildGroup, ExpandRequest
from search.tree import Step, StepEnd

PROBLEM = MathProblem("train", 5, "How much is 1 + 1?", "2")


def kept(answer: str) -> dict[str, Any]:
    text = ["First, one.\n\n", f"So it is \\boxed{{{answer}}}."]
    return {"steps": text, "tokens": [4, 6], "answer": answer, "correct": answer == "2", "end": "end_of_sequence"}


class Reader:
    """An engine whose readers always choose the second solution that they are shown."""

    def __init__(self) -> None:
        self.requests: list[ExpandRequest] = []

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [*messages[-1]["content"].encode()]

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        self.requests.append(request)
        step = Step((1, 2, 3), "Judgment: 1", StepEnd.END_OF_SEQUENCE)
        yield ChildGroup(
            tuple(
                Child(item.parent, branch.index, (step,), len(item.prefix) // 2)
                for item in request.expansions
                for branch in item.branches
            )
        )


async def test_only_what_reads_is_written_by_the_engine() -> None:
    engine: Any = Reader()
    matcher = AnswerMatcher()
    solutions = [kept("2"), kept("3"), kept("3")]
    generator = KeptSolutions(engine, {PROBLEM.id: [steps_of(each) for each in solutions]})
    environment = environment_of(generator, engine, matcher)
    settings = {"strategy": "select", "n": 3, "contested": 1.0, "readers": 2}
    try:
        row = await searched(PROBLEM, solutions, settings, environment, engine)
    finally:
        matcher.close()
    assert row["written_tokens"] == 6
    assert all(item.parent for request in engine.requests for item in request.expansions)
    shown = [bytes(item.prefix).decode() for request in engine.requests for item in request.expansions]
    assert all("\\boxed{2}" in prompt and "\\boxed{3}" in prompt for prompt in shown)
    assert generator.prefix_tokens == row["prompt_tokens"] == sum(map(len, shown))
    assert generator.cached_tokens == sum(len(prompt) // 2 for prompt in shown)


def test_the_vote_is_the_majority_of_the_kept_solutions() -> None:
    def pool(rights: str) -> list[PoolSolution]:
        return [PoolSolution(10, letter == "r", None if letter == "-" else ord(letter)) for letter in rights]

    assert unread(pool("rrab")) == ReadProblem(0.5, True, True, True, 40)
    assert unread(pool("aar-"))[:4] == (0.5, False, False, True)
    assert unread(pool("--"))[:4] == (0.0, False, False, False)


def test_a_choice_is_open_where_some_solution_is_right_and_some_is_wrong() -> None:
    assert not are_alike([True, False])
    assert are_alike([True, True])
    assert are_alike([False, False])


def test_a_side_is_compared_with_votes_on_its_own_problems() -> None:
    read = ReadProblem(0.5, False, True, True, 100, 20, 300)
    same = ReadProblem(1.0, True, True, True, 200)
    wide = {"p": read._replace(solution_tokens=400), "q": same, "only here": same}
    found = figures_of({"p": read, "q": same}, {"majority": wide})
    assert (found["problems"], found["read"], found["right"], found["solution_tokens"]) == (2, 1, 1.0, 150)
    assert (found["written_tokens_where_read"], found["prompt_tokens_where_read"]) == (20, 300)
    assert (found["less majority"]["difference"], found["less majority"]["right"]) == (0.5, 0.5)
    assert found["less majority"]["tokens"] == 300


def test_problems_that_were_not_read_bound_what_a_side_may_have() -> None:
    right, wrong = ([PoolSolution(10, is_right, ord("a"))] * 8 for is_right in (True, False))
    pools = {"p": right, "q": wrong, "r": right, "s": wrong, "later": right}
    read = {"p": unread(right)._replace(read=False), "s": unread(wrong)._replace(read=True)}
    found = bounds_of("fuse-8", read, pools)
    assert found == {"not read": 2, "right at most": 0.75, "majority of 8 there": 0.5}
    assert bounds_of("fuse-8", {"p": unread(right)}, pools) == {}


def test_every_side_but_refine_has_a_card() -> None:
    read = ReadProblem(0.5, vote=False, read=True, in_pool=True)
    for side in SIDES:
        card = card_of(side, {str(number): read for number in range(40)})
        assert bool(card) == (side != "refine-8"), side
        if card:
            assert card["card"]["use"] is not None
