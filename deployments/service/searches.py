"""Runs the searches of one controller and counts what they cost. Independent of HTTP and Ray Serve.

The controller deployment passes an environment of Serve handles, the unit tests one of plain objects.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

from deployments.service.code_answers import CodeAnswers
from deployments.service.contexts import Chat
from deployments.service.slots import Slot, Slots
from deployments.service.suspects import Suspects, digest_of
from deployments.service.tool_calls import CallReader
from search.answers.checks import Checks
from search.errors import LimitKind, LimitReached, SearchError
from search.ports import ScoreRequest
from search.prompt import Prompt
from search.rewards import ScoringCost
from search.run.disposal import Disposal
from search.run.environment import SearchEnvironment
from search.run.report import EventSink, SearchCost, SearchEvent, SearchOutcome
from search.run.runner import NO_PREFILL, check_budget, run_search
from search.settings import SearchSettings
from search.tools.fair_slots import Requester
from search.tree import Prefill, SearchTree

GRACE_S = 15.0
"""Seconds after its own deadline at which a call that has not ended is cancelled with a TimeoutError."""


class SearchJob(NamedTuple):
    """A validated question with the settings of its search."""

    search_id: str
    question: str
    """The question as the process reward model gets it."""
    prompt: Prompt
    settings: SearchSettings
    cache_salt: str = ""
    """See `search.ports`."""
    own_seconds: bool = False
    """Whether the client set the budget of seconds; else the operator did."""
    flex: bool = False
    """Whether its calls yield to those of other searches."""
    prefill: Prefill = NO_PREFILL
    """The beginning of the answer, whose tokens are the last of ``prompt``."""
    json_schema: str = ""
    """The JSON schema of the answer, as JSON; empty: any text."""
    open_thought: str = ""
    """The mark of the thought that ``prompt`` leaves open; empty: none."""
    side_call: bool = False
    """Whether a chat window asked for something of its own, such as a title."""
    calls: CallReader | None = None
    """Reads the answers' tool calls; None: there are no tools."""
    checks: Checks | None = None
    """What the answer, a program, has to pass; None: it is no program."""
    chat: Chat | None = None
    """The chat, for strategies that have the model read solutions."""

    def digest(self, owner: str) -> bytes:
        """What is asked, for `Suspects`."""
        return digest_of(
            owner, "search", [self.prompt.token_ids], self.prompt.messages, self.question, self.json_schema
        )


class ScoreJob(NamedTuple):
    """A validated path to score."""

    request: ScoreRequest
    prompt_tokens: int
    """Tokens of question and steps, counted by the generator's tokenizer as all tokens of a quota are."""
    thoughts: tuple[int, ...] = ()
    """Number of characters of each given step that are thinking, with which it begins; empty if there is none. The
    request has the rest."""
    unread: tuple[int, ...] = ()
    """Indices of the given steps that are thinking alone, of which the request has nothing, in order."""

    def digest(self, owner: str) -> bytes:
        """What is asked, for `Suspects`."""
        return digest_of(owner, "score", [], self.request.question, self.request.items)


class ScoreOutcome(NamedTuple):
    """The rewards of a path, and the tokens that its owner is charged."""

    rewards: Sequence[float | None]
    """One for each given step; None for a step of thinking alone."""
    thoughts: tuple[int, ...]
    """As in `ScoreJob`."""
    prompt_tokens: int
    """Those of the job, or those that the reward model computed where they are more: of some families every step reads
    the whole path."""
    generated_tokens: int
    """Those of critiques."""


Observer = Callable[[SearchJob, SearchTree, SearchCost], AbstractContextManager[EventSink]]
"""Opens a block in which one search runs, and yields the sink for the search's events."""


def unobserved(job: SearchJob, tree: SearchTree, cost: SearchCost) -> AbstractContextManager[EventSink]:
    """Observer that ignores all events."""
    return nullcontext(lambda event: None)


@contextmanager
def late_is_timeout(deadline_s: float) -> Iterator[None]:
    """Wraps a port call: a SearchError that is raised after ``deadline_s`` becomes a TimeoutError."""
    began = time.monotonic()
    try:
        yield
    except SearchError:
        if time.monotonic() - began >= deadline_s:
            raise TimeoutError from None
        raise


