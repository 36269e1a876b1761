"""What it is worth that a model reads its own solutions: a strategy that does, beside the vote over the same solutions.

One search for each problem: its first solutions are the vote's, and its answer is that of its readers, who read
wherever two solutions differ. What they are worth where the vote is more contested follows from the same searches.
"""

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from cluster.client.errors import ClientError, ProtocolError
from cluster.client.replies import Completion
from cluster.evaluation.card_fit import DIGITS, MIN_OPEN, MIN_PROBLEMS, TooFewProblems, gain_over
from cluster.evaluation.loop import Ask, Plan
from cluster.evaluation.paired_bootstrap import CONFIDENCE, paired_bootstrap
from cluster.evaluation.problem_files import EvalProblem
from cluster.evaluation.search_field import SearchFieldError, catalog_for, search_field
from search.answers.equivalence import AnswerMatcher
from search.answers.voting import Ballot, Candidate, SelectionRule
from search.reader_card import MeasuredReading, ReaderCard
from search.settings import parse_search
from search.strategies.base import Strategy
from search.strategies.reading.fuse import Fuse
from search.strategies.reading.rounds import ReadingRounds
from search.training_data import answers_of

THRESHOLDS = (0.35, 0.5, 0.7, 1.0)
"""Values of ``contested`` that are compared. The last one has every problem read whose solutions differ."""


class ReadProblem(NamedTuple):
    """A problem whose solutions were voted on and read."""

    share: float
    """The leading answer's share of the solutions."""
    vote: bool
    """Whether the majority is right."""
    read: bool
    """Whether the answer of the search is."""
    in_pool: bool
    """Whether any solution is."""
    solution_tokens: int = 0
    written_tokens: int = 0
    """Tokens that the readers wrote."""
    prompt_tokens: int = 0
    """Tokens of their prompts, each once."""
    readings: int = 0
    """Readers of a strategy whose readers choose a solution."""
    abstained: int = 0
    """Those of them that named no solution that they were shown."""


@dataclass(frozen=True)
class ReadingPlan:
    """The strategy that is measured, and how the problems are sent."""

    strategy: str
    """As typed; see `search_field`."""
    plan: Plan

    @property
    def search(self) -> dict[str, object]:
        """The ``search`` field of every request.

        Raises:
            SearchFieldError: it is no strategy with the setting ``contested``.
        """
        given = search_field(self.strategy, self.plan.n)
        if "contested" in given:
            raise SearchFieldError(f"{self.strategy}: leave out contested, which is what the check recommends")
        if "contested" not in catalog_for(self.strategy)[str(given["strategy"])].model_fields:
            raise SearchFieldError(f"{self.strategy}: is no strategy that reads its solutions where they are contested")
        return given | {"contested": 1.0}

    @property
    def _strategy(self) -> Strategy:
        return parse_search(self.search, catalog_for(self.strategy)).strategy

    @property
    def samples(self) -> int:
        """Number of solutions that vote before any is read."""
        strategy = self._strategy
        if isinstance(strategy, ReadingRounds):
            return strategy.first_round
        return int(str(self.search.get("n", self.plan.n)))

    @property
    def thresholds(self) -> Sequence[float]:
        """The values of ``contested`` that one search tells about. ``fuse`` compares each further round with it, too:
        with several, a search with a lower one is another search."""
        strategy = self._strategy
        return THRESHOLDS[-1:] if isinstance(strategy, Fuse) and len(strategy.sizes) > 2 else THRESHOLDS


OnRead = Callable[[ReadProblem | None, str | None], None]
"""Takes a problem, or the reason why there is none."""


async def read_all(ask: Ask, problems: Sequence[EvalProblem], reading: ReadingPlan, on_read: OnRead) -> None:
    """Sends every problem once, ``in_flight`` at a time, and passes each to ``on_read`` as it arrives. A failed one
    does not end the check."""
    waiting = iter(problems)
    search, plan, matcher = reading.search, reading.plan, AnswerMatcher()

    async def work() -> None:
        for problem in waiting:  # shared: each worker takes the next problem
            question = replace(plan.question(problem, reading.strategy), search=search, tree=True)
            try:
                on_read(await read_problem(problem, await ask(question), matcher), None)
            except ClientError as error:
                on_read(None, f"{type(error).__name__}: {error}")

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(plan.in_flight, len(problems))):
                workers.create_task(work())
    finally:
        matcher.close()


