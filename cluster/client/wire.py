"""Bytes to and from the HTTP endpoint: requests as JSON, replies as validated values. All reads are bounded."""

import json
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from cluster.client.errors import ProtocolError, Refused, Unsendable
from cluster.client.replies import SearchBlock, StepScored, Usage
from deployments.admission.key_text import bare_key
from search.snapshot import TreeView

MAX_REPLY_BYTES = 64 << 20
MAX_EVENT_BYTES = 4 << 20
MAX_ERROR_CHARACTERS = 2_000

Model = TypeVar("Model", bound=BaseModel)


def authorization(api_key: str | None) -> dict[str, str]:
    """The header with the key, without the blanks and quotes that env files keep around it; empty without a key.

    Raises:
        ValueError: no header can carry the key.
    """
    key = bare_key(api_key or "")
    if not (key.isascii() and key.isprintable()):
        raise ValueError("an API key consists of printable ASCII")
    return {"Authorization": f"Bearer {key}"} if key else {}


def encoded(body: dict[str, object]) -> bytes:
    """``body`` as JSON.

    Raises:
        Unsendable: it is nested too deeply, or has a number or a character that JSON has not.
    """
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except RecursionError:
        raise Unsendable("the request is nested too deeply") from None
    except ValueError as error:
        raise Unsendable(f"the request cannot be written as JSON: {error}") from error


async def events(response: httpx.Response) -> AsyncIterator[str]:
    """The ``data`` of each server-sent event. Split at newlines only: JSON may contain U+2028."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        raise ProtocolError("the endpoint does not stream")
    buffer = bytearray()
    async for piece in response.aiter_bytes():
        buffer += piece
        *lines, rest = buffer.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip().decode("utf-8", "replace")
        if len(rest) > MAX_EVENT_BYTES:
            raise ProtocolError(f"an event is longer than {MAX_EVENT_BYTES:,} bytes")
        buffer = bytearray(rest)


async def capped(response: httpx.Response) -> bytes:
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > MAX_REPLY_BYTES:
            raise ProtocolError(f"the reply is longer than {MAX_REPLY_BYTES:,} bytes")
    return bytes(content)


def parse_object(content: str | bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the endpoint sent something that is not JSON") from error
    if not isinstance(parsed, dict):
        raise ProtocolError("the endpoint sent JSON that is not an object")
    return parsed


def search_block(reply: dict[str, Any]) -> SearchBlock:
    return validated(SearchBlock, reply.get("search"))


def usage_of(reply: dict[str, Any]) -> Usage | None:
    return validated(Usage, reply["usage"]) if reply.get("usage") else None


def tree_of(reply: dict[str, Any]) -> TreeView:
    return validated(TreeView, reply.get("tree"))


def prompt_of(reply: dict[str, Any]) -> tuple[int, ...]:
    """Token ids of the prompt; empty if the reply has none."""
    ids = reply.get("prompt_token_ids") or []
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise ProtocolError("the reply is not Banyan's: prompt_token_ids are not token ids")
    return tuple(ids)


def step_of(chunk: dict[str, Any]) -> StepScored | None:
    """The scored step in a chunk of a stream, if any."""
    event = chunk.get("search_event")
    if not isinstance(event, dict) or event.get("type") != "step_scored":
        return None
    return validated(StepScored, event)


def delta_of(chunk: dict[str, Any]) -> tuple[str, str | None]:
    """The piece of the answer in a chunk of a stream, and the finish reason if it is the last."""
    try:
        choices = chunk.get("choices") or [{}]
        return (choices[0].get("delta") or {}).get("content") or "", choices[0].get("finish_reason")
    except (AttributeError, LookupError, TypeError) as error:
        raise ProtocolError("the stream has a chunk that is not a chat completion's") from error


def validated(model: type[Model], value: object) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or model.__name__
        raise ProtocolError(f"the reply is not Banyan's: {where}: {first['msg']}") from error


def refusal(content: bytes | dict[str, Any], response: httpx.Response | None) -> Refused:
    """The error in a reply, or in an event of a stream (then without ``response``)."""
    status = response.status_code if response is not None else None
    body: object = content
    if isinstance(content, bytes):
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            body = None
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return Refused("the endpoint answered with an error that is not Banyan's", status)
    message = str(error.get("message") or "the endpoint returned no error message")[:MAX_ERROR_CHARACTERS]
    kind, param, code = (None if error.get(name) is None else str(error[name]) for name in ("type", "param", "code"))
    return Refused(message, status, kind, param, code, _retry_after_s(response))


def _retry_after_s(response: httpx.Response | None) -> float | None:
    """Seconds to wait before a retry, if the endpoint gives a number."""
    value = response.headers.get("retry-after", "") if response is not None else ""
    return float(value) if value.isascii() and value.isdigit() else None
