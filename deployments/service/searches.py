"""The searches of one controller: what runs, what it costs, and what is left over. Knows neither HTTP nor Serve.

The controller deployment gives it an environment over handles, the unit tests one of plain objects.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

from deployments.service.places import Place, Places
from search.errors import LimitKind, LimitReached, SearchError
from search.ports import ScoreRequest
from search.run.disposal import Disposal
from search.run.environment import SearchEnvironment
from search.run.report import EventSink, SearchCost, SearchEvent, SearchOutcome
from search.run.runner import run_search
from search.settings import SearchSettings
from search.tree import SearchTree

GRACE_S = 15.0
"""A search ends by its own clock; this much later it is ended from outside, with a TimeoutError."""


class SearchJob(NamedTuple):
    """A question that has been checked and can be searched."""

    search_id: str
    question: str
    """What the process reward model is told."""
    prompt: tuple[int, ...]
    settings: SearchSettings
    cache_salt: str = ""
    """See `search.ports`."""
    own_seconds: bool = False
    """Whether its budget of seconds is the client's and not the operator's."""
    flex: bool = False
    """Whether its calls yield to those of others."""


Observer = Callable[[SearchJob, SearchTree, SearchCost], AbstractContextManager[EventSink]]
"""Watches a search that runs within the block that it opens, and yields what is to be told its events."""


def unobserved(job: SearchJob, tree: SearchTree, cost: SearchCost) -> AbstractContextManager[EventSink]:
    """The observer of searches that nobody watches."""
    return nullcontext(lambda event: None)


@contextmanager
def late_is_timeout(deadline_s: float) -> Iterator[None]:
    """Around a call of a port with that deadline: failing then is a TimeoutError, whatever it was about to say."""
    began = time.monotonic()
    try:
        yield
    except SearchError:
        if time.monotonic() - began >= deadline_s:
            raise TimeoutError from None
        raise


class SearchService:
    """All searches of one controller replica. Single-threaded: one event loop."""

    def __init__(
        self, environment: SearchEnvironment, places: Places, seconds: float, observed: Observer = unobserved
    ) -> None:
        """``places``: whatever works for a client holds one meanwhile. ``seconds``: the wall clock of those that name
        none."""
        self.places = places
        self._environment = environment
        self._observed = observed
        self._seconds = seconds
        self._disposal = Disposal()

    def limit_seconds(self, seconds: float) -> None:
        """Changes the wall clock of searches that name none."""
        self._seconds = seconds

    @property
    def running(self) -> int:
        """How many hold a place."""
        return self.places.held

    async def search(self, job: SearchJob, place: Place, *sinks: EventSink) -> SearchOutcome:
        """Runs a search in the caller's own task: cancelling the caller cancels all of it. Every event goes to all of
        ``sinks``.

        What it costs is counted in ``place`` as it is spent, so that it is known however the search ends.

        Raises:
            SearchError: there is no answer; see `search.errors`.
            TimeoutError: nor by the operator's wall clock, or the search did not end by its own.
        """
        tree = SearchTree()
        free = self._disposal.watch(tree)
        place.charged += len(job.prompt)
        cost = SearchCost()
        place.searches.append(cost)
        try:
            with self._observed(job, tree, cost) as observer:
                told = (observer, *sinks)

                def tell(event: SearchEvent) -> None:
                    for sink in told:
                        sink(event)

                async with asyncio.timeout((job.settings.budget.seconds or self._seconds) + GRACE_S):
                    return await run_search(
                        job.question,
                        job.prompt,
                        job.settings,
                        self._environment,
                        search_id=job.search_id,
                        on_event=tell,
                        tree=tree,
                        cache_salt=job.cache_salt,
                        flex=job.flex,
                        cost=cost,
                    )
        except BaseException as error:
            # Tracebacks of tasks that were cancelled name their frames, the tree in them, and each other: the tree
            # would stay until all garbage is collected (`deployments.loop.garbage`).
            free()
            if isinstance(error, LimitReached) and error.kind is LimitKind.SECONDS and not job.own_seconds:
                raise TimeoutError from None
            raise

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        """For each item its rewards.

        Raises:
            ScorerError: no usable rewards could be had.
            TimeoutError: not by the request's deadline.
        """
        with late_is_timeout(request.deadline_s):
            return await self._environment.scorer.score(request)

    def check_integrity(self) -> list[str]:
        """What is left over though no search runs; empty when all is well."""
        return self.places.check_integrity()
