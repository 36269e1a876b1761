"""The errors of searches, the store and the framework, as clients get them."""

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Scope

from deployments.admission.errors import (
    ApiError,
    BadRequest,
    DeadlineExceeded,
    EndsEngines,
    ErrorResponse,
    Gone,
    NotFound,
    Unavailable,
    no_slot,
)
from deployments.service.schemas import SchemasBusy
from deployments.service.slots import NoSlot
from deployments.service.tool_calls import ToolCallsUnread
from deployments.store import Damaged, Full, NotThere, StoreBusy, StoreError
from search.errors import (
    BudgetTooSmall,
    ContextsUnavailable,
    GeneratorError,
    HarmfulRequest,
    HookError,
    LimitKind,
    LimitReached,
    PathTooLarge,
    PromptTooLong,
    SchemaRefused,
    ScoredPathTooLarge,
    ScorerError,
    ScorerRefused,
    SearchError,
)

logger = logging.getLogger("banyan.http")

CLIENT_GONE = 499
"""Status of a request whose client disconnected. Only metrics see it; it is no server error."""
SCHEMA_PATH = "response_format.json_schema.schema"
ROUTE_ENDS = ("/completions", "/responses", "/search", "/score", "/models", "/files", "/batches", "/searches")
"""Ends of our routes. A path that is no route and ends so was made from a wrong base URL."""


def api_error(error: BaseException) -> ApiError:
    """Converts any exception that ends a request to the error its client gets.

    Messages of the generator and the scorer are logged only, because they may contain paths, prompts or addresses;
    the client gets a fixed text. Unexpected exceptions are logged with their traceback.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, NoSlot):
        return no_slot(error)
    if isinstance(error, TimeoutError):
        return DeadlineExceeded("the request did not finish before its deadline")
    if isinstance(error, NotThere):
        return NotFound(str(error))
    if isinstance(error, Damaged):
        logger.error("%s", error)
        return Gone(f"{error}; it can be deleted")
    if isinstance(error, Full):
        return BadRequest(str(error), code="store_full")
    if isinstance(error, StoreBusy):
        return Unavailable("the store is locked by another request; try again", code="store_unavailable")
    if isinstance(error, ContextsUnavailable):
        return BadRequest(str(error), "search.strategy", "unsupported_value")
    if isinstance(error, PromptTooLong):
        return BadRequest(str(error), "messages", "context_length_exceeded")
    if isinstance(error, PathTooLarge):
        return BadRequest(f"{error}; ask for shorter paths", "messages", "context_length_exceeded")
    if isinstance(error, ScoredPathTooLarge):
        return BadRequest(str(error), "steps", "context_length_exceeded")
    if isinstance(error, SchemaRefused):
        logger.warning("a JSON schema was refused: %s", error)
        return BadRequest("this schema cannot be enforced", SCHEMA_PATH)
    if isinstance(error, ToolCallsUnread):
        logger.error("tool calls cannot be read: %s", error)
        return Unavailable(f"tool calls cannot be read: {error}", code="tool_parser_unavailable")
    if isinstance(error, SchemasBusy):
        return Unavailable(str(error), code="schema_check_unavailable")
    if isinstance(error, BudgetTooSmall):
        return BadRequest(f"search.{error}", "search.budget.total_tokens", "budget_too_small")
    if isinstance(error, LimitReached):
        yet = "there is no answer yet" if error.kind is LimitKind.SECONDS else "no answer is possible"
        return BadRequest(f"{yet}: {error}", f"search.budget.{error.kind}", "budget_exhausted")
    if isinstance(error, HarmfulRequest):
        return EndsEngines(str(error))
    if isinstance(error, GeneratorError):
        logger.warning("the generator failed: %s", error)
        return Unavailable("the generator failed on every replica; try again", code="generator_unavailable")
    if isinstance(error, HookError):
        logger.warning("%s", error)
        return Unavailable("the step hook failed; try again", code="step_hook_failed")
    if isinstance(error, ScorerRefused):
        logger.warning("a path was refused: %s", error)
        return BadRequest("the process reward model cannot read this path", "steps")
    if isinstance(error, ScorerError):
        logger.warning("no rewards: %s", error)
        return Unavailable("the process reward model returned no rewards; try again", code="scorer_unavailable")
    logger.error("a request failed unexpectedly", exc_info=error)
    return ApiError("internal error; the server's log has the details")


def _base_url_hint(scope: Scope) -> str:
    """Returns how a client's base URL should be, if the path looks like ``/v1`` missing or doubled in it."""
    if not scope["path"].endswith(ROUTE_ENDS):
        return ""
    return f"; the base URL of a client must be http://HOST:PORT{scope.get('root_path', '')}/v1, with /v1 once"


def install(app: FastAPI) -> None:
    """Registers handlers that send every error of ``app`` in OpenAI's shape, the framework's errors included."""

    async def known(_: Request, error: Exception) -> Response:
        return api_error(error).response()

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.scope["path"]
        message = {
            404: f"no such route: {request.method} {path}{_base_url_hint(request.scope)}",
            405: f"{request.method} is not allowed for {path}",
        }.get(error.status_code, str(error.detail))
        reply = NotFound(message, code={404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code))
        return ErrorResponse(reply, error.status_code, dict(error.headers or {}))

    async def malformed(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"][1:]))  # without "query" or "path"
        return BadRequest(f"{where}: {fault['msg']}", where).response()

    async def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)

    app.add_exception_handler(ApiError, known)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(RequestValidationError, malformed)
    for expected in (TimeoutError, NoSlot, SchemasBusy, SearchError, StoreError):
        app.add_exception_handler(expected, known)
    app.add_exception_handler(Exception, known)
