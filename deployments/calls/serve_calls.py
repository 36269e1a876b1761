"""Calls over Ray Serve handles: retries, deadlines, and cancellation at the replica."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import grpc  # type: ignore[import-untyped]
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from deployments.calls.dismantle import assigned_result, dismantle_later
from deployments.config import ControllerSettings
from search.errors import GeneratorRefused, HarmfulRequest, ScorerRefused, SearchError

logger = logging.getLogger("banyan.calls")
T = TypeVar("T")

ENGINE_ERRORS = frozenset({"EngineDeadError", "EngineGenerateError", "BrokenProcessPool"})
"""Class names of engine errors. To compare types, the controller would import vLLM, which takes ten seconds."""


MAX_DOUBLINGS = 16
"""Number of times that the backoff doubles."""


class ReplicaLost(RuntimeError):
    """A call got no answer because of its replica: gone, silent, or sending nonsense."""


class ReplicaSilent(ReplicaLost):
    """A replica that works on a call sent nothing for too long."""


class OnlyWaited(ReplicaLost):
    """A replica died, and the call has not ended it: its requests waited in the replica's queue."""


class Retries(NamedTuple):
    """Retry policy of a call: number of attempts and exponential backoff."""

    attempts: int
    backoff_s: float
    backoff_max_s: float
    silence_s: float
    """Seconds without a message after which a streaming replica counts as failed."""

    @classmethod
    def of(cls, settings: ControllerSettings) -> "Retries":
        return cls(settings.attempts, settings.backoff_s, settings.backoff_max_s, settings.silence_s)

    async def again(self, error: Exception, attempt: int, deadline: "Deadline", what: str) -> bool:
        """Waits before a retry, for a random time whose maximum doubles. False, at once, if there is no retry.

        Args:
            error: the failure of the replica that ended the call. After `OnlyWaited` there is always a retry.
            attempt: number of attempts that failed.
        """
        is_last = attempt >= self.attempts and not isinstance(error, OnlyWaited)
        if is_last or deadline.remaining <= 0:
            return False
        logger.warning("%s failed (attempt %d): %s", what, attempt, in_short(error))
        longest_s = min(self.backoff_max_s, self.backoff_s * 2.0 ** min(max(attempt, 1) - 1, MAX_DOUBLINGS))
        await asyncio.sleep(random.uniform(0, min(longest_s, deadline.remaining)))
        return True


class Deadline:
    """A deadline on the clock of the running event loop."""

    def __init__(self, seconds: float) -> None:
        self._at = asyncio.get_running_loop().time() + seconds

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._at - asyncio.get_running_loop().time())


class Cancellable(Protocol):
    """The common interface of Serve's responses."""

    def cancel(self) -> None: ...


async def reply(
    ask: Callable[[], Awaitable[T]],
    deadline: Deadline,
    silence_s: float | None = None,
    assigned: Callable[[], bool] = lambda: True,
) -> T:
    """Awaits one reply of a replica, until the deadline or until it was silent for ``silence_s`` seconds.

    ``assigned`` says whether the call has a replica yet: waiting for one does not count as silence.

    Raises:
        ReplicaLost: nothing came in time, or the replica was stopped while it worked.
    """
    limit = asyncio.timeout(deadline.remaining)
    silence = None if silence_s is None else _Silence(limit, silence_s, assigned)
    try:
        async with limit:
            return await ask()
    except TimeoutError:
        if deadline.remaining <= 0:
            raise ReplicaLost("no reply until its deadline") from None
        raise ReplicaSilent(f"no reply for {silence_s} s") from None
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        # A replica that is shut down sends its own CancelledError; nobody has cancelled this task.
        raise ReplicaLost("the replica was stopped") from None
    finally:
        if silence is not None:
            silence.over()
        # A cancelled task keeps its traceback and so this frame, which must not refer back to the task.
        del limit, silence


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Silence:
    """Ends a wait after ``patience_s`` seconds. If the call has no replica by then, the time starts again."""

    def __init__(self, limit: asyncio.Timeout, patience_s: float, assigned: Callable[[], bool]) -> None:
        self._limit = limit
        self._patience_s = patience_s
        self._assigned = assigned
        self._wait()

    def over(self) -> None:
        self._timer.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._look)

    def _look(self) -> None:
        if self._assigned():
            self._limit.reschedule(asyncio.get_running_loop().time())
        else:
            self._wait()


def was_assigned(response: Any) -> bool:
    """Whether Serve has assigned a replica to a call. The call waits while no replica is available."""
    assigned = getattr(response, "_replica_result_future", None)
    return not isinstance(assigned, asyncio.Future) or assigned.done()


async def everywhere(handle: Any, method: str, timeout_s: float) -> list[Any]:
    """The reply of every replica to a method without arguments. An exception takes the place of a reply that failed or
    did not come within ``timeout_s``."""
    deadline = Deadline(timeout_s)
    try:
        async with asyncio.timeout(timeout_s):
            # Not ``results_async``: it returns no reply at all if one replica is late.
            results = await handle.broadcast(method)._fetch_replica_results_async()
    except (TimeoutError, RayServeException, RayError) as error:
        return [error]
    return await asyncio.gather(*(reply(each.get_async, deadline) for each in results), return_exceptions=True)


def release(response: Cancellable) -> None:
    """Stops the replica's work for a response that is no longer wanted.

    Cancelling the task that awaits a response does not reach the replica; this does. In the setting with one event
    loop, Serve's own ``cancel`` misses a call that was assigned to a replica but not awaited yet, so the assigned call
    is cancelled too.
    """
    result = assigned_result(response)
    response.cancel()
    if result is not None:
        result.cancel()
        dismantle_later(response)


def is_replica_failure(error: BaseException) -> bool:
    """Whether the same call can succeed elsewhere or later: the replica died, was lost or failed, and the error is not
    one of the request or the caller."""
    if isinstance(error, GeneratorRefused | ScorerRefused | HarmfulRequest):
        return False
    if isinstance(error, SearchError | ReplicaLost | RayServeException | grpc.RpcError | ConnectionError):
        return True
    if any(kind.__name__ in ENGINE_ERRORS for kind in type(error).__mro__):
        return True
    if isinstance(error, RayTaskError):
        # The method itself raised, so its own error decides.
        return isinstance(error.cause, Exception) and is_replica_failure(error.cause)
    return isinstance(error, RayError)


def refusal(error: Exception) -> Exception:
    """The error that a caller gets if it is not the replica's fault, without Ray's wrapper."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, GeneratorRefused | ScorerRefused):
        return error.cause
    return error


def in_short(error: BaseException) -> str:
    """One-line message for a client: Ray's own messages take pages and name machines."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, ReplicaLost | SearchError):
        return str(cause)
    return f"the replica failed ({type(cause).__name__})"
