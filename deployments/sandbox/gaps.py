"""What the interpreter of the sandbox lacks of Python.

Wildcard imports are written out before a program runs. An error for lack of something else is told from one that the
program would have in Python, too.
"""

import ast
import builtins
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import FunctionType

from pydantic import TypeAdapter

from search.answers.checks import parsed_python

MODULES = (
    "bisect",
    "collections",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "typing",
)
"""Modules of Python's library whose names are known here. Importing them does nothing else."""
Names = Mapping[str, list[str]]
"""By module, the public names that the interpreter has."""

_NAMES = TypeAdapter(dict[str, list[str]])
_WILDCARD = re.compile(
    r"(?m)(?P<begin>^|;)(?P<space>[^\S\n]*)from[^\S\n]+(?P<module>\w+(?:\.\w+)*)[^\S\n]+import[^\S\n]*\*"
)
_ERROR = re.compile(
    r"(?P<own>NotImplementedError: The monty |RuntimeError: Internal error in monty: "
    r"|(?:NotImplementedError|TypeError): .*\bnot yet support)"
    r"|(?P<generator>TypeError: 'list' object is not an iterator)"
    r"|NameError: name '(?P<name>\w+)' is not defined"
    r"|ModuleNotFoundError: No module named '(?P<missing>\w+)"
    r"|ImportError: cannot import name '(?P<imported>\w+)' from '(?P<source>\w+)'"
    r"|AttributeError: module '(?P<module>\w+)' has no attribute '(?P<member>\w+)'"
    r"|AttributeError: (?:type object )?'(?P<type>\w+)' (?:object )?has no attribute '(?P<attribute>\w+)'"
)
_WITHOUT_CONSOLE = frozenset({"exit", "input", "quit"})
"""Names with which a program fails in Python too where nobody types."""


def probe() -> str:
    """A program that prints the `Names` of its interpreter, for `names_of`."""
    asked = {module: public_names(module) for module in MODULES}
    imports = "".join(
        f"try:\n    import {module}\n    found[{module!r}] = {module}\nexcept ImportError: pass\n" for module in MODULES
    )
    return (
        f"import json\nasked = {asked!r}\nfound = {{}}\n{imports}"
        "print(json.dumps({m: [name for name in asked[m] if hasattr(found[m], name)] for m in found}))\n"
    )


def names_of(printed: str) -> Names:
    """The names that a run of `probe` has printed."""
    return _NAMES.validate_json(printed)


@cache
def public_names(module: str) -> tuple[str, ...]:
    """What Python's ``from module import *`` binds; nothing for a module that is not in `MODULES`."""
    if module not in MODULES:
        return ()
    found = import_module(module)
    return tuple(sorted(getattr(found, "__all__", [name for name in vars(found) if not name.startswith("_")])))


def with_wildcards(program: str, names: Names) -> str:
    """``program`` with its wildcard imports, which the interpreter refuses, written out in their lines: those names
    that it has. Takes linear time, whatever the program is."""

    def written_out(found: re.Match[str]) -> str:
        module = found["module"]
        known = names.get(module, [])
        statement = f"from {module} import {', '.join(known)}" if known else f"import {module}"
        return f"{found['begin']}{found['space']}{statement}"

    return _WILDCARD.sub(written_out, program)


def is_gap(error: str, program: str) -> bool:
    """Whether Python itself would not have failed with this error of ``program``. Python has no packages beside its own
    library either."""
    found = _ERROR.match(error)
    if found is None:
        return False
    if name := found["name"]:
        imported = (each["module"] for each in _WILDCARD.finditer(program))
        return name not in _WITHOUT_CONSOLE and (
            hasattr(builtins, name) or any(name in public_names(module) for module in imported)
        )
    if module := found["missing"]:
        return module in sys.stdlib_module_names
    if module := found["source"] or found["module"]:
        return _has(module, found["imported"] or found["member"])
    if name := found["type"]:
        kind = FunctionType if name == "function" else getattr(builtins, name, None)
        return isinstance(kind, type) and hasattr(kind, found["attribute"])
    if found["generator"]:  # they are made at once, as lists
        return _has_generator(program)
    return True


def _has_generator(program: str) -> bool:
    try:
        return any(isinstance(each, ast.GeneratorExp) for each in ast.walk(parsed_python(program)))
    except ValueError:
        return False


def _has(module: str, name: str) -> bool:
    """Whether a module of Python has the name. Modules outside `MODULES` are not imported to look: any name counts."""
    if module in MODULES:
        return hasattr(import_module(module), name)
    return module in sys.stdlib_module_names
