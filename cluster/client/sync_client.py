"""The client for programs without an event loop."""

from collections.abc import Generator
from contextlib import ExitStack, aclosing
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from cluster.client.client import Client
from cluster.client.replies import Completion, Event, Question
from cluster.client.retries import Retries


class SyncClient:
    """Blocking version of `Client`. Use as a context manager. Thread-safe.

    Its event loop runs on a thread of its own, so it also works in programs with a loop, such as notebooks.

    Args, Raises: as `Client`.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        connections: int = 64,
        retries: Retries | None = None,
    ) -> None:
        self._client = Client(url, api_key, timeout_s, connections, retries)
        self._stack = ExitStack()
        self._entered: BlockingPortal | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._entered = stack.enter_context(start_blocking_portal())
            stack.enter_context(self._entered.wrap_async_context_manager(self._client))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        self._entered = None

    @property
    def url(self) -> str:
        return self._client.url

    def model(self) -> str:
        """See `Client.model`."""
        return self._portal.call(self._client.model)

    def healthy(self) -> bool:
        """See `Client.healthy`."""
        return self._portal.call(self._client.healthy)

    def ask(self, question: Question) -> Completion:
        """See `Client.ask`."""
        return self._portal.call(self._client.ask, question)

    def stream(self, question: Question) -> Generator[Event, None, None]:
        """See `Client.stream`. Closing the generator, or leaving it to be collected, disconnects."""
        events: SimpleQueue[Event | None] = SimpleQueue()
        pumping = self._portal.start_task_soon(self._pump, question, events)
        try:
            while (event := events.get()) is not None:
                yield event
            pumping.result()
        finally:
            pumping.cancel()

    async def _pump(self, question: Question, events: "SimpleQueue[Event | None]") -> None:
        """Runs in the client's loop. The queue is unbounded, so the loop never waits for the reader."""
        try:
            async with aclosing(self._client.stream(question)) as stream:
                async for event in stream:
                    events.put(event)
        finally:
            events.put(None)

    @property
    def _portal(self) -> BlockingPortal:
        if self._entered is None:
            raise RuntimeError("the client is used outside of its with block")
        return self._entered
