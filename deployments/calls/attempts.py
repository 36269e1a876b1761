"""The attempts of a call over a Serve handle: the one loop by which calls of every kind are made again."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry.trace import INVALID_SPAN, Span

from deployments.calls.dismantle import dismantle_response, replica_of
from deployments.calls.envelope import Envelope
from deployments.calls.pool import Pool
from deployments.calls.serve_calls import (
    Deadline,
    OnlyWaited,
    Retries,
    in_short,
    is_replica_failure,
    refusal,
    release,
)
from deployments.telemetry import catalog
from deployments.telemetry.context import SEARCH_ID
from deployments.telemetry.searches import SearchTelemetry
from search.errors import SearchError
from search.ports import PortRequest


class Attempts:
    """The attempts of one call: enter `next` until one succeeds. Each has a span of its own."""

    def __init__(
        self,
        what: str,
        request: PortRequest,
        pool: Pool,
        retries: Retries,
        telemetry: SearchTelemetry,
        failure: Callable[[str], SearchError],
    ) -> None:
        """
        Args:
            what: kind of the call in spans, metrics and logs.
            failure: returns the error for the caller when no attempt is left, from the last failure's text.
        """
        self.deadline = Deadline(request.deadline_s)
        self.tried: list[str] = []
        """Actor ids of the replicas of all attempts so far."""
        self.span: Span = INVALID_SPAN
        """Span of the newest attempt."""
        self._what = what
        self._search_id = request.search_id
        self._pool = pool
        self._retries = retries
        self._telemetry = telemetry
        self._failure = failure
        self._failed = 0
        self._again = False
        SEARCH_ID.set(request.search_id)

    @asynccontextmanager
    async def next(self) -> AsyncIterator[Envelope]:
        """Context of the next attempt; waits until it may be made. If its replica fails, the context ends without an
        error, after the backoff: make another attempt.

        Raises:
            SearchError: ``failure``, after the last attempt or at the deadline.
            HarmfulRequest: the request ended two engines.
            Exception: an error of the request or the caller, at once.
        """
        try:
            with self._telemetry.call(self._what, self._search_id) as self.span:
                async with self._pool.call(self._search_id, self.deadline, self.tried, self._again) as envelope:
                    yield envelope
        except Exception as error:
            if not is_replica_failure(error):
                raise refusal(error) from None
            self._failed += not isinstance(error, OnlyWaited)
            if not await self._retries.again(error, self._failed, self.deadline, self._what):
                raise self._failure(in_short(error)) from None
            self._again = True
            self._telemetry.metrics.add(catalog.RETRIES, 1, self._what)


@asynccontextmanager
async def sent(response: Any, tried: list[str]) -> AsyncIterator[Any]:
    """Context of one call at a replica, which is added to ``tried``. A call that is left by an error, or by closing the
    generator around it, is cancelled at its replica; any other has been answered completely."""
    answered = False
    try:
        yield response
        answered = True
    finally:
        if (replica := replica_of(response)) is not None:
            tried.append(replica)
        if answered:
            dismantle_response(response)
        else:
            release(response)
