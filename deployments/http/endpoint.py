"""The services that route handlers use, and their FastAPI dependencies."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Request

from deployments.admission.body_threads import read_by
from deployments.admission.clients import client_of
from deployments.admission.disconnect import while_connected
from deployments.admission.errors import BadRequest, NotFound
from deployments.admission.middleware import slot_of
from deployments.admission.quotas import TokenQuotas
from deployments.admission.stopping import OpenRequests
from deployments.http.chat.jobs import Jobs
from deployments.http.errors import SCHEMA_PATH
from deployments.http.health import Health
from deployments.http.json_body import check_media, parsed_object
from deployments.http.store_access import StoreAccess
from deployments.loop.delay import LoopDelay
from deployments.service.answer_cache import AnswerCache
from deployments.service.completions import CompletionService
from deployments.service.live import LiveSettings
from deployments.service.schemas import SchemaCosts, SchemaTooDear
from deployments.service.searches import SearchJob, SearchService
from search.strategies.catalog import STRATEGIES, Catalog

T = TypeVar("T")


class Operations(Protocol):
    """Status of the whole application, for operators and tests."""

    async def status(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Endpoint:
    """The services of one controller that the HTTP routes use."""

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
    quotas: TokenQuotas = field(default_factory=TokenQuotas)
    """Of keys, whether their requests come by HTTP or in a batch."""
    refused: Callable[[int, str, int], None] = lambda status, reason, count: None
    """Called with status, reason and number of refused requests, for the metrics."""
    kept: StoreAccess | None = None
    """The store of files, batches and searches; None if there is no store."""
    open_requests: OpenRequests = field(default_factory=OpenRequests)
    """Where work that outlives its request registers."""
    schemas: SchemaCosts | None = None
    """What JSON schemas of answers cost; None: none is refused for that."""
    answers: AnswerCache | None = None
    """The answers of earlier searches; None: every request is searched for."""
    allowed_origins: Sequence[str] = ()
    """Origins of the web pages that may use the endpoint."""
    trusted_proxies: Sequence[str] = ()
    """Addresses and networks of the proxies whose ``X-Forwarded-For`` is read."""
    host: str | None = None
    """Host at which Serve's proxies listen; None without proxies."""
    started: int = field(default_factory=lambda: int(time.time()))
    """Unix seconds."""

    async def prepared(self, request: Request, prepare: Callable[[dict[str, Any]], T]) -> T:
        """Returns ``prepare`` of an admitted request's JSON object; a long body is handled in a thread.

        At most as many requests are prepared at once as there are slots.

        Raises:
            ApiError: the request was not admitted; nothing was read.
            UnsupportedMedia, BadRequest, Busy: see `check_media`, `parsed_object` and `read_by`. Also all errors of
                ``prepare``.
        """
        slot_of(request.scope)
        check_media(request.headers)
        body, client = await request.body(), client_of(request.scope)
        return await read_by(lambda body: prepare(parsed_object(body)), body, client)

    async def check_schema(self, job: SearchJob, request: Request) -> None:
        """Checks what the JSON schema of a job's answers would cost an engine.

        Raises:
            BadRequest: it costs too much.
            SchemasBusy: the cost could not be found out in time.
            ClientDisconnect: the client did not wait for it.
        """
        if self.schemas is None:
            return
        owner = slot_of(request.scope).owner.name
        try:
            await while_connected(request.receive, self.schemas.check(job.json_schema, owner))
        except SchemaTooDear as error:
            path = SCHEMA_PATH if job.calls is None else "tools"
            raise BadRequest(f"{path} {error}", path, "above_limit") from None


async def _endpoint(request: Request) -> Endpoint:
    endpoint: Endpoint = request.app.state.endpoint
    return endpoint


Served = Annotated[Endpoint, Depends(_endpoint)]
"""Type of the handler parameter that receives the endpoint."""


async def _kept(served: Served) -> StoreAccess:
    """Returns the endpoint's store.

    Raises:
        NotFound: there is no store.
    """
    if served.kept is None:
        message = (
            "files, batches, searches and responses are not stored here: the operator has not set controller.store.path"
        )
        raise NotFound(message, code="store_disabled")
    return served.kept


ServedStore = Annotated[StoreAccess, Depends(_kept)]
"""Type of the handler parameter that receives the store."""
