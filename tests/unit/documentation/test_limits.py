"""The figures of docs/limits.md are those of the settings as shipped, and of the constants in the code."""

import re
from collections.abc import Iterator
from importlib import import_module
from math import isclose, prod
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from deployments.config import AppConfig, KeyLimits, LimitSettings, QueueSettings
from deployments.store import StoreSettings
from tests.unit.documentation.pages import ROOT, SPAN

PAGE = ROOT / "docs" / "limits.md"
CALLERS = ("no key", "key with limits", "key", "operator", "job")
UNITS = {"": 1, "s": 1, "days": 86_400, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
WITHOUT_A_FIGURE = ("none", "unlimited")
NUMBER = re.compile(r"([\d,.]+)(?: (\w+))?")


class Limit(NamedTuple):
    """One row of a table."""

    what: str
    bounds: dict[str, str]
    """By caller: a figure with its unit, the name of a key's limit, none or unlimited."""
    sources: tuple[str, ...]
    """Settings and constants whose product the figures are."""

    def __str__(self) -> str:
        return self.what

    @property
    def figures(self) -> list[float]:
        """All figures of the row, in seconds or bytes where they have a unit."""
        told = (bound for bound in self.bounds.values() if bound not in WITHOUT_A_FIGURE and "`" not in bound)
        return [figure_of(bound) for bound in told]


def figure_of(bound: str) -> float:
    """The number that a bound says; a bound of another form is a mistake on the page."""
    match = NUMBER.fullmatch(bound)
    assert match is not None, f"not a figure: {bound}"
    return float(match[1].replace(",", "")) * UNITS[match[2] or ""]


def limits() -> Iterator[Limit]:
    for line in PAGE.read_text().splitlines():
        if not line.startswith("| ") or line.startswith("| what |"):
            continue
        what, *bounds, source = (cell.strip() for cell in line.strip("|").split("|"))
        yield Limit(what, dict(zip(CALLERS, bounds, strict=True)), tuple(SPAN.findall(source)))


LIMITS = list(limits())


def value_of(source: str) -> Any:
    """Value of a setting as shipped, or of a constant."""
    first, *names = source.split(".")
    value: Any = AppConfig()
    if first in AppConfig.model_fields:
        for name in (first, *names):
            value = getattr(value, name)
        return value
    module, _, constant = source.rpartition(".")
    return getattr(import_module(module), constant)


def test_figures_are_those_of_the_code() -> None:
    assert [limit.what for limit in LIMITS if limit.figures and not limit.sources] == [], "a figure without a source"
    wrong = []
    for limit in LIMITS:
        if limit.sources:
            expected = prod(float(value_of(source)) for source in limit.sources)
            if not limit.figures or not all(isclose(figure, expected) for figure in limit.figures):
                wrong.append(f"{limit}: {limit.sources} give {expected:,}")
    assert wrong == []


def test_words_of_keys_are_their_limits() -> None:
    for limit in LIMITS:
        named = {caller: SPAN.findall(bound) for caller, bound in limit.bounds.items() if "`" in bound}
        assert set(named) <= {"key with limits"}, limit.what
        assert {name for names in named.values() for name in names} <= KeyLimits.model_fields.keys(), limit.what


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (LimitSettings, "controller.limits"),
        (QueueSettings, "controller.queue"),
        (StoreSettings, "controller.store"),
    ],
    ids=str,
)
def test_no_limit_is_missing(settings: type[BaseModel], path: str) -> None:
    told = {source for limit in LIMITS for source in limit.sources}
    wanted = {f"{path}.{name}" for name in settings.model_fields if name != "path"}
    assert wanted <= told


def test_all_limits_of_keys_are_told() -> None:
    told = {name for limit in LIMITS for bound in limit.bounds.values() for name in SPAN.findall(bound)}
    assert told == set(KeyLimits.model_fields)


@pytest.mark.parametrize("bound", ["64 kB", "many", "64 KiB of it", ""])
def test_a_bound_of_another_form_is_noticed(bound: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        figure_of(bound)
