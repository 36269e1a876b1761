"""Family ``function``: rewards from a Python function, for tasks with their own checker. No engine.

`CallScorer` is what it shares with the other family without an engine, `deployments.engines.rewards.execution`.
"""

import asyncio
import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from deployments.engines.errors import EngineStartError
from deployments.engines.histograms import Histogram
from deployments.engines.rewards.card_file import CardSetting
from deployments.engines.settings import ReplicaSettings, Settings
from search.errors import ScorerError
from search.ports import ScoreItem, ScoreRequest
from search.rewards import RewardRows, check_rewards
from search.tools.fair_slots import FairSlots, Requester
from search.tools.import_path import imported_function, is_async
from search.tools.settling import settled

if TYPE_CHECKING:
    from deployments.engines.rewards.family import RewardModelSettings

logger = logging.getLogger("banyan.rewards")

RewardFunction = Callable[[str, Sequence[str]], "float | Awaitable[float]"]
"""Takes a question and the texts of a path's steps; returns the last step's reward in [0, 1]."""


class FunctionSettings(Settings):
    """A Python function instead of a model."""

    family: Literal["function"] = "function"
    function: str = Field(
        pattern=r"^[\w.]+:\w+$",
        description="package.module:function that returns the rewards of a list of steps for a question.",
    )
    max_num_seqs: int = Field(64, ge=1, le=4096, description="Maximum concurrent calls.")
    card: CardSetting = None
    replicas: ReplicaSettings = ReplicaSettings()

    @property
    def engines(self) -> "dict[str, RewardModelSettings]":
        """None: see `RewardModelSettings.engines`."""
        return {}


class CallScorer(ABC):
    """Takes the place of a `ScoringEngine`: the same methods, without an engine. What it calls instead has slots, for
    which owners and their searches take turns."""

    canary_request: ClassVar[ScoreRequest] = ScoreRequest("canary", "canary", (ScoreItem(("canary",)),), 20.0)
    """What a health check asks."""

    def __init__(self, name: str, slots: int) -> None:
        """``name``: of what is called, in messages. ``slots``: calls at one time."""
        self._name = name
        self._slots = slots
        self._limit = FairSlots(slots)
        self._running = self._called = 0
        self._open = _OpenCalls()

    @abstractmethod
    async def start(self, stat_loggers: Sequence[object] = ()) -> None:
        """Raises EngineStartError when nothing can be called. ``stat_loggers`` get nothing: there is no engine."""

    @abstractmethod
    async def rows(self, request: ScoreRequest, requester: Requester | None) -> list[list[float]]:
        """The rewards, not validated. May raise anything, in an exception group. ``requester``: who waits for slots."""

    @abstractmethod
    def shutdown(self) -> None:
        """Leaves nothing running."""

    async def score(self, request: ScoreRequest, alone: bool = False, canary: bool = False) -> RewardRows:
        """Returns the rewards in [0, 1] of each item's last ``unscored`` steps; see ``search.ports.StepScorer``.

        Args:
            alone: whether the scorer works on no other call meanwhile.
            canary: whether it is a health check's call, which waits for none.

        Raises:
            ScorerError: the function failed, missed the deadline, or returned an invalid reward.
        """
        requester = None if canary else Requester(request.cache_salt, request.search_id, request.lane.flex)
        try:
            async with (
                asyncio.timeout(request.deadline_s),
                self._open.call(_OpenCall(request.search_id, alone, canary)),
            ):
                rewards = await self.rows(request, requester)
        except TimeoutError as error:
            raise ScorerError(f"{self._name} did not return within {request.deadline_s:g} s") from error
        except ExceptionGroup as group_of_failures:
            failure = group_of_failures.exceptions[0]
            # The traceback goes to the log only, which hides the failure's message: that may quote a step, and this
            # error is sent to other processes.
            logger.warning("%s failed", self._name, exc_info=failure)
            raise ScorerError(f"{self._name} failed: {type(failure).__name__}") from failure
        return check_rewards(rewards, [item.unscored for item in request.items], self._name)

    async def canary(self, deadline_s: float = 20.0) -> float:
        """Makes one call and returns the seconds it took. Raises ScorerError like ``score``."""
        started = time.monotonic()
        await self.score(self.canary_request._replace(deadline_s=deadline_s), canary=True)
        return time.monotonic() - started

    def stats(self) -> dict[str, int]:
        """Number of calls: running, waiting for a slot, and all so far that ran."""
        return {"running": self._running, "waiting": self._limit.waiting, "calls": self._called}

    @property
    def histograms(self) -> Mapping[str, Histogram]:
        """None: there are no engine steps."""
        return {}

    @property
    def pressure(self) -> float:
        """Running and waiting calls over slots."""
        return (self._running + self._limit.waiting) / self._slots

    @property
    def at_engine(self) -> frozenset[str]:
        """Searches whose calls have not returned."""
        return self._open.searches

    @property
    def silent_s(self) -> float:
        """Always 0: how long a call takes is up to what is called."""
        return 0.0

    def check_alive(self) -> None:  # noqa: B027  # nothing of it can be dead
        """Raises ScorerError when no call will return any more."""

    async def check_integrity(self, settle_s: float = 1.0) -> list[str]:
        """Leak check of an idle scorer: reports open calls; empty when all is well.

        Calls whose caller has given up have ``settle_s`` seconds to return: a thread cannot be stopped.
        """
        await settled(lambda: self._running, settle_s)
        return [f"{self._running} calls of {self._name} are open"] if self._running else []

    @property
    def notes(self) -> list[str]:
        """Empty: nothing is tried at the start."""
        return []

    @property
    def model_runners(self) -> dict[str, str]:
        """Empty: there is no engine."""
        return {}


