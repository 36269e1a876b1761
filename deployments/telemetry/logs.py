"""Banyan's loggers in a replica: output files, search ids in records, and redacted exceptions.

Serve redirects a replica's output to its own log, which drops records below ``log_level`` and buffers up to a thousand
lines. So these loggers write to the process's own files among Ray's logs, ``worker-*.err`` and ``worker-*.out``.
"""

import logging
import sys
import traceback

from deployments.config import TelemetrySettings
from deployments.telemetry.context import SEARCH_ID

LOGGERS = ("banyan", "deployments", "kvstore")
FORMAT = "%(asctime)s %(levelname)s %(name)s%(of_search)s: %(message)s"


class SearchOfRecord(logging.Filter):
    """Adds the id of the current search to a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        search_id = SEARCH_ID.get()
        record.of_search = f" search {search_id}" if search_id else ""
        return True


class Formatter(logging.Formatter):
    """Formats exceptions as stack and class; adds their messages only if ``texts`` is true."""

    def __init__(self, texts: bool) -> None:
        super().__init__(FORMAT)
        self._texts = texts

    def formatException(self, ei: object) -> str:  # noqa: N802  # logging's name
        text = super().formatException(ei)  # type: ignore[arg-type]
        return text if self._texts else without_words(ei[1])  # type: ignore[index]


def without_words(error: BaseException) -> str:
    """Formats an exception without messages, which may quote a request: the stack and class of each error in its
    chain, so lines of code and no values."""
    told = traceback.TracebackException.from_exception(error)
    lines: list[str] = []
    link: traceback.TracebackException | None = told
    while link is not None:
        kind = link.exc_type.__name__ if link.exc_type else "error"
        lines = [*link.stack.format(), f"{kind} (text not logged: telemetry.log_texts is off)\n", *lines]
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "".join(lines).rstrip()


def configure(settings: TelemetrySettings, level: str) -> None:
    """Configures the loggers of a replica's process. Call it once."""
    warnings = logging.StreamHandler(sys.__stderr__)
    warnings.addFilter(SearchOfRecord())
    warnings.setFormatter(Formatter(settings.log_texts))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [warnings]
        logger.setLevel(level)
        logger.propagate = False
    searches = logging.getLogger("banyan.search")
    lines = logging.StreamHandler(sys.__stdout__)
    lines.setFormatter(logging.Formatter("%(message)s"))
    searches.handlers = [lines]
    searches.setLevel(logging.INFO if settings.search_log else logging.CRITICAL)
    searches.propagate = False
