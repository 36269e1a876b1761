"""Marks the settings that determine the cost of a search, so that an operator can cap what clients ask for.

A mark names a cap but not its value: ``n: Width`` is a setting that the cap ``n`` bounds. A service finds all marked
settings with `capped_settings`, those of an operator's own strategy too, and bounds them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

MAX_SAMPLES = 256
MAX_DEPTH = 100

CapName = Literal["n", "depth", "step_tokens", "tokens", "nodes", "seconds"]


@dataclass(frozen=True, slots=True)
class Cap:
    """The mark. None: the setting needs no cap, because other marked settings bound its cost."""

    name: CapName | None


Width = Annotated[int, Field(ge=1, le=MAX_SAMPLES), Cap("n")]
"""Number of steps, solutions or paths written at a time."""
Depth = Annotated[int, Field(ge=1, le=MAX_DEPTH), Cap("depth")]
"""Maximum number of steps on a path."""
Uncapped = Annotated[int, Cap(None)]
"""Any other count; no cap bounds it."""


class CappedSetting(NamedTuple):
    """A marked setting and its value."""

    path: str
    """Dotted path, relative to the settings given to `capped_settings`."""
    cap: CapName
    value: float | None
    """The largest one of a list; None: not limited."""


def capped_settings(settings: BaseModel, within: str = "") -> Iterator[CappedSetting]:
    """Every setting with a cap, including those of nested models."""
    for name, field in type(settings).model_fields.items():
        value: Any = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from capped_settings(value, f"{within}{name}.")
        for mark in _marks(field):
            if isinstance(value, tuple):
                value = max(value, default=0)
            if mark.name is not None:
                yield CappedSetting(f"{within}{name}", mark.name, value)


def check_marks(model: type[BaseModel]) -> None:
    """Checks that every integer setting of ``model`` has a mark.

    Raises:
        TypeError: an integer setting has no mark, so its cost could be unbounded.
    """
    for name, field in model.model_fields.items():
        if int in _parts(field.annotation) and not any(_marks(field)):
            raise TypeError(
                f"{model.__name__}.{name} is an integer that no cap bounds: "
                "declare it as Width, Depth or Uncapped of search.caps"
            )


def _marks(field: FieldInfo) -> Iterator[Cap]:
    return (part for part in (*field.metadata, *_parts(field.annotation)) if isinstance(part, Cap))


def _parts(annotation: Any) -> list[Any]:
    """An annotation and all its parts: those of ``Annotated[int, mark] | None`` include ``int`` and the mark."""
    return [annotation, *(part for argument in get_args(annotation) for part in _parts(argument))]
