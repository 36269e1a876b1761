"""Calls over Ray Serve handles: how one is retried, awaited within its deadline, and stopped on the replica."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import grpc  # type: ignore[import-untyped]
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from deployments.config import ControllerSettings
from search.errors import SearchError

logger = logging.getLogger("banyan.calls")
T = TypeVar("T")

ENGINE_ERRORS = frozenset({"EngineDeadError", "EngineGenerateError", "BrokenProcessPool"})
"""By name: importing vLLM into the controller only to compare types would take ten seconds."""


class ReplicaLost(RuntimeError):
    """A call ended without its answer for reasons of the replica: gone, silent, or talking nonsense."""


class Retries(NamedTuple):
    """How often and how patiently a call is made again."""

    attempts: int
    backoff_s: float
    backoff_max_s: float
    reply_timeout_s: float
    """Longest wait for one reply; silence beyond it is a failure of the replica."""
    on_retry: Callable[[str], None] = lambda what: None
    """Told what is made again."""

    @classmethod
    def of(cls, settings: ControllerSettings, on_retry: Callable[[str], None]) -> "Retries":
        return cls(settings.attempts, settings.backoff_s, settings.backoff_max_s, settings.call_timeout_s, on_retry)

    def loop(self, deadline: "Deadline", what: str) -> AsyncRetrying:
        """Attempts until one succeeds, their number is used up, or the deadline has passed."""

        def note(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            logger.warning("%s failed (attempt %d): %s", what, state.attempt_number, in_short(error) if error else "")
            self.on_retry(what)

        return AsyncRetrying(
            retry=retry_if_exception(is_replica_failure),
            stop=lambda state: stop_after_attempt(self.attempts)(state) or deadline.remaining <= 0,
            wait=wait_random_exponential(multiplier=self.backoff_s, max=self.backoff_max_s),
            before_sleep=note,
            reraise=True,
        )


class Deadline:
    """A point in this process's time."""

    def __init__(self, seconds: float) -> None:
        self._at = asyncio.get_running_loop().time() + seconds

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._at - asyncio.get_running_loop().time())


class Cancellable(Protocol):
    """What Serve's responses share."""

    def cancel(self) -> None: ...


async def reply(ask: Callable[[], Awaitable[T]], deadline: Deadline, timeout_s: float) -> T:
    """Awaits one reply of a replica.

    Raises:
        ReplicaLost: nothing came in time, or the replica was stopped while it worked.
    """
    limit = min(timeout_s, deadline.remaining)
    try:
        async with asyncio.timeout(limit):
            return await ask()
    except TimeoutError:
        raise ReplicaLost(f"no reply within {limit:.1f} s") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # A replica that is shut down sends its own CancelledError; nobody has cancelled this task.
        raise ReplicaLost("the replica was stopped") from None


async def everywhere(handle: Any, method: str, timeout_s: float) -> list[Any]:
    """What a method without arguments returns on every replica; an exception in place of a reply that
    did not come within ``timeout_s``."""
    try:
        async with asyncio.timeout(timeout_s):
            return list(await handle.broadcast(method).results_async(timeout_s=timeout_s, return_exceptions=True))
    except (TimeoutError, RayServeException, RayError) as error:
        return [error]


def release(response: Cancellable) -> None:
    """Stops the replica's work for a response that is no longer wanted.

    Cancelling the task that awaits a response does not reach the replica; this does. In the setting
    with one event loop, Serve's own ``cancel`` misses a call that was assigned to a replica but not
    awaited yet, so the assigned call is cancelled too.
    """
    assigned = getattr(response, "_replica_result_future", None)
    response.cancel()
    if not isinstance(assigned, asyncio.Future) or not assigned.done() or assigned.cancelled():
        return
    if assigned.exception() is None:
        assigned.result().cancel()


def is_replica_failure(error: BaseException) -> bool:
    """Whether the same call can succeed elsewhere or later: a death, a loss or a refusal of the
    replica, not an error of the caller."""
    if isinstance(error, SearchError | ReplicaLost | RayServeException | grpc.RpcError | ConnectionError):
        return True
    if any(kind.__name__ in ENGINE_ERRORS for kind in type(error).__mro__):
        return True
    if isinstance(error, RayTaskError):
        # The method itself raised: only what it raised counts.
        return isinstance(error.cause, Exception) and is_replica_failure(error.cause)
    return isinstance(error, RayError)


def in_short(error: BaseException) -> str:
    """One line for a client: Ray's own messages run over pages and name machines."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, ReplicaLost | SearchError):
        return str(cause)
    return f"the replica failed ({type(cause).__name__})"
