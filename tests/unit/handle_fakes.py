"""Deployment handles without Serve."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

from deployments.calls.envelope import FIRST_ATTEMPT, Envelope


class Response:
    """What a handle returns: a stream or one value; it records its cancellation."""

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items
        self.cancelled = False
        self._replica_result_future: Any = None

    def given_to(self, replica: bytes) -> None:
        """Simulates that Serve has assigned the actor with that id."""
        self._replica_result_future = asyncio.get_running_loop().create_future()
        self._replica_result_future.set_result(SimpleNamespace(_actor_id=replica, cancel=lambda: None))

    async def __anext__(self) -> Any:
        return await self._items.__anext__()

    def __await__(self) -> Any:
        return self._items.__anext__().__await__()

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """A deployment handle whose replica runs one script per call."""

    def __init__(self, *scripts: Callable[[Any], AsyncIterator[Any]]) -> None:
        self._scripts = list(scripts)
        self.requests: list[Any] = []
        self.envelopes: list[Envelope] = []
        self.responses: list[Response] = []

    def options(self, **_: object) -> "Handle":
        return self

    def remote(self, request: Any, envelope: Envelope = FIRST_ATTEMPT) -> Response:
        self.requests.append(request)
        self.envelopes.append(envelope)
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        self.responses.append(Response(script(request)))
        self.responses[-1].given_to(bytes([10, len(self.responses) - 1]))
        return self.responses[-1]


class HandleOf:
    """A deployment handle whose replicas are one generator or scorer in this process."""

    def __init__(self, port: Any, method: str = "", stream: bool = False) -> None:
        self._port = port
        self._method = method
        self._stream = stream
        self._calls = 0

    def options(self, method_name: str, stream: bool = False) -> "HandleOf":
        return HandleOf(self._port, method_name, stream)

    def remote(self, request: Any, envelope: Envelope = FIRST_ATTEMPT) -> Response:
        called = getattr(self._port, self._method)(request)
        response = Response(called if self._stream else _one(called))
        response.given_to(bytes([self._calls % 256]))
        self._calls += 1
        return response


async def _one(answer: Any) -> AsyncIterator[Any]:
    yield await answer
