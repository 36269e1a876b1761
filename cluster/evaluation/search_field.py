"""The ``search`` field of a request, from command-line options."""

import json
import re

from pydantic import ValidationError

from search.settings import parse_alias, parse_search
from search.strategies.catalog import STRATEGIES, Catalog, catalog_of

BETWEEN_SETTINGS = re.compile(r",(?![^\[]*\])")
"""A comma outside of a list."""


class SearchFieldError(ValueError):
    """There is no such strategy, or it does not take these settings."""


def search_field(strategy: str, n: int) -> dict[str, object]:
    """The field for a strategy as typed. ``strategy`` is a name, which gets ``n`` if it takes one; an alias such as
    ``beam-64``, whose own number counts; or the import path of a strategy of one's own, ``package.module:Class``.
    Settings may follow: ``dvts:m=8,budget.tokens=1000``. They are checked here, so that nothing wrong is sent a
    thousand times.

    Raises:
        SearchFieldError: names what is wrong and what there is.
    """
    name, settings, catalog = _parts(strategy)
    given: dict[str, object] = parse_alias(name, catalog) or {"strategy": name}
    for setting in BETWEEN_SETTINGS.split(settings) if settings else ():
        _put(given, setting)
    known = catalog.get(str(given["strategy"]))
    if known is not None and "n" in known.model_fields:
        given.setdefault("n", n)
    try:
        parse_search(given, catalog)
    except ValidationError as error:
        first = error.errors()[0]
        index = ".".join(map(str, first["loc"]))
        about = f"{strategy}: {index}" if settings else strategy
        raise SearchFieldError(f"{about}: {first['msg']}") from error
    return given


def catalog_for(strategy: str) -> Catalog:
    """The built-in strategies, and the one whose import path ``strategy`` is, as for `search_field`.

    Raises:
        SearchFieldError: the path cannot be imported, or is no strategy.
    """
    return _parts(strategy)[2]


def _parts(strategy: str) -> tuple[str, str, Catalog]:
    """The strategy's name, its settings, and the catalog that has it."""
    name, _, settings = strategy.partition(":")
    class_name, _, further = settings.partition(":")
    if parse_alias(name) is not None or not class_name.isidentifier():
        return name, settings, STRATEGIES
    try:
        catalog = catalog_of((f"{name}:{class_name}",))
    except ValueError as error:
        raise SearchFieldError(str(error)) from error
    return next(known for known in catalog if known not in STRATEGIES), further, catalog


def _put(given: dict[str, object], setting: str) -> None:
    """Adds one ``key=value``; the value is parsed as JSON, else taken as text."""
    key, equals, text = setting.partition("=")
    if not (key and equals and text):
        raise SearchFieldError(f"{setting!r} is not a setting: write key=value")
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
