"""Parses and validates request bodies: strict JSON, valid text, and the path of the first invalid field."""

import json
import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers

from deployments.admission.errors import BadRequest, UnsupportedMedia
from search.tools.json_number import json_number

Model = TypeVar("Model", bound=BaseModel)
Path = tuple[str | int, ...]

MAX_FIELDS = 1000
"""Maximum fields of one JSON object. No valid request has more, and pydantic builds an error for every unknown field
although only the first is reported."""
MAX_DEPTH = 64
"""Maximum nesting of objects and lists, the body itself included."""
MAX_ELEMENTS = 250_000
"""Maximum number of fields and list elements of a body. More than the token ids in a megabyte of prompts."""

TAG = "«"
"""Prefix of the names of union members. pydantic puts these names into an error's path; `dotted` removes them,
because no client would recognize them."""


Unread = Annotated[Any, Field(description="Accepted and ignored.")]


class Body(BaseModel):
    """Base of requests: no coercion ("16" is not 16, true is not 1), and no unknown field unless `parsed` allows it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def check_media(headers: Headers) -> None:
    """Checks the content type and encoding.

    Raises:
        UnsupportedMedia: the body is not declared as JSON, or it is compressed.
    """
    check_encoding(headers)
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        raise UnsupportedMedia(f"Content-Type must be application/json, not {media or 'missing'}")


def check_encoding(headers: Headers) -> None:
    """Checks that the body is not compressed.

    Raises:
        UnsupportedMedia: it is.
    """
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMedia(f"the body must not be compressed: Content-Encoding is {encoding[:40]!r}")


def parsed_object(raw: bytes) -> dict[str, Any]:
    """Parses a body's JSON object and checks every string and number in it.

    Raises:
        BadRequest: the body is not a JSON object in UTF-8, contains NaN, an infinity, a NUL or half a surrogate pair,
            or is over `MAX_DEPTH`, `MAX_ELEMENTS` or, in one of its objects, `MAX_FIELDS`.
    """
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_float=json_number)
    except UnicodeDecodeError:
        raise BadRequest("the body is not UTF-8", code="invalid_json") from None
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise BadRequest(message, code="invalid_json") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply", code="invalid_json") from None
    except ValueError:
        # Python refuses to read integers of thousands of digits.
        raise BadRequest("the body contains a number that is too long", code="invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object", code="invalid_json")
    _Check().value(value)
    return value


def validated(model: type[Model], value: dict[str, Any], extra: Literal["allow"] | None = None) -> Model:
    """Validates ``value`` as an instance of ``model``. With ``extra`` at ``allow``, unknown fields are kept in
    ``model_extra``, at every level.

    Raises:
        BadRequest: a field is invalid; names the path of the first one.
    """
    try:
        return model.model_validate(value, extra=extra)
    except ValidationError as error:
        raise refused(error) from None


def refused(error: ValidationError, prefix: Path = ()) -> BadRequest:
    """Converts the first error that pydantic found; ``prefix`` goes before its path."""
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
    """Returns why a text can be neither tokenized nor sent in a reply; None for a valid text."""
    if "\0" in text:
        return "contains a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains half a surrogate pair, which is not valid Unicode"
    return None


class _Check:
    """Checks every value of a body. There is one path, of the value at hand: a path for each value would take gigabytes
    for a deep list of many numbers."""

    def __init__(self) -> None:
        self._path: list[str | int] = []
        self._elements = 0

    def value(self, value: Any) -> None:
        """Checks a value and all below it.

        Raises:
            BadRequest: one of them is invalid.
        """
        if isinstance(value, str):
            if fault := fault_in_text(value):
                self._refuse(fault)
        elif isinstance(value, float):
            if not math.isfinite(value):
                self._refuse("must be a finite number")
        elif isinstance(value, dict | list):
            self._members(value)

    def _members(self, value: dict[str, Any] | list[Any]) -> None:
        if len(self._path) >= MAX_DEPTH:
            self._refuse(f"is nested too deeply; {MAX_DEPTH} levels are allowed")
        self._elements += len(value)
        if self._elements > MAX_ELEMENTS:
            self._refuse(f"exceeds the limit of {MAX_ELEMENTS} values in a body")
        if isinstance(value, dict):
            if len(value) > MAX_FIELDS:
                self._refuse(f"has {len(value)} fields; {MAX_FIELDS} are allowed")
            for name in value:
                if fault := fault_in_text(name):
                    self._refuse(f"has a field whose name {fault}")
        members: Iterable[tuple[str | int, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
        for key, member in members:
            if isinstance(member, str | float | dict | list):
                self._path.append(key)
                self.value(member)
                self._path.pop()

    def _refuse(self, fault: str) -> NoReturn:
        path = dotted(tuple(self._path))
        raise BadRequest(f"{path or 'the body'} {fault}", path)


def _short(text: str, max_chars: int = 80) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"
