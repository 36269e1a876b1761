"""Rows of a Ray Data pipeline, answered as the endpoint answers requests: what the serve deployment stage of
``ray.data.llm`` asks for, by handle.

That stage sends one dictionary with fields of its own beside those of the request, which the endpoint would refuse:
so a row has the request's body in one field. The body is a text: in a table of objects Arrow gives each all the fields
of the others, null, and makes arrays of lists. And it asks once: a row that finds no place waits here. Rows are flex,
unless their bodies name a ``service_tier``.
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, Field

from deployments.admission.body import read_by, validated
from deployments.admission.errors import BadRequest
from deployments.admission.proxy import WORK
from deployments.admission.service_tier import flex_unless_said

PATIENCE_S = 3600.0
"""A row waits for a place no longer than this: it costs next to nothing, and batches may be wider than the service."""
MAX_PAUSE_S = 10.0
"""Between two tries of a row, whatever the endpoint names."""

Json = dict[str, Any]
Answer = Callable[[str, str, bytes], Awaitable[tuple[int, list[tuple[str, str]], bytes]]]
"""From method, path and body to status, headers and body: `SearchController.answer`."""


class Row(BaseModel):
    """A request; what else stands beside it is not for the endpoint."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    url: str = Field(pattern=r"^/v1/[a-z/]+$", max_length=100)
    body: str
    """JSON."""


async def reply_to(row: Json, answer: Answer) -> Json:
    """The reply's body. Errors are Python's own, which any process can unpickle, and of the kinds that the stage tells
    apart: the first two concern the row, and make an error row of it under ``should_continue_on_error``.

    Raises:
        ValueError: the row is no request, or the endpoint refuses it; with the status, and the path of what is wrong.
        TimeoutError: no answer by the search's deadline, or no place within ``PATIENCE_S``.
        RuntimeError: the service has failed.
    """
    try:
        asked = validated(Row, row)
    except BadRequest as error:
        raise ValueError(f"a row is {{'url': '/v1/…', 'body': json.dumps(…)}}: {error.message}") from None
    status, headers, content = await _with_a_place(asked, answer)
    if not headers.get("content-type", "").startswith("application/json"):
        raise ValueError("body.stream: the reply to a row is whole, not streamed")
    reply: Json = json.loads(content)
    if status == httpx.codes.OK:
        return reply
    message = f"{status}: {reply['error']['message']}"
    if status == httpx.codes.GATEWAY_TIMEOUT:
        raise TimeoutError(message)
    raise ValueError(message) if status < 500 else RuntimeError(message)


async def _with_a_place(asked: Row, answer: Answer) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the first reply that is no 429.

    Raises:
        TimeoutError: there was none within ``PATIENCE_S``.
    """
    deadline = time.monotonic() + PATIENCE_S
    body = asked.body.encode()
    if asked.url in WORK:
        body = await read_by(flex_unless_said, body)
    while True:
        status, headers, content = await answer("POST", asked.url, body)
        told = dict(headers)
        if status != httpx.codes.TOO_MANY_REQUESTS:
            return status, told, content
        if time.monotonic() > deadline:
            raise TimeoutError(f"no place for this row within {PATIENCE_S:g} s")
        pause_s = float(told.get("retry-after", "1"))
        # Not all at once that were refused together.
        await asyncio.sleep(min(pause_s, MAX_PAUSE_S) * random.uniform(0.5, 1.0))
