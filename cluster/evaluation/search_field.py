"""The ``search`` field of a request, from command-line options."""

import json

from pydantic import ValidationError

from search.settings import parse_alias, parse_search
from search.strategies.catalog import STRATEGIES


class SearchFieldError(ValueError):
    """There is no such strategy, or it does not take these settings."""


def search_field(strategy: str, n: int) -> dict[str, object]:
    """The field for a strategy's name, which gets ``n`` if it takes one, or for an alias such as ``beam-64``, which
    has its own number. Settings may follow: ``dvts:m=8,budget.tokens=1000``. Validated here, so that an error is not
    sent a thousand times.

    Raises:
        SearchFieldError: a name or setting is wrong; the message names it and what is allowed.
    """
    name, _, settings = strategy.partition(":")
    given: dict[str, object] = parse_alias(name) or {"strategy": name}
    for setting in settings.split(",") if settings else ():
        _put(given, setting)
    known = STRATEGIES.get(str(given["strategy"]))
    if known is not None and "n" in known.model_fields:
        given.setdefault("n", n)
    try:
        parse_search(given)
    except ValidationError as error:
        first = error.errors()[0]
        index = ".".join(map(str, first["loc"]))
        about = f"{strategy}: {index}" if settings else strategy
        raise SearchFieldError(f"{about}: {first['msg']}") from error
    return given


def _put(given: dict[str, object], setting: str) -> None:
    """Adds one ``key=value``; the value is parsed as JSON, else taken as text."""
    key, equals, text = setting.partition("=")
    if not (key and equals and text):
        raise SearchFieldError(f"{setting!r} is no setting: write key=value")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    outer, dot, inner = key.partition(".")
    if not dot:
        given[key] = value
        return
    group = given.setdefault(outer, {})
    if not isinstance(group, dict):
        raise SearchFieldError(f"{key!r} and {outer!r} cannot both be set")
    group[inner] = value
