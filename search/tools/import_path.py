"""Imports objects by path, ``package.module:attribute``: a configuration refers to an operator's own code this way."""

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

_PATH = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<attribute>[A-Za-z_]\w*)")


def imported(path: str) -> Any:
    """Imports and returns the object at ``path``. Never call it with a path from a request: importing runs code.

    Raises:
        ValueError: ``path`` is not an import path, or the import fails for any reason.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        raise ValueError(f"{path!r} is not an import path: write package.module:attribute")
    try:
        return getattr(importlib.import_module(match["module"]), match["attribute"])
    except Exception as error:  # an operator's module may raise anything
        raise ValueError(f"{path!r} cannot be imported: {type(error).__name__}: {error}") from error


def imported_function(path: str) -> Callable[..., Any]:
    """Imports and returns the function at ``path``.

    Raises:
        ValueError: as `imported`, or the object is not callable.
    """
    found = imported(path)
    if not callable(found):
        raise ValueError(f"{path!r} is not a function")
    function: Callable[..., Any] = found
    return function


def imported_async_function(path: str) -> Callable[..., Any]:
    """Imports and returns the async function at ``path``, or an object whose call is one.

    Raises:
        ValueError: as `imported_function`, or the function is not async.
    """
    function = imported_function(path)
    if not is_async(function):
        raise ValueError(f"{path!r} is not an async function: write async def")
    return function


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of ``function`` gives an awaitable, as far as its definition tells."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
