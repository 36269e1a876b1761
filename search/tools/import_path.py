"""Objects named by an import path, ``package.module:attribute``: how a configuration names an operator's own code."""

import importlib
import re
from collections.abc import Callable
from typing import Any

_PATH = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<attribute>[A-Za-z_]\w*)")


def imported(path: str) -> Any:
    """What ``path`` names. It is imported here and now, so never pass what a request says.

    Raises:
        ValueError: it is no import path, or the import fails for whatever reason.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        raise ValueError(f"{path!r} is no import path: write package.module:attribute")
    try:
        return getattr(importlib.import_module(match["module"]), match["attribute"])
    except Exception as error:  # an operator's module may raise anything
        raise ValueError(f"{path!r} cannot be imported: {type(error).__name__}: {error}") from error


def imported_function(path: str) -> Callable[..., Any]:
    """The function that ``path`` names.

    Raises:
        ValueError: as `imported`, or it cannot be called.
    """
    found = imported(path)
    if not callable(found):
        raise ValueError(f"{path!r} is no function")
    function: Callable[..., Any] = found
    return function
