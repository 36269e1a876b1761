"""Errors in OpenAI's format: one exception class and one HTTP status for each kind, one JSON shape for all.

ApiError                     status  type                   code
├─ BadRequest                400     invalid_request_error  (given)
├─ Unauthorized              401     authentication_error   invalid_api_key
├─ Forbidden                 403     permission_error       (given)
├─ NotFound                  404     invalid_request_error  (given)
├─ BodyTimeout               408     invalid_request_error  request_timeout
├─ Conflict                  409     invalid_request_error  (given)
├─ Gone                      410     invalid_request_error  damaged
├─ BodyTooLarge              413     invalid_request_error  body_too_large
├─ UnsupportedMedia          415     invalid_request_error  unsupported_media_type
├─ Busy                      429     rate_limit_error       rate_limit_exceeded, or as given
├─ EndsEngines               500     server_error           engine_ended_twice
├─ Unavailable               503     server_error           (given)
└─ DeadlineExceeded          504     server_error           deadline_exceeded
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from deployments.service.slots import NoSlot, Refused

NO_FLEX = "resource_unavailable"
"""Code of a refused flex request. OpenAI's flex processing answers "429 Resource Unavailable" without capacity."""
MAX_MESSAGE_CHARS = 500
"""Maximum length of an error message. Messages quote the request, and a long request must not cause a long reply."""

REFUSAL = "banyan.refusal"
"""Key in the ASGI scope for the `ApiError.reason` of the reply."""


class ErrorResponse(JSONResponse):
    """An error in OpenAI's shape; stores its reason in the scope for `deployments.admission.refusals`."""

    def __init__(self, error: "ApiError", status_code: int, headers: Mapping[str, str]) -> None:
        super().__init__(error.body, status_code, headers)
        self._reason = error.reason

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[REFUSAL] = self._reason
        await super().__call__(scope, receive, send)


class ApiError(Exception):
    """An error reply to a client.

    Args:
        message: A sentence for people.
        param: Path of the field that is wrong, e.g. ``search.n`` or ``messages.0.content``.
        code: A word for programs; the class's default where not given.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = "internal_error"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param, code)
        self.message = _in_short(message)
        self.param = None if param is None else _in_short(param)
        self.code = code or self.default_code

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        return {}

    @property
    def reason(self) -> str:
        """Label of this error in the refusal metrics; never text from the request."""
        return self.code or "none"

    def response(self) -> Response:
        return ErrorResponse(self, self.status, self.headers)


def _in_short(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}…"


class BadRequest(ApiError):
    status, type, default_code = 400, "invalid_request_error", "invalid_value"


def context_exceeded(context_tokens: int, fault: str, param: str) -> BadRequest:
    """Returns the error of a prompt that does not fit. It begins with OpenAI's words: clients such as LiteLLM look for
    them, to send the request to a model with a larger context."""
    message = f"This model's maximum context length is {context_tokens} tokens; {fault}"
    return BadRequest(message, param, "context_length_exceeded")


class Unauthorized(ApiError):
    status, type, default_code = 401, "authentication_error", "invalid_api_key"

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(ApiError):
    """The key, or the page that sends the request, may not do that."""

    status, type, default_code = 403, "permission_error", "operator_only"


class NotFound(ApiError):
    status, type, default_code = 404, "invalid_request_error", "not_found"


class BodyTimeout(ApiError):
    status, type, default_code = 408, "invalid_request_error", "request_timeout"


class Conflict(ApiError):
    """The resource's state no longer allows the operation."""

    status, type, default_code = 409, "invalid_request_error", "conflict"


class Gone(ApiError):
    """What is stored under this id cannot be read any more."""

    status, type, default_code = 410, "invalid_request_error", "damaged"


class BodyTooLarge(ApiError):
    """The body is over its size limit.

    The reply has no ``Connection: close``: closing while the client still sends would reset the connection
    before it reads the error. The proxy discards the rest of the body for a while (`protocol.REQUEST_S`).
    """

    status, type, default_code = 413, "invalid_request_error", "body_too_large"


class UnsupportedMedia(ApiError):
    status, type, default_code = 415, "invalid_request_error", "unsupported_media_type"


class Busy(ApiError):
    """No capacity now: the same request may succeed later."""

    status, type, default_code = 429, "rate_limit_error", "rate_limit_exceeded"

    def __init__(self, message: str, reason: str, retry_after_s: int = 1, code: str | None = None) -> None:
        """``reason``: label for the metrics."""
        super().__init__(message, code=code)
        self.args = (message, reason, retry_after_s)
        self._reason = reason
        self.retry_after_s = retry_after_s

    @property
    def reason(self) -> str:
        return self._reason

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after_s)}


class EndsEngines(ApiError):
    """The request ended two engines. Clients of OpenAI's do not send it again."""

    default_code = "engine_ended_twice"

    @property
    def headers(self) -> dict[str, str]:
        return {"x-should-retry": "false"}


class Unavailable(ApiError):
    status, type, default_code = 503, "server_error", "service_unavailable"


class DeadlineExceeded(ApiError):
    status, type, default_code = 504, "server_error", "deadline_exceeded"


def no_slot(error: NoSlot) -> Busy:
    """Converts the refusal of a slot to the error the client gets."""
    code = NO_FLEX if error.reason is Refused.FLEX else None
    return Busy(str(error), error.reason, error.retry_after_s, code)
