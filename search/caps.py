"""A mark on the settings that decide what a search may cost, for whoever runs searches that others ask for.

The mark names a cap and says nothing of how high it is: ``n: Width`` is a setting that the cap ``n`` bounds. Who lets
others choose settings finds all that are marked, in a strategy that was written yesterday too, and bounds them.
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
    """The mark. None: no cap is needed, since what the setting counts is bounded by others that are marked."""

    name: CapName | None


Width = Annotated[int, Field(ge=1, le=MAX_SAMPLES), Cap("n")]
"""How many steps, solutions or paths are written at a time."""
Depth = Annotated[int, Field(ge=1, le=MAX_DEPTH), Cap("depth")]
"""How many steps a path may have."""
Uncapped = Annotated[int, Cap(None)]
"""Any other count."""


class CappedSetting(NamedTuple):
    """A marked setting as it stands in some settings."""

    path: str
    """Dotted, from the settings that were looked into."""
    cap: CapName
    value: float | None
    """None: not limited."""


def capped_settings(settings: BaseModel, within: str = "") -> Iterator[CappedSetting]:
    """The settings with a cap, those of models among them included."""
    for name, field in type(settings).model_fields.items():
        value: Any = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from capped_settings(value, f"{within}{name}.")
        for mark in _marks(field):
            if mark.name is not None:
                yield CappedSetting(f"{within}{name}", mark.name, value)


def check_marks(model: type[BaseModel]) -> None:
    """
    Raises:
        TypeError: an integer setting has no mark, so that nobody has decided what bounds it.
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
    """An annotation and all that it is made of: ``Annotated[int, mark] | None`` has ``int`` and the mark in it."""
    return [annotation, *(part for argument in get_args(annotation) for part in _parts(argument))]
