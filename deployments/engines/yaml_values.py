"""What a value in YAML means for the setting that it is given to.

YAML 1.1, as Serve and Banyan read it, makes other types of some values than their writers mean: ``off`` is a boolean,
``4e9`` a text, and a section whose lines are all comments is null. The type of the setting tells what is meant.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from inspect import isclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

WORDS = {True: ("on", "yes", "true"), False: ("off", "no", "false")}
"""Words that YAML 1.1 reads as a boolean."""
EXPONENT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""Numbers that YAML 1.1 reads as a text, unless they have both a dot and a sign in the exponent."""
BOOLEANS = "on, yes, true, off, no and false are booleans in YAML: write a text in quotes"


@dataclass(frozen=True)
class Boolean:
    """A boolean given to a setting that has no use for one. No type takes it, where pydantic takes true for 1."""

    value: bool


def as_meant(annotation: Any, given: Any) -> Any:
    """Returns ``given`` as a setting with this type annotation means it.

    A boolean becomes the word of a ``Literal`` that YAML reads as one, such as ``off``, or a `Boolean` if the type has
    none. A number in exponent form that YAML reads as a text becomes a number if the type has numbers and no texts. A
    setting of a model that is null counts as not given, unless its type has None. All else is returned as it is, for
    pydantic to judge.
    """
    kinds = _kinds(annotation)
    if Any in kinds:
        return given
    if isinstance(given, bool):
        return _boolean(kinds, given)
    if isinstance(given, str):
        return _number(kinds, given)
    if isinstance(given, Mapping):
        return _mapping(kinds, given)
    if isinstance(given, list | tuple):
        return _items(kinds, given)
    return given


def with_advice(message: str, fault: str, given: Any) -> str:
    """Returns pydantic's message about a ``fault`` of this type, with what to write in place of ``given``
    where YAML is the reason."""
    advice = _advice(fault, given)
    return message if message.endswith(advice) else f"{message}; {advice}"


def _advice(fault: str, given: Any) -> str:
    if fault == "extra_forbidden":
        return ""
    if isinstance(given, bool | Boolean):
        return BOOLEANS
    if fault in {"string_type", "path_type"} and isinstance(given, int | float | date):
        return f'write it in quotes: "{given}"'
    if fault.startswith(("int_", "float_")) and isinstance(given, str) and EXPONENT.fullmatch(given):
        return "YAML reads an exponent only after a dot and with a sign: 4.0e+9"
    return ""


def _kinds(annotation: Any) -> list[Any]:
    """The alternatives that an annotation allows."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for each in get_args(annotation) for kind in _kinds(each)]
    return [annotation]


def _boolean(kinds: list[Any], given: bool) -> Any:
    if bool in kinds:
        return given
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind) if word in WORDS[given]]
    return words[0] if words else Boolean(given)


def _number(kinds: list[Any], given: str) -> Any:
    if str in kinds or not (int in kinds or float in kinds) or not EXPONENT.fullmatch(given):
        return given
    number = float(given)
    if not math.isfinite(number):
        return given
    return int(Decimal(given)) if number.is_integer() else number


def _mapping(kinds: list[Any], given: Mapping[Any, Any]) -> Any:
    models = [kind for kind in kinds if isclass(kind) and issubclass(kind, BaseModel)]
    if len(models) == 1:  # of several, the one that is chosen reads its own settings
        fields = models[0].model_fields
        types = {name: fields[name].annotation if name in fields else Any for name in given}
        return {
            name: as_meant(types[name], value)
            for name, value in given.items()
            if value is not None or _takes_none(types[name])
        }
    for kind in kinds:
        if get_origin(kind) is dict and get_args(kind):
            return {name: as_meant(get_args(kind)[1], value) for name, value in given.items()}
    return given


def _takes_none(annotation: Any) -> bool:
    kinds = _kinds(annotation)
    return NoneType in kinds or Any in kinds


def _items(kinds: list[Any], given: list[Any] | tuple[Any, ...]) -> Any:
    for kind in kinds:
        if get_origin(kind) in (list, tuple) and (types := [each for each in get_args(kind) if each is not Ellipsis]):
            return [as_meant(types[min(index, len(types) - 1)], each) for index, each in enumerate(given)]
    return given
