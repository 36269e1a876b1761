"""Log lines name their search, and quote no user unless configured to."""

import asyncio
import io
import logging
import sys
from collections.abc import Iterator

import pytest

from deployments.config import TelemetrySettings
from deployments.telemetry import catalog, logs
from deployments.telemetry.context import SEARCH_ID
from deployments.telemetry.controller_telemetry import ControllerTelemetry
from search.errors import HookError, HookFailure
from search.run.step_hook import HookCall
from tests.unit.telemetry.telemetry_world import Published

SECRET = "the user's words"
NAMES = (*logs.LOGGERS, "banyan.search")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """The process's own stdout and stderr. The loggers are restored afterwards."""
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "__stdout__", out)
    monkeypatch.setattr(sys, "__stderr__", err)
    before = {name: (log.handlers, log.level, log.propagate) for name in NAMES if (log := logging.getLogger(name))}
    yield out, err
    for name, (handlers, level, propagate) in before.items():
        log = logging.getLogger(name)
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


def failed() -> None:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(f"no such thing: {SECRET}") from error
    except ValueError:
        logging.getLogger("banyan.http").exception("a request failed")


async def test_a_warning_has_the_id_of_its_search(streams: tuple[io.StringIO, io.StringIO]) -> None:
    logs.configure(TelemetrySettings(), "WARNING")

    async def warn(search_id: str) -> None:
        SEARCH_ID.set(search_id)
        await asyncio.sleep(0)
        logging.getLogger("banyan.calls").warning("expand failed")

    await asyncio.gather(warn("one"), warn("two"))
    logging.getLogger("banyan.calls").warning("nobody's")
    _, err = streams
    first, second, third = err.getvalue().splitlines()
    assert first.endswith("WARNING banyan.calls search one: expand failed")
    assert second.endswith("WARNING banyan.calls search two: expand failed")
    assert third.endswith("WARNING banyan.calls: nobody's")


def test_an_error_is_logged_without_its_message(streams: tuple[io.StringIO, io.StringIO]) -> None:
    logs.configure(TelemetrySettings(), "WARNING")
    failed()
    text = streams[1].getvalue()
    assert SECRET not in text
    assert text.index("KeyError (") < text.index("ValueError (")
    assert "in failed" in text


def test_with_log_texts_the_message_is_logged(streams: tuple[io.StringIO, io.StringIO]) -> None:
    logs.configure(TelemetrySettings(log_texts=True), "WARNING")
    failed()
    assert SECRET in streams[1].getvalue()


def test_lines_of_the_search_log_are_written_at_any_level(streams: tuple[io.StringIO, io.StringIO]) -> None:
    logs.configure(TelemetrySettings(), "ERROR")
    logging.getLogger("banyan.search").info("{}")
    logging.getLogger("banyan.calls").warning("not so bad")
    assert [stream.getvalue() for stream in streams] == ["{}\n", ""]


def test_without_the_search_log_no_lines_are_written(streams: tuple[io.StringIO, io.StringIO]) -> None:
    logs.configure(TelemetrySettings(search_log=False), "DEBUG")
    logging.getLogger("banyan.search").info("{}")
    assert streams[0].getvalue() == ""


def test_calls_of_the_step_hook_are_counted_and_a_row_of_failures_is_logged_once(
    streams: tuple[io.StringIO, io.StringIO],
) -> None:
    telemetry = ControllerTelemetry(TelemetrySettings(), "WARNING")
    error = HookError(HookFailure.RAISED, "KeyError")
    error.__cause__ = KeyError(SECRET)
    failure = HookCall("raised", 5.0, error)
    for call in (HookCall("left", 0.1), failure, failure, HookCall("added", 0.2), failure):
        telemetry.hook_called(call)
    _, err = streams
    assert err.getvalue().count("WARNING banyan.step_hook: the step hook failed (raised): KeyError") == 2
    assert SECRET not in err.getvalue()
    published = Published()
    telemetry.metrics.publish(published)
    counted = {result: published.sum(catalog.HOOK_CALLS, result) for result in ("left", "added", "raised")}
    assert counted == {"left": 1, "added": 1, "raised": 3}