async def read_problem(problem: EvalProblem, reply: Completion, matcher: AnswerMatcher) -> ReadProblem:
    """The vote over a search's first solutions, beside its answer.

    Raises:
        ProtocolError: the reply has no tree, or the tree no solutions.
    """
    tree, search = reply.tree, reply.search
    if tree is None:
        raise ProtocolError("the reply has no tree")
    first = tree.model_copy(update={"nodes": [node for node in tree.nodes if not node.reads]})
    answers = answers_of(first)
    if not answers:
        raise ProtocolError("the tree has no solutions")
    given = [answer for answer in answers.values() if answer is not None]
    groups = await matcher.group(given)
    number = {given[member]: index for index, members in enumerate(groups) for member in members}
    counts = {node.id: node.count for node in first.nodes}
    ballot: Ballot[Any] = Ballot()
    for end, answer in answers.items():
        ballot.add(Candidate(end, None, answer, None if answer is None else number[answer], Fraction(counts[end])))
    vote = ballot.selected(SelectionRule.MAJORITY)
    right = {group for group, members in enumerate(groups) if await matcher.same(problem.answer, given[members[0]])}
    tokens = sum(node.written_tokens for node in first.nodes)
    return ReadProblem(
        share=vote.agreement,
        vote=vote.answer is not None and number[vote.answer] in right,
        read=search.answer is not None and await matcher.same(problem.answer, search.answer),
        in_pool=bool(right),
        solution_tokens=tokens,
        written_tokens=search.generated_tokens - tokens,
        prompt_tokens=search.context_prompt_tokens,
        readings=len(search.readers),
        abstained=sum(each.chosen is None for each in search.readers),
    )


def fit_reader_card(
    read: Sequence[ReadProblem], reading: ReadingPlan, generator: str | None = None, source: str = ""
) -> ReaderCard:
    """The card of the readers of these problems.

    Raises:
        TooFewProblems: there are fewer than `MIN_PROBLEMS`, or a reader could have got right or wrong fewer than
            `MIN_OPEN` of them.
    """
    undecided = sum(each.in_pool and each.share < 1 for each in read)
    if len(read) < MIN_PROBLEMS or undecided < MIN_OPEN:
        raise TooFewProblems(
            f"problems: {len(read)}, of which {undecided} have a right solution and another one; a card needs at least "
            f"{MIN_PROBLEMS} and {MIN_OPEN}"
        )
    readings, thresholds = sum(each.readings for each in read), reading.thresholds
    settings = {key: value for key, value in reading.search.items() if key not in ("strategy", "contested")}
    return ReaderCard(
        strategy=str(reading.search["strategy"]),
        settings=settings,
        generator=generator,
        source=source,
        problems=len(read),
        samples=reading.samples,
        vote=_share([each.vote for each in read]),
        pool=_share([each.in_pool for each in read]),
        solution_tokens=_share([each.solution_tokens for each in read]),
        abstained=round(sum(each.abstained for each in read) / readings, DIGITS) if readings else None,
        readings=tuple(_measured(read, contested) for contested in thresholds),
        use=_recommended(read, thresholds),
    )


def _measured(read: Sequence[ReadProblem], contested: float) -> MeasuredReading:
    where = [each for each in read if each.share < contested]
    return MeasuredReading(
        contested=contested,
        problems=len(where),
        vote=_share([each.vote for each in where]),
        read=_share([each.read for each in where]),
        pool=_share([each.in_pool for each in where]),
        gain=gain_over([each.vote for each in read], _answered(read, contested)),
        written_tokens=round(sum(each.written_tokens for each in where) / len(read), DIGITS),
        prompt_tokens=round(sum(each.prompt_tokens for each in where) / len(read), DIGITS),
    )


def _recommended(read: Sequence[ReadProblem], thresholds: Sequence[float]) -> int | None:
    """Index of the threshold to use; None: the vote alone. The one that reads least which no other is better than by
    more than chance."""
    use, best = None, [each.vote for each in read]
    confidence = 1 - (1 - CONFIDENCE) / len(thresholds)  # Bonferroni's, as for the votes of a reward model
    for index, contested in enumerate(thresholds):
        right = _answered(read, contested)
        one, other = ({str(number): float(each) for number, each in enumerate(both)} for both in (best, right))
        if paired_bootstrap(one, other, confidence=confidence).low > 0:
            use, best = index, right
    return use


def _answered(read: Sequence[ReadProblem], contested: float) -> list[bool]:
    """Whether each problem is right if solutions are read where the vote is contested."""
    return [each.read if each.share < contested else each.vote for each in read]


def _share(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), DIGITS) if values else 0.0
