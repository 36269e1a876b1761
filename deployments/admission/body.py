"""From bytes to a validated request: strict JSON, clean text, and the path of whatever is wrong."""

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers

from deployments.admission.errors import BadRequest, UnsupportedMedia

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Path = tuple[str | int, ...]

INLINE_BYTES = 4096
"""A longer body is parsed, checked, templated and tokenized in a thread: a megabyte takes up to a second."""
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="requests")

MAX_FIELDS = 1000
"""Of one object. No request means more; and pydantic describes each unknown one before the first is told."""

TAG = "«"
"""Begins the names of union members in schemas: pydantic puts them into an error's path, where no
client would recognize them."""


async def read_by(work: Callable[[bytes], T], body: bytes) -> T:
    """What ``work`` makes of a body; of a long one in a thread."""
    if len(body) <= INLINE_BYTES:
        return work(body)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work, body)


def check_media(headers: Headers) -> None:
    """
    Raises:
        UnsupportedMedia: the body is declared as something else than JSON.
    """
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        raise UnsupportedMedia(f"the body must be application/json, not {media or 'undeclared'}")


def parsed_object(raw: bytes) -> dict[str, Any]:
    """A body's JSON object, every text and number in it checked.

    Raises:
        BadRequest: it is not a JSON object, or holds NaN, an infinity, a NUL or half a surrogate pair.
    """
    try:
        value = json.loads(raw)
    except UnicodeDecodeError:
        raise BadRequest("the body is not UTF-8", code="invalid_json") from None
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise BadRequest(message, code="invalid_json") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply", code="invalid_json") from None
    except ValueError:
        # Python refuses to read integers of thousands of digits.
        raise BadRequest("the body holds a number that is too long", code="invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object", code="invalid_json")
    for path, fault in _faults(value):
        raise BadRequest(f"{dotted(path) or 'the body'} {fault}", dotted(path))
    return value


def validated(model: type[Model], value: dict[str, Any]) -> Model:
    """``value`` as a request of that model.

    Raises:
        BadRequest: the first thing that is wrong, with its path.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise refused(error) from None


def refused(error: ValidationError, prefix: Path = ()) -> BadRequest:
    """The first fault that pydantic found, as a client is told."""
    fault = error.errors(include_url=False, include_context=False)[0]
    path = dotted((*prefix, *fault["loc"]))
    if fault["type"] == "extra_forbidden":
        return BadRequest(f"unknown field: {path}", path, "unknown_parameter")
    if fault["type"] == "missing":
        return BadRequest(f"missing field: {path}", path, "missing_required_parameter")
    message = fault["msg"].removeprefix("Value error, ")
    given = fault.get("input")
    plain = isinstance(given, str | int | float | None) and bool(fault["loc"])
    shown = f", not {given!r}" if plain and repr(given) not in message else ""
    return BadRequest(f"{path}: {message}{_short(shown)}" if path else message, path)


def dotted(path: Path) -> str | None:
    """``("messages", 0, "content")`` as ``messages.0.content``; None for the whole body."""
    return ".".join(str(part) for part in path if not str(part).startswith(TAG)) or None


def fault_in_text(text: str) -> str | None:
    """Why no tokenizer or reply can carry this text; None when it is sound."""
    if "\0" in text:
        return "contains a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains half a surrogate pair, which is not valid Unicode"
    return None


def _faults(value: Any) -> Iterator[tuple[Path, str]]:
    """What no field may hold, wherever it stands. Iterative: a body may be nested as deeply as JSON allows."""
    stack: list[tuple[Path, Any]] = [((), value)]
    while stack:
        path, part = stack.pop()
        if isinstance(part, str):
            if fault := fault_in_text(part):
                yield path, fault
        elif isinstance(part, float):
            if not math.isfinite(part):
                yield path, "must be a finite number"
        elif isinstance(part, dict):
            if len(part) > MAX_FIELDS:
                yield path, f"has {len(part)} fields; {MAX_FIELDS} are allowed"
                return
            for key in part:
                if fault := fault_in_text(key):
                    yield path, f"has a field whose name {fault}"
            stack.extend(((*path, key), member) for key, member in part.items())
        elif isinstance(part, list):
            stack.extend(((*path, index), member) for index, member in enumerate(part))


def _short(text: str, longest: int = 80) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"
