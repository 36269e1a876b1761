"""Errors between a client and the HTTP endpoint.

ClientError
├── Unreachable         nothing listens there
├── Unsendable          the request cannot be written as JSON
├── Refused             the endpoint answered with an error (status, kind, param, code, retry_after_s)
├── TooLate             no complete answer within the deadline
└── ProtocolError       the answer is not what a Banyan endpoint sends
    └── Disconnected    the connection ended before the answer was complete
"""


class ClientError(Exception):
    """Root of the client's errors."""


class Unreachable(ClientError):
    """Nothing listens at the URL."""


class Unsendable(ClientError):
    """The request cannot be written as JSON: it is nested too deeply, or has a number or a character that JSON has
    not. Nothing was sent."""


class TooLate(ClientError):
    """No complete answer came within the deadline."""


class ProtocolError(ClientError):
    """The answer is not what a Banyan endpoint sends."""


class Disconnected(ProtocolError):
    """The connection ended before the answer was complete."""


class Refused(ClientError):
    """The endpoint answered with an error in OpenAI's shape."""

    def __init__(
        self,
        message: str,
        status: int | None = None,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, status, kind, param, code, retry_after_s)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message if self.status is None else f"{self.message} (HTTP {self.status})"
