"""Finds what ``$ref`` names in a JSON schema: by a JSON Pointer (RFC 6901), an ``$id`` or an ``$anchor``."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote, urljoin

Pointer = tuple[str | int, ...]
"""Keys and indices from the top of the schema."""
INDEX = re.compile("0|[1-9][0-9]{0,8}")
"""An index in a JSON Pointer. Longer ones are in no schema."""


def fragment_of(pointer: Pointer) -> str:
    """Returns the reference to a part of the schema by its pointer."""
    return "#" + "".join("/" + quote(str(part).replace("~", "~0").replace("/", "~1"), safe="~") for part in pointer)


class References:
    """The parts of one schema that a reference in it may name."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._base = str(root.get("$id", ""))
        self._ids: dict[str, Pointer] = {"": (), self._base: ()}
        for pointer, part in _objects(root):
            if isinstance(part.get("$id"), str):
                self._ids.setdefault(urljoin(self._base, part["$id"]), pointer)
            if isinstance(part.get("$anchor"), str):
                self._ids.setdefault(f"#{part['$anchor']}", pointer)

    def pointer(self, reference: str) -> Pointer | None:
        """Returns the pointer of what a reference names; None if there is nothing."""
        base, _, fragment = reference.partition("#")
        if fragment and not fragment.startswith("/"):
            return self._ids.get(f"#{fragment}")
        pointer = self._ids.get(urljoin(self._base, base) if base else "")
        if pointer is None or fragment in ("", "/"):
            return pointer
        for part in fragment[1:].split("/"):
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            held = self.at(pointer)
            key = int(name) if isinstance(held, list) and INDEX.fullmatch(name) else name
            if not (key in held if isinstance(held, dict) else isinstance(key, int) and key < len(held)):
                return None
            pointer = (*pointer, key)
        return pointer

    def at(self, pointer: Pointer) -> Any:
        """Returns the part of the schema at a pointer."""
        part: Any = self._root
        for key in pointer:
            part = part[key]
        return part


def _objects(root: dict[str, Any]) -> Iterator[tuple[Pointer, dict[str, Any]]]:
    stack: list[tuple[Pointer, Any]] = [((), root)]
    while stack:
        pointer, part = stack.pop()
        if isinstance(part, dict):
            yield pointer, part
            stack += [((*pointer, key), each) for key, each in part.items()]
        elif isinstance(part, list):
            stack += [((*pointer, index), each) for index, each in enumerate(part)]