class FunctionScorer(CallScorer):
    """Calls the function once for each step.

    A coroutine function runs in the event loop, any other in a thread. A thread cannot be stopped: a call whose caller
    has given up occupies its slot until it returns. When such calls occupy all slots, the scorer counts as dead.
    """

    def __init__(self, settings: FunctionSettings) -> None:
        super().__init__(settings.function, settings.max_num_seqs)
        self._reward: RewardFunction | None = None
        self._threads = ThreadPoolExecutor(self._slots, thread_name_prefix="reward")
        self._abandoned = 0

    async def start(self, stat_loggers: Sequence[object] = ()) -> None:
        """Imports the function. Raises EngineStartError when there is none."""
        try:
            self._reward = imported_function(self._name)
        except ValueError as error:
            raise EngineStartError(f"prm.function {error}") from error

    async def rows(self, request: ScoreRequest, requester: Requester | None) -> list[list[float]]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                [group.create_task(self._call(request.question, item.steps, end, requester)) for end in step_ends(item)]
                for item in request.items
            ]
        return [[task.result() for task in row] for row in tasks]

    def check_alive(self) -> None:
        """Raises ScorerError when every slot is occupied by a call whose caller has given up."""
        if self._abandoned >= self._slots:
            raise ScorerError(f"{self._abandoned} calls of {self._name} have not returned")

    def shutdown(self) -> None:
        self._reward = None
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, question: str, path: tuple[str, ...], end: int, requester: Requester | None) -> float:
        """The reward of step ``end`` of ``path``, counted from 1."""
        reward = self._reward
        if reward is None:
            raise ScorerError(f"{self._name} is not loaded")
        await self._limit.acquire(requester)
        steps = path[:end]  # no sooner: all of a long path's would be quadratic memory
        self._running += 1
        self._called += 1
        work: asyncio.Future[Any] | None = None
        try:
            if is_async(reward):
                value: Any = await reward(question, steps)  # type: ignore[misc]
            else:
                work = asyncio.get_running_loop().run_in_executor(self._threads, reward, question, steps)
                value = await asyncio.shield(work)
            return await value if inspect.isawaitable(value) else value  # type: ignore[no-any-return]  # checked later
        finally:
            if work is None or work.done():
                self._release_slot()
            else:  # its caller has given up, and a thread cannot be stopped
                self._abandoned += 1
                work.add_done_callback(self._returned_late)

    def _returned_late(self, work: "asyncio.Future[Any]") -> None:
        self._abandoned -= 1
        self._release_slot()
        if not work.cancelled():
            work.exception()  # marks it as retrieved: the caller is gone

    def _release_slot(self) -> None:
        self._running -= 1
        self._limit.release()


@dataclass(eq=False, frozen=True)
class _OpenCall:
    search_id: str
    alone: bool
    canary: bool


class _OpenCalls:
    """The open calls. A call that has the scorer alone waits for the others to end, and others wait for its end."""

    def __init__(self) -> None:
        self._begun: set[_OpenCall] = set()
        self._alone: list[_OpenCall] = []
        """Calls that have the scorer alone or wait for that; the first one's turn comes first."""
        self._changed = asyncio.Event()

    @property
    def searches(self) -> frozenset[str]:
        return frozenset(call.search_id for call in self._begun)

    @asynccontextmanager
    async def call(self, call: _OpenCall) -> AsyncIterator[None]:
        if call.alone:
            self._alone.append(call)
        try:
            while not self._may_begin(call):
                self._changed.clear()
                await self._changed.wait()
            self._begun.add(call)
            yield
        finally:
            self._begun.discard(call)
            if call.alone:
                self._alone.remove(call)
            self._changed.set()

    def _may_begin(self, call: _OpenCall) -> bool:
        if call.alone:
            return self._alone[0] is call and all(other.canary for other in self._begun)
        return call.canary or not self._alone


def step_ends(item: ScoreItem) -> range:
    """The numbers of the unscored steps, from 1."""
    if not 1 <= item.unscored <= len(item.steps):
        raise ScorerError(f"unscored is {item.unscored} in a path of {len(item.steps)} steps")
    return range(len(item.steps) - item.unscored + 1, len(item.steps) + 1)
