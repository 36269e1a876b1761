"""Answers that are expensive to compare cost the search that has them, and nobody else."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from search.answers import equivalence
from search.answers.equivalence import BUDGET_S, AnswerMatcher, EquivalenceWorker, Reply
from search.answers.readings import Form
from search.answers.voting import SelectionRule
from search.run.answer_selection import select_answer
from search.settings import parse_search
from search.tree import SearchTree, Step, StepEnd

EXPENSIVE = [rf"\sum_{{k=1}}^{{{last}}} \frac{{x^k}}{{k^2+y}}" for last in range(160, 190)]
ORDINARY = [rf"\sqrt{{{number}}}+x" for number in range(2, 18)]


class Worker(EquivalenceWorker):
    """Reads no answer. A sum counts half a second, and waits for the event ``go``."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.go = threading.Event()
        self.go.set()

    def evaluated(self, forms: Sequence[Form]) -> Reply:
        [[_, answer, _]] = forms
        self.asked.append(answer)
        if "sum" not in answer:
            return Reply([], 0.01)
        assert self.go.wait(20)
        return Reply([], 0.5)

    @property
    def sums(self) -> int:
        return sum("sum" in answer for answer in self.asked)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def slow(worker: Worker) -> Iterator[AnswerMatcher]:
    matcher = AnswerMatcher(worker)
    yield matcher
    worker.go.set()
    matcher.close()


async def until_asked(worker: Worker, count: int) -> None:
    async with asyncio.timeout(20):
        while len(worker.asked) < count:
            await asyncio.sleep(0.001)


async def test_ordinary_answers_wait_for_one_expensive_answer_at_most(worker: Worker, slow: AnswerMatcher) -> None:
    worker.go.clear()
    expensive = asyncio.create_task(slow.grouping(EXPENSIVE))
    await until_asked(worker, 1)
    ordinary = asyncio.create_task(slow.grouping(ORDINARY))
    async with asyncio.timeout(20):
        while slow._queue.empty():
            await asyncio.sleep(0.001)
    worker.go.set()
    assert len((await ordinary).groups) == len(ORDINARY)
    assert worker.asked[0] in EXPENSIVE
    assert worker.asked[1 : 1 + len(ORDINARY)] == sorted(ORDINARY)
    await expensive


async def test_a_grouping_has_a_budget_and_says_what_it_did_not_read(worker: Worker, slow: AnswerMatcher) -> None:
    found = await slow.grouping([*EXPENSIVE, "7", *EXPENSIVE])
    assert worker.sums == BUDGET_S / 0.5
    assert found.unread == len(EXPENSIVE) - worker.sums
    assert len(found.groups) == len(EXPENSIVE) + 1, "by their text they are as different as they are"
    assert found.groups[0] == [0, len(EXPENSIVE) + 1]
    assert (await slow.grouping(ORDINARY)).unread == 0


async def test_a_grouping_ends_with_its_search(worker: Worker, slow: AnswerMatcher) -> None:
    worker.go.clear()
    gone = asyncio.create_task(slow.grouping(EXPENSIVE))
    await until_asked(worker, 1)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await asyncio.sleep(0)
    worker.go.set()
    await slow.grouping(ORDINARY)
    assert worker.sums == 1


async def test_a_grouping_ends_at_its_deadline(worker: Worker, slow: AnswerMatcher) -> None:
    worker.go.clear()  # without the deadline, the worker's reply would be an error, after 20 s
    found = await slow.grouping(EXPENSIVE, wait_s=0.05)
    assert found.unread == len(EXPENSIVE)


async def test_closing_leaves_no_grouping_waiting(worker: Worker) -> None:
    matcher = AnswerMatcher(worker)
    worker.go.clear()
    waiting = [asyncio.create_task(matcher.grouping(EXPENSIVE)) for _ in range(3)]
    await until_asked(worker, 1)
    closing = asyncio.create_task(asyncio.to_thread(matcher.close))
    async with asyncio.timeout(20):
        while not matcher._closing.is_set():
            await asyncio.sleep(0.001)
        worker.go.set()
        await closing
        assert [len((await each).groups) for each in waiting] == [len(EXPENSIVE)] * 3
    assert worker.sums == 1


async def test_a_selection_says_how_many_answers_were_not_read(slow: AnswerMatcher) -> None:
    tree = SearchTree()
    for node, answer in zip(tree.request(tree.root, len(EXPENSIVE)), EXPENSIVE, strict=True):
        tree.write(node, Step((1,), rf"\boxed{{{answer}}}", StepEnd.END_OF_SEQUENCE), ends=True)
        tree.complete(node, 0.5)
    strategy = parse_search({"strategy": "best_of_n"}).strategy
    assert strategy.selection is not SelectionRule.MAJORITY
    selection = await select_answer(tree.terminals, tree, strategy, slow)
    assert selection.unread == len(EXPENSIVE) - BUDGET_S / 0.5


async def test_an_answer_costs_the_same_whenever_it_is_asked_for(matcher: AnswerMatcher) -> None:
    """Which answers a budget suffices for does not depend on what was compared before."""
    answer = rf"\sum_{{k=1}}^{{12}} \frac{{x^k}}{{k^2+y+{time.time_ns()}}}"
    first, again = (matcher._worker.evaluated([["latex", answer, answer]]) for _ in range(2))
    assert first == again
    assert 0 < first.seconds < equivalence.BUDGET_S
