"""What the handlers of the routes work with."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Request

from deployments.admission.body import check_media, parsed_object, read_by
from deployments.admission.errors import NotFound
from deployments.http.health import Health
from deployments.http.jobs import Jobs
from deployments.http.kept import Kept
from deployments.loop.delay import LoopDelay
from deployments.service.completions import CompletionService
from deployments.service.live import LiveSettings
from deployments.service.searches import SearchService
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
    live: LiveSettings
    jobs: Jobs
    searches: SearchService
    completions: CompletionService
    health: Health
    operations: Operations
    strategies: Catalog = field(default_factory=lambda: STRATEGIES)
    loop_delay: LoopDelay = field(default_factory=LoopDelay)
    refused: Callable[[int, str, int], None] = lambda status, reason, count: None
    """Told the status and the code of every error, and how many there were."""
    kept: Kept | None = None
    """What clients leave here; None where nothing is kept."""
    started: int = field(default_factory=lambda: int(time.time()))
    """Unix seconds."""

    async def prepared(self, request: Request, prepare: Callable[[dict[str, Any]], T]) -> T:
        """What ``prepare`` makes of the request's JSON object; of a long one in a thread.

        There are as many requests here as there are places, at most.

        Raises:
            UnsupportedMedia, BadRequest: as `deployments.admission.body` says; and whatever ``prepare`` raises.
        """
        check_media(request.headers)
        return await read_by(lambda body: prepare(parsed_object(body)), await request.body())


async def _endpoint(request: Request) -> Endpoint:
    endpoint: Endpoint = request.app.state.endpoint
    return endpoint


Served = Annotated[Endpoint, Depends(_endpoint)]
"""The type of a handler's parameter that gets the endpoint."""


async def _kept(served: Served) -> Kept:
    """
    Raises:
        NotFound: nothing is kept here.
    """
    if served.kept is None:
        message = "files, batches and searches are not kept here: the operator has not set controller.store.path"
        raise NotFound(message, code="store_disabled")
    return served.kept


KeptHere = Annotated[Kept, Depends(_kept)]
"""The type of a handler's parameter that gets what clients leave here."""
