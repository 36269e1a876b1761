"""Retries of a client: which errors are retried, how often, and after which wait."""

from collections.abc import Callable
from dataclasses import dataclass

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
    wait_random,
)

from cluster.client.errors import Disconnected, Refused

OUT_OF_TIME = "deadline_exceeded"
"""Error code of a search that ran out of its own time: a retry would, too."""
ENDS_ENGINES = "engine_ended_twice"
"""Error code of a request that ended two engines. The endpoint refuses it from then on."""


@dataclass(frozen=True)
class Retries:
    """Number of tries and the waits between them. With ``attempts`` 1 there are no retries."""

    attempts: int = 8
    """Tries of one request, the first included."""
    backoff_s: float = 0.5
    """First wait in seconds, if the endpoint names none. It doubles."""
    backoff_max_s: float = 8.0
    """Longest wait in seconds, if the endpoint names none. The seven waits of the defaults last a little over half a
    minute, longer than the replacement of a controller."""

    def loop(self, seconds: float, again: Callable[[BaseException], bool]) -> AsyncRetrying:
        """Yields attempts until one succeeds, fails with an error that ``again`` rejects, their number is used up, or
        the next one would begin later than ``seconds`` after the first. Raises the last error unchanged."""
        backoff = wait_exponential(self.backoff_s, max=self.backoff_max_s) + wait_random(0, self.backoff_s)

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            named = error.retry_after_s if isinstance(error, Refused) else None
            return backoff(state) if named is None else named

        return AsyncRetrying(
            retry=retry_if_exception(again),
            stop=stop_after_attempt(self.attempts) | stop_before_delay(seconds),
            wait=wait,
            reraise=True,
        )


def worth_another_try(error: BaseException) -> bool:
    """Whether a retry may succeed: the connection broke, the endpoint failed (5xx, or a server error in a stream), or
    it was full and sent ``Retry-After``."""
    if isinstance(error, Refused):
        if error.status == 429:
            return error.retry_after_s is not None
        failed = error.kind == "server_error" if error.status is None else error.status >= 500
        return failed and error.code not in (OUT_OF_TIME, ENDS_ENGINES)
    return isinstance(error, Disconnected)
