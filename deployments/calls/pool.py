"""Which calls of a controller may share an engine.

When an engine dies, the calls with requests in its batch are suspects. Each is made again by itself: one at a time, on
an engine that works on nothing else meanwhile, and not on the last replica of several while that serves others. A call
that succeeds so clears its request. One whose engine dies again ends it: nothing else can have ended that engine.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
from cachetools import TTLCache
from ray.exceptions import RayActorError, RayTaskError

from deployments.calls.envelope import Envelope
from deployments.calls.serve_calls import Deadline, OnlyWaited, ReplicaLost, ReplicaSilent
from deployments.service.suspects import Standing, Suspects
from search.errors import HarmfulRequest
from search.ports import ExpandRequest

LOOK_EVERY_S = 0.25
"""Interval of looking whether a pool has another replica, seconds."""
IDLE_S = 5.0
"""Seconds without another request after which a suspect may have the last replica: between small searches of a busy
client there is often none."""
MAX_GONE, GONE_S = 64, 120.0
"""Number of dead replicas that are remembered, and for how long. Serve needs some seconds to find that one is dead."""


async def _no_words(actor_id: str) -> frozenset[str] | None:
    return None


class Pool:
    """The replicas of one deployment, as a controller sees them. For use in one event loop."""

    def __init__(
        self,
        name: str = "",
        suspects: Suspects | None = None,
        replicas: Callable[[], Mapping[str, bool] | None] = lambda: None,
        size: int = 1,
        last_words_of: Callable[[str], Awaitable[frozenset[str] | None]] = _no_words,
    ) -> None:
        """
        Args:
            name: identifies the pool among those of the controller.
            replicas: returns the replicas that get calls now, by actor id, with whether this process is connected to
                each; None if they are not known.
            size: number of replicas that the pool has when all are well.
            last_words_of: see `deployments.calls.last_words`.
        """
        self._name = name
        self._suspects = suspects or Suspects()
        self._replicas = replicas
        self._size = size
        self._last_words_of = last_words_of
        self._turn = asyncio.Lock()
        self._gone: TTLCache[str, float] = TTLCache(MAX_GONE, GONE_S)
        """When each of the last dead replicas was first found to be gone, on the loop's clock."""

    @asynccontextmanager
    async def call(self, search_id: str, deadline: Deadline, tried: list[str], again: bool) -> AsyncIterator[Envelope]:
        """Context of one attempt of a call; waits until it may be made. It avoids the replicas in ``tried``.

        Args:
            tried: actor ids of replicas; if the attempt ends with an error, the last one, if it is new, is its replica.
            again: whether the call was interrupted before.

        Raises:
            HarmfulRequest: the attempt, or another one of a request that asks the same, ended the second engine.
            OnlyWaited: the replica died, and the call had no request in the engine's batch.
            ReplicaLost: the deadline passed before the attempt could be made.
        """
        standing = self._suspects.standing(search_id, self._name)
        again = await self._died_writing_ahead(search_id, standing) or again
        known, began = len(tried), asyncio.get_running_loop().time()
        if not standing.apart:
            try:
                yield Envelope(tuple(tried), alone=False, ahead=not standing.deaths)
            except Exception as error:
                if await self._may_have_ended_it(search_id, error, tried[known:], began):
                    self._suspects.blame(search_id, standing)
                raise
            return
        async with self._turn_until(search_id, deadline):
            self._suspects.standing(search_id, self._name)
            try:
                yield Envelope(tuple(tried), alone=True, ahead=False)
            except Exception as error:
                if await self._may_have_ended_it(search_id, error, tried[known:], began):
                    raise self._suspects.found_harmful(search_id) from None
                raise
            if again:
                standing.clear()

    def wrote(self, request: ExpandRequest, tried: list[str]) -> None:
        """Takes note of a call that was answered by the last of ``tried``, which may now write ahead for its search."""
        standing = self._suspects.standing(request.search_id, self._name)
        standing.last_replica = tried[-1] if tried and request.ahead is not None else None

    async def _died_writing_ahead(self, search_id: str, standing: Standing) -> bool:
        """Whether the engine that wrote ahead for a search has died of that perhaps; the search is a suspect then."""
        replica, standing.last_replica = standing.last_replica, None
        if replica is None or (self._replicas() or {replica: True}).get(replica):
            return False
        words = await self._words_of(replica)
        if words is None or search_id not in words:
            return False
        self._suspects.blame(search_id, standing)
        return True

    @asynccontextmanager
    async def _turn_until(self, search_id: str, deadline: Deadline) -> AsyncIterator[None]:
        """The turn of one suspect, on a pool that can do without another engine."""
        try:
            async with asyncio.timeout(deadline.remaining):
                await self._turn.acquire()
        except TimeoutError:
            raise ReplicaLost(
                "the deadline passed in the queue of requests that run alone because they may have crashed an engine"
            ) from None
        try:
            while not self._can_spare_one(search_id):
                if deadline.remaining <= 0:
                    raise ReplicaLost(
                        "the deadline passed before it could run: a request that may have crashed an engine does not "
                        "run on the last replica that other requests use"
                    )
                await asyncio.sleep(min(LOOK_EVERY_S, deadline.remaining))
            yield
        finally:
            self._turn.release()

    def _can_spare_one(self, search_id: str) -> bool:
        """Whether an engine may die: another one serves, there is never another one, or no other request needs it."""
        replicas = self._replicas()
        if replicas is None or self._size < 2:
            return True
        alive = len(set(replicas) - set(self._gone))
        return alive > 1 or (alive == 1 and self._suspects.others_idle_s(search_id) >= IDLE_S)

    async def _may_have_ended_it(self, search_id: str, error: Exception, replicas: list[str], began: float) -> bool:
        """Whether the call may have ended the engine of its replica.

        A replica that is gone without last words was killed, or died itself: any of its calls may have done that,
        except calls that were made when the replica's end was known.

        Raises:
            OnlyWaited: the replica is gone, and the call has not ended it.
        """
        if not replicas or isinstance(error, HarmfulRequest) or not _is_death(error):
            return False
        replica = replicas[-1]
        gone_at = self._gone.setdefault(replica, asyncio.get_running_loop().time())
        words = await self._words_of(replica)
        if search_id in words if words is not None else began <= gone_at:
            return True
        raise OnlyWaited(f"the replica died ({type(error).__name__})") from error

    async def _words_of(self, replica: str) -> frozenset[str] | None:
        words = await self._last_words_of(replica)
        self._suspects.heard(words or ())
        return words


def replicas_of(handle: Any) -> Mapping[str, bool] | None:
    """The replicas to which a handle of Serve sends calls, by actor id, with whether its process is connected to each;
    None before its first call. A connection ends with the replica's process, some seconds before Serve takes the
    replica off the list. Uses private parts of Ray 2.60; a test in ``tests/serve`` fails if a name changes."""
    router = getattr(getattr(getattr(handle, "_router", None), "_asyncio_router", None), "_request_router", None)
    if router is None:
        return None
    return {each.actor_id.hex(): _is_connected(each._channel) for each in router.curr_replicas.values()}


def _is_connected(channel: Any) -> bool:
    return channel is None or channel.get_state() is grpc.ChannelConnectivity.READY  # None: a call went over no channel


def _is_death(error: Exception) -> bool:
    """Whether an error says that the replica or its engine is gone."""
    if isinstance(error, RayTaskError):
        return False  # The replica lives: its method has raised.
    return isinstance(error, RayActorError | ReplicaSilent | grpc.RpcError | ConnectionError)
