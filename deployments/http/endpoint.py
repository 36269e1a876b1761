"""What the handlers of the routes work with."""

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Request

from deployments.completions import CompletionService
from deployments.http.disconnect import while_connected
from deployments.http.health import Health
from deployments.http.jobs import Jobs
from deployments.service import SearchService
from search.strategies.catalog import STRATEGIES, Catalog

T = TypeVar("T")


class Operations(Protocol):
    """A look at the whole application, for operators and tests."""

    async def status(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Endpoint:
    """One controller's services, as HTTP sees them."""

    served_name: str
    """The model's name."""
    body_bytes: int
    """The longest body of a request."""
    jobs: Jobs
    searches: SearchService
    completions: CompletionService
    health: Health
    operations: Operations
    strategies: Catalog = field(default_factory=lambda: STRATEGIES)
    refused: Callable[[int, str], None] = lambda status, reason: None
    """Told the status and the code of every error."""
    started: int = field(default_factory=lambda: int(time.time()))
    """Unix seconds."""

    async def work(self, request: Request, search_id: str, work: Coroutine[Any, Any, T]) -> T:
        """Awaits ``work`` in a place among the searches, as long as the client is there.

        Raises:
            NoPlace: all places are taken; ``work`` was not begun.
            ClientDisconnect: the client has gone; ``work`` has ended.
        """
        try:
            with self.searches.place(search_id):
                return await while_connected(request, work)
        finally:
            work.close()  # without effect where it has ended


async def _endpoint(request: Request) -> Endpoint:
    endpoint: Endpoint = request.app.state.endpoint
    return endpoint


Served = Annotated[Endpoint, Depends(_endpoint)]
"""The type of a handler's parameter that gets the endpoint."""
