"""Answers rows of a Ray Data pipeline, which the serve deployment stage of ``ray.data.llm`` sends by handle.

A row has the request's body in one field, because the stage adds fields of its own, which are not the request's.
The body is JSON text, because Arrow would change objects: each gets the fields of all others, as null, and lists become
arrays. The stage sends a row only once, so a row without a slot is retried here. Rows are flex unless their body names
a ``service_tier``.
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, Field

from deployments.admission.body_threads import read_by
from deployments.admission.errors import BadRequest, Busy, EndsEngines
from deployments.admission.proxy import WORK
from deployments.admission.service_tier import flex_unless_said
from deployments.http.json_body import validated

PATIENCE_S = 3600.0
"""Longest wait of a row for a slot. Waiting costs next to nothing, and a batch may have more rows than slots."""
ROWS = "rows"
"""Owner of the rows' bodies in the threads that read long bodies."""
MAX_PAUSE_S = 10.0
"""Maximum pause between two attempts of a row, even if ``Retry-After`` is longer."""

Json = dict[str, Any]
Endpoint = Callable[[str, str, bytes], Awaitable[tuple[int, list[tuple[str, str]], bytes]]]
"""`SearchController.answer`: from method, path and body to status, headers and body."""


class Row(BaseModel):
    """The request in a row; other fields of the row are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    url: str = Field(pattern=r"^/v1/[a-z/]+$", max_length=100)
    body: str
    """JSON."""


async def reply_to(row: Json, endpoint: Endpoint) -> Json:
    """Returns the body of the reply to a row.

    Errors are built-in exceptions, which any process can unpickle. The stage distinguishes their types: the first two
    concern only the row, which becomes an error row under ``should_continue_on_error``.

    Raises:
        ValueError: the row is no request, the endpoint refuses it, or it ended two engines; names the status and the
            invalid field.
        TimeoutError: no answer by the search's deadline, or no slot within ``PATIENCE_S``.
        RuntimeError: the service failed.
    """
    try:
        asked = validated(Row, row)
    except BadRequest as error:
        raise ValueError(f"a row is {{'url': '/v1/…', 'body': json.dumps(…)}}: {error.message}") from None
    status, headers, content = await _answer_with_retries(asked, endpoint)
    if not headers.get("content-type", "").startswith("application/json"):
        raise ValueError("body.stream: must be false, replies to rows are not streamed")
    reply: Json = json.loads(content)
    if status == httpx.codes.OK:
        return reply
    message = f"{status}: {reply['error']['message']}"
    if status == httpx.codes.GATEWAY_TIMEOUT:
        raise TimeoutError(message)
    own = status < 500 or reply["error"]["code"] == EndsEngines.default_code
    raise ValueError(message) if own else RuntimeError(message)


async def _answer_with_retries(asked: Row, endpoint: Endpoint) -> tuple[int, dict[str, str], bytes]:
    """Sends a row until the reply is no 429; returns status, headers and body.

    Raises:
        TimeoutError: only 429 within ``PATIENCE_S``.
    """
    deadline = time.monotonic() + PATIENCE_S
    body = asked.body.encode()
    while True:
        try:
            sent = await read_by(flex_unless_said, body, ROWS) if asked.url.rstrip("/") in WORK else body
            status, header_pairs, content = await endpoint("POST", asked.url, sent)
            headers = dict(header_pairs)
        except Busy as busy:
            status, headers, content = busy.status, busy.headers, b""
        if status != httpx.codes.TOO_MANY_REQUESTS:
            return status, headers, content
        if time.monotonic() > deadline:
            raise TimeoutError(f"no slot for this row within {PATIENCE_S:g} s")
        pause_s = float(headers.get("retry-after", "1"))
        # Jitter: rows refused together do not retry together.
        await asyncio.sleep(min(pause_s, MAX_PAUSE_S) * random.uniform(0.5, 1.0))
