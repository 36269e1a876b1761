"""When a client asks again: what is worth another try, how often, and how long it waits before."""

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
"""The code of an endpoint's answer that a search ran out of its own time: it would again."""


@dataclass(frozen=True)
class Retries:
    """How often and how patiently a request is made again. With ``attempts`` 1 it never is."""

    attempts: int = 8
    """Tries of one request, the first included."""
    backoff_s: float = 0.5
    """First wait, where the endpoint names none; it doubles."""
    backoff_max_s: float = 8.0
    """Longest wait, where the endpoint names none. With the defaults seven waits are half a minute and a little:
    longer than a controller takes to be replaced."""

    def loop(self, seconds: float, again: Callable[[BaseException], bool]) -> AsyncRetrying:
        """Attempts until one succeeds, fails with what ``again`` does not hold for, their number is used up, or the
        next one would begin later than ``seconds`` after the first. The last error is raised as it is."""
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
    """Whether the same request can succeed a little later: the connection broke, the endpoint failed (5xx, or an error
    of its own in a stream), or it was full and said when it will not be."""
    if isinstance(error, Refused):
        if error.status == 429:
            return error.retry_after_s is not None
        failed = error.kind == "server_error" if error.status is None else error.status >= 500
        return failed and error.code != OUT_OF_TIME
    return isinstance(error, Disconnected)
