"""The searches of one controller: who has a place, what runs, and what is left over. Knows neither HTTP nor Serve.

The controller deployment gives it an environment over handles, the unit tests one of plain objects.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

from search.ports import Lane, ScoreRequest
from search.run.disposal import Disposal
from search.run.environment import SearchEnvironment
from search.run.report import EventSink, SearchOutcome
from search.run.runner import run_search
from search.settings import SearchSettings
from search.tree import SearchTree

GRACE_S = 15.0
"""A search ends by its own clock; this much later it is ended from outside, with a TimeoutError."""


class NoPlace(RuntimeError):
    """All places for searches are taken: the same request is welcome later."""

    def __init__(self, places: int, retry_after_s: int) -> None:
        super().__init__(places, retry_after_s)
        self.places = places
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"all {self.places} places for searches are taken; try again shortly"


class SearchJob(NamedTuple):
    """A question that has been checked and can be searched."""

    search_id: str
    question: str
    """What the process reward model is told."""
    prompt: tuple[int, ...]
    settings: SearchSettings


Observer = Callable[[SearchJob, SearchTree, EventSink | None], AbstractContextManager[EventSink | None]]
"""Watches a search that runs within the block that it opens, and yields what the search tells its events."""


def unobserved(
    job: SearchJob, tree: SearchTree, on_event: EventSink | None
) -> AbstractContextManager[EventSink | None]:
    """The observer of searches that nobody watches."""
    return nullcontext(on_event)


@dataclass(eq=False)
class Running:
    """Something that holds a place."""

    search_id: str
    since: float = field(default_factory=time.monotonic)
    """Monotonic seconds."""


class SearchService:
    """All searches of one controller replica. Single-threaded: one event loop."""

    def __init__(
        self,
        environment: SearchEnvironment,
        places: int,
        seconds: float,
        on_place_free: Callable[[], None] = lambda: None,
        observed: Observer = unobserved,
    ) -> None:
        """``places``: searches at once. ``seconds``: the wall clock of those that name none. ``on_place_free`` is
        called whenever a place was given back."""
        self.places = places
        self._environment = environment
        self._observed = observed
        self._seconds = seconds
        self._running: dict[str, Running] = {}
        self._on_place_free = on_place_free
        self._disposal = Disposal()

    @property
    def running(self) -> int:
        """How many hold a place."""
        return len(self._running)

    @contextmanager
    def place(self, search_id: str) -> Iterator[Running]:
        """One of the places, held until the end of the block. Whatever works for a client holds one meanwhile.

        Raises:
            NoPlace: all are taken.
        """
        if len(self._running) >= self.places:
            raise NoPlace(self.places, self._retry_after_s())
        running = self._running[search_id] = Running(search_id)
        try:
            yield running
        finally:
            del self._running[search_id]
            self._on_place_free()

    def branches(self, count: int) -> AbstractAsyncContextManager[object]:
        """So many branches at the generators, waited for among the searches and held until the end of the block."""
        return self._environment.gate.admit(Lane.DEMAND, count)

    async def search(self, job: SearchJob, on_event: EventSink | None = None) -> SearchOutcome:
        """Runs a search in the caller's own task: cancelling the caller cancels all of it.

        Raises:
            SearchError: there is no answer; see `search.errors`.
            TimeoutError: the search did not end by its own clock.
        """
        tree = SearchTree()
        self._disposal.watch(tree)
        with self._observed(job, tree, on_event) as told:
            async with asyncio.timeout((job.settings.budget.seconds or self._seconds) + GRACE_S):
                return await run_search(
                    job.question,
                    job.prompt,
                    job.settings,
                    self._environment,
                    search_id=job.search_id,
                    on_event=told,
                    tree=tree,
                )

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        """For each item its rewards.

        Raises:
            ScorerError: no usable rewards could be had.
        """
        return await self._environment.scorer.score(request)

    def check_integrity(self) -> list[str]:
        """What is left over though no search runs; empty when all is well."""
        gate = self._environment.gate
        problems = [f"search {running.search_id} is running" for running in self._running.values()]
        if gate.usage:
            problems.append(f"{gate.usage} branches hold room in the gate")
        waiting = sum(gate.waiting.values())
        return [*problems, f"{waiting} calls wait at the gate"] if waiting else problems

    def _retry_after_s(self) -> int:
        """Half the age of the oldest search, within 1 and 30 s: about when a place comes free."""
        oldest = min(running.since for running in self._running.values())
        return round(min(30.0, max(1.0, (time.monotonic() - oldest) / 2)))
