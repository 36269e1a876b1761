"""Reads a YAML file, and refuses what YAML itself takes without a word."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from cluster.launch.errors import LaunchError

MAX_BYTES = 1 << 20
VARIABLE = re.compile(r"\$\{\w+\}|^\$\w+$")
VERBATIM = frozenset({"runtime_env", "prompt", "system_prompt"})
"""Names below which such texts are no mistake: Ray expands variables in the first, prompts contain formulas."""
OCTAL = re.compile(r"[-+]?0[0-9_]+")
"""Numbers that begin with 0, which YAML 1.1 reads to the base 8."""


def read_yaml(path: Path) -> Any:
    """Returns the file's content.

    Raises:
        LaunchError: it cannot be read, is not YAML, gives a name twice, or has a variable as a value, or a number or
            date that does not look like one.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise LaunchError(f"{path} is longer than {MAX_BYTES:,} bytes")
        loader = yaml.SafeLoader(content.decode("utf-8"))
        try:
            root = loader.get_single_node()
            if root is None:
                return None
            if faults := [f"{path}: {fault}" for fault in _faults(root, (), set())]:
                raise LaunchError("\n".join(faults))
            return loader.construct_document(root)
        finally:
            loader.dispose()
    except OSError as error:
        raise LaunchError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise LaunchError(f"{path} is not YAML: {error}") from error


def _faults(node: yaml.Node, path: tuple[str, ...], seen: set[int]) -> Iterator[str]:
    """Yields a line for each duplicate name, for each variable, and for each text or number that YAML reads as another
    one: it would keep the last value, not expand the variable, and take 010 for 8. ``seen``: ids of the nodes checked
    so far; an alias repeats its node."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            place, line = (*path, str(key.value)), key.start_mark.line + 1
            if place[-1] in lines:
                yield f"{'.'.join(place)}: given twice, in line {lines[place[-1]]} and in line {line}"
            lines.setdefault(place[-1], line)
            yield from _faults(value, place, seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, each in enumerate(node.value):
            yield from _faults(each, (*path, str(index)), seen)
    elif VARIABLE.search(node.value) and not VERBATIM & {*path}:
        yield f"{'.'.join(path)}: {node.value}: variables are not expanded in this file; write the value itself"
    elif wanted := _misread(node):
        yield f"{'.'.join(path)}: {node.value}: {wanted}"


def _misread(node: yaml.Node) -> str | None:
    """What to write in place of a value that YAML 1.1 reads as something else than it looks like; None of any other."""
    kind = node.tag.rpartition(":")[2]
    if kind == "value":  # a lone =
        return "YAML does not read this as text; write it in quotes"
    if kind == "timestamp":
        return "YAML reads this as a date; write it in quotes"
    if kind in ("int", "float") and ":" in node.value:
        return "YAML reads this as a number of base 60; write one number, or a text in quotes"
    if kind == "int" and OCTAL.fullmatch(node.value):
        return "YAML reads this as a number of base 8; write it without the leading zero, or a text in quotes"
    return None
