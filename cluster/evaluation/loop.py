"""The evaluation loop: every problem under every strategy, several at once, graded as answers arrive.

Strategies run one after another, so that one does not slow down another. A problem's seed depends only on the
evaluation's seed and the problem, so order and concurrency change no answer.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from cluster.client.errors import ClientError
from cluster.client.replies import Completion, Question
from cluster.evaluation.code_test import CodeMatcher, Grader, grading_slots
from cluster.evaluation.problem_files import EvalProblem
from cluster.evaluation.search_field import search_field
from cluster.evaluation.statistics import Row
from cluster.evaluation.training_file import TrainingLine, training_line
from search.answers.code_answer import code_answer
from search.answers.equivalence import AnswerMatcher

MAX_IN_FLIGHT = 1024

Ask = Callable[[Question], Awaitable[Completion]]
OnRow = Callable[[Row], None]
OnLine = Callable[[int, TrainingLine | None], None]
"""Takes the index of a problem and its training line, or None if the search failed."""


@dataclass(frozen=True)
class Plan:
    """How the problems are sent."""

    n: int = 16
    seed: int = 0
    in_flight: int = 16
    trees: bool = False
    """Whether replies have the whole trees, with log-probabilities."""
    kv_usage: bool = False
    """Whether each search reports the KV that it needs."""

    def search(self, strategy: str) -> dict[str, object]:
        """The ``search`` field of every request.

        Raises:
            SearchFieldError: there is no such strategy, or it does not take these settings.
        """
        wanted = {"logprobs": self.trees, "kv_usage": self.kv_usage}
        return search_field(strategy, self.n) | {name: True for name, is_wanted in wanted.items() if is_wanted}

    def question(self, problem: EvalProblem, strategy: str) -> Question:
        """The request for one problem."""
        seed = problem_seed(self.seed, problem.unique_id)
        return Question(problem.problem, self.search(strategy) | problem.search, seed=seed, tree=self.trees)


def problem_seed(seed: int, unique_id: str) -> int:
    """The search seed of a problem: 53 bits, which every JSON reader keeps exactly."""
    digest = hashlib.blake2b(f"{seed}:{unique_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 11


async def evaluate(
    ask: Ask,
    problems: Sequence[EvalProblem],
    strategy: str,
    plan: Plan,
    on_row: OnRow,
    on_line: OnLine | None = None,
) -> None:
    """Sends every problem once. Passes each row to ``on_row`` when it is graded, in order of arrival, and its training
    line to ``on_line``, if the plan asks for trees.

    A failed problem becomes a row with an error and does not end the evaluation.
    """
    waiting = iter(enumerate(problems))
    matcher, slots = AnswerMatcher(), grading_slots()

    async def work() -> None:
        for index, problem in waiting:  # shared: each worker takes the next problem
            row, line = await _graded(ask, matcher, slots, problem, strategy, plan)
            if on_line is not None:
                on_line(index, line)
            on_row(row)

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(plan.in_flight, MAX_IN_FLIGHT, len(problems))):
                workers.create_task(work())
    finally:
        matcher.close()


async def _graded(
    ask: Ask, matcher: AnswerMatcher, slots: asyncio.Semaphore, problem: EvalProblem, strategy: str, plan: Plan
) -> tuple[Row, TrainingLine | None]:
    question = plan.question(problem, strategy)
    seed = question.seed or 0
    started = time.monotonic()
    try:
        reply = await ask(question)
    except ClientError as error:
        seconds = time.monotonic() - started
        reason = f"{type(error).__name__}: {error}"
        row = Row(problem.unique_id, problem.level, strategy, seed, problem.answer, seconds=seconds, error=reason)
        return row, None
    grader = matcher if problem.test is None else CodeMatcher(problem.test, slots)
    row = await graded(reply, time.monotonic() - started, problem, strategy, seed, grader)
    return row, await training_line(problem, strategy, seed, reply.tree, matcher) if reply.tree else None


async def graded(
    reply: Completion, seconds: float, problem: EvalProblem, strategy: str, seed: int, grader: Grader
) -> Row:
    """Grades the reply to a problem. ``seconds``: time until the reply."""
    search = reply.search
    # An endpoint that runs no programs does not tell them from the text around them.
    answer = search.answer if problem.test is None else code_answer(reply.text)
    right = answer is not None and await grader.same(problem.answer, answer)
    return Row(
        problem.unique_id,
        problem.level,
        strategy,
        seed,
        problem.answer,
        answer=answer,
        right=right,
        in_pool=right or any([await grader.same(problem.answer, group.answer) for group in search.answers]),
        score=search.score,
        agreement=search.agreement,
        cost=search.cost_figures,
        seconds=seconds,
        stop_reason=search.stop_reason,
        degraded=search.degraded,
    )