class SearchService:
    """Runs all searches of one controller replica. For use in one event loop."""

    def __init__(
        self,
        environment: SearchEnvironment,
        slots: Slots,
        seconds: float,
        observed: Observer = unobserved,
        suspects: Suspects | None = None,
        code_answers: CodeAnswers | None = None,
    ) -> None:
        """``slots``: every request holds one while it works. ``seconds``: wall-clock limit of searches that set
        none. ``code_answers``: compares answers that are programs; None: no answer is one."""
        self.slots = slots
        self.suspects = suspects or Suspects()
        self._environment = environment
        self._code_answers = code_answers
        self._observed = observed
        self._seconds = seconds
        self._disposal = Disposal()

    def limit_seconds(self, seconds: float) -> None:
        """Changes the wall-clock limit of searches that set none."""
        self._seconds = seconds

    @property
    def running(self) -> int:
        """Number of requests that hold a slot."""
        return self.slots.held

    async def search(self, job: SearchJob, slot: Slot, *sinks: EventSink) -> SearchOutcome:
        """Runs a search in the caller's task: cancelling the caller cancels the search. Each event goes to all of
        ``sinks``.

        The cost is added to ``slot`` as it arises, so it is known however the search ends.

        Raises:
            HarmfulRequest: it ended two engines, or asks the same as a request that did.
            SearchError: the search has no answer; see `search.errors`.
            TimeoutError: it had none by the operator's wall-clock limit, or did not end by its own deadline.
        """
        with self.suspects.request(job.search_id, slot.owner.name, job.digest):
            return await self._search(job, slot, *sinks)

    async def _search(self, job: SearchJob, slot: Slot, *sinks: EventSink) -> SearchOutcome:
        tree = SearchTree()
        free = self._disposal.watch(tree)
        slot.charged += job.prompt.size
        cost = SearchCost()
        slot.searches.append(cost)
        calls, environment = job.calls, self._environment
        if calls is not None:
            environment = calls.environment(environment)
        elif job.checks is not None and self._code_answers is not None:
            environment = self._code_answers.environment(
                environment, job.checks, tree, Requester(job.cache_salt, job.search_id, job.flex)
            )
        try:
            with self._observed(job, tree, cost) as observer:
                all_sinks = (observer, *sinks)

                def notify(event: SearchEvent) -> None:
                    for sink in all_sinks:
                        sink(event)

                async with asyncio.timeout((job.settings.budget.seconds or self._seconds) + GRACE_S):
                    outcome = await run_search(
                        job.question,
                        job.prompt,
                        job.settings,
                        environment,
                        search_id=job.search_id,
                        on_event=notify,
                        tree=tree,
                        cache_salt=job.cache_salt,
                        flex=job.flex,
                        cost=cost,
                        prefill=job.prefill,
                        json_schema=job.json_schema,
                        open_thought=job.open_thought,
                        messages=job.chat,
                    )
                return outcome if calls is None else calls.answered(outcome)
        except BaseException as error:
            # Tracebacks of cancelled tasks reference each other and their frames, and so the tree: without this it
            # would live until the next full garbage collection (`deployments.loop.garbage`).
            free()
            if isinstance(error, LimitReached) and error.kind is LimitKind.SECONDS and not job.own_seconds:
                raise TimeoutError from None
            raise

    def check(self, job: SearchJob, slot: Slot) -> None:
        """Checks a job before anything is spent on it.

        Raises:
            HarmfulRequest: it asks the same as a request that ended two engines.
            BudgetTooSmall: it might not fit into its ``budget.total_tokens``.
        """
        self.suspects.check(slot.owner.name, job.digest)
        environment, thought = self._environment, job.open_thought
        check_budget(job.prompt, job.settings, environment, prefill=job.prefill, open_thought=thought)

    async def score(self, job: ScoreJob, slot: Slot) -> ScoreOutcome:
        """Scores the one path of a job, and adds the tokens to ``slot``; if it fails or is cancelled, only the job's.

        Raises:
            HarmfulRequest: as `search`.
            ScorerError: the scorer gave no usable rewards.
            TimeoutError: it gave none by the request's deadline.
        """
        slot.charged += job.prompt_tokens
        watched = self.suspects.request(job.request.search_id, slot.owner.name, job.digest)
        with watched, late_is_timeout(job.request.deadline_s):
            rows = await self._environment.scorer.score(job.request)
        [row] = rows
        rewards: list[float | None] = list(row)
        for index in job.unread:
            rewards.insert(index, None)
        cost: ScoringCost = getattr(rows, "cost", ScoringCost())
        prompt_tokens = max(job.prompt_tokens, cost.prompt_tokens - cost.cached_tokens)
        outcome = ScoreOutcome(rewards, job.thoughts, prompt_tokens, cost.generated_tokens)
        slot.charged += outcome.prompt_tokens - job.prompt_tokens + outcome.generated_tokens
        return outcome

    def check_integrity(self) -> list[str]:
        """Leaked slots, queue entries and calls of the step hook, when no search runs; empty when all is well."""
        hook = self._environment.step_hook
        return self.slots.check_integrity() + self.suspects.check_integrity() + (hook.check_integrity() if hook else [])
