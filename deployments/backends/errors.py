"""The error of a call to a backend."""

from enum import StrEnum


class Fault(StrEnum):
    """What went wrong with a call to a backend."""

    UNREACHABLE = "unreachable"
    """No connection: refused, no such host, or none in time."""
    CERTIFICATE = "certificate"
    """The server's certificate was not accepted, or it does not speak TLS."""
    KEY = "key"
    """The server did not accept the key, or wants one (401, 403)."""
    REDIRECT = "redirect"
    """The server sends callers elsewhere (3xx), which is not followed."""
    REFUSED = "refused"
    """The server says that the request is at fault (other 4xx)."""
    BUSY = "busy"
    """The server has too much to do (429, or 503 with Retry-After), or a limit of the settings leaves no room."""
    FAILED = "failed"
    """The server says that it failed (other 5xx, or an error in its stream)."""
    SILENT = "silent"
    """Nothing arrived for as long as the settings wait."""
    CUT = "cut"
    """The connection closed before the end of the reply."""
    INVALID = "invalid"
    """The reply is not what was asked for: not JSON, or of the wrong type."""
    TOO_LARGE = "too_large"
    """The reply is larger than allowed."""
    LATE = "late"
    """The caller's deadline passed."""


class BackendError(RuntimeError):
    """A call to a backend that has failed for good. The message has no key and nothing of the request."""

    def __init__(self, fault: Fault, url: str, message: str, status: int | None = None, retry_after_s: float = 0.0):
        """
        Args:
            url: where; empty where no URL was called.
            status: HTTP status of the reply, if there was one.
            retry_after_s: what the server asked to wait, seconds; 0 if it named nothing.
        """
        # All go to the base class: an exception is pickled by its args, and this one crosses processes.
        super().__init__(fault, url, message, status, retry_after_s)
        self.fault = fault
        self.url = url
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        where = f" at {self.url}" if self.url else ""
        return f"the backend{where}: {self.message} ({self.fault})"
