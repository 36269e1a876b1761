"""Banyan's own loggers in a replica: where they write, which search a warning belongs to, and what they keep back.

Serve sends what a replica prints to its own log, which drops it below ``log_level`` and holds the rest back until there
are a thousand lines. So these write to the process's own files, ``worker-*.err`` and ``worker-*.out`` among Ray's logs.
"""

import logging
import sys
import traceback

from deployments.config import TelemetrySettings
from deployments.telemetry.context import SEARCH_ID

LOGGERS = ("banyan", "deployments", "kvstore")
FORMAT = "%(asctime)s %(levelname)s %(name)s%(of_search)s: %(message)s"


class SearchOfRecord(logging.Filter):
    """Puts the id of the search in whose context a record was made before its message."""

    def filter(self, record: logging.LogRecord) -> bool:
        search_id = SEARCH_ID.get()
        record.of_search = f" search {search_id}" if search_id else ""
        return True


class Formatter(logging.Formatter):
    """Tells of exceptions where they were raised and of what class; their words only where that is allowed."""

    def __init__(self, texts: bool) -> None:
        super().__init__(FORMAT)
        self._texts = texts

    def formatException(self, ei: object) -> str:  # noqa: N802  # logging's name
        text = super().formatException(ei)  # type: ignore[arg-type]
        return text if self._texts else without_words(ei[1])  # type: ignore[index]


def without_words(error: BaseException) -> str:
    """An exception's stack and the class of each error in its chain: lines of code, no values. None of their messages:
    these may quote a request."""
    told = traceback.TracebackException.from_exception(error)
    lines: list[str] = []
    link: traceback.TracebackException | None = told
    while link is not None:
        kind = link.exc_type.__name__ if link.exc_type else "error"
        lines = [*link.stack.format(), f"{kind} (its words are not logged: telemetry.log_texts)\n", *lines]
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "".join(lines).rstrip()


def configure(settings: TelemetrySettings, level: str) -> None:
    """To be called once in a replica's process."""
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
