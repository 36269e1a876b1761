"""The claims of a run, and its figures."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.record import claim
from benchmarks.start.application import START_S, Start
from benchmarks.start.checkouts import SetUp
from benchmarks.start.conditions import NO_BYTECODE, QUIET, Condition
from benchmarks.start.processes import ProcessRow
from benchmarks.start.scaling import ScaledUp

FIRST, SECOND = "first", "second"
MAX_SECOND_S = 45.0
MAX_FIRST_S = 90.0
MAX_SET_UP_RATIO = 1.05
"""A set-up cannot be timed more precisely on a shared machine."""
MAX_SCALED_UP_S = 20.0
MAX_BYTECODE_RATIO = 1.1
"""Second start without bytecode over that with it."""


class MeasuredStart(NamedTuple):
    """A start and what it was measured under."""

    side: str
    condition: Condition
    number: str
    """``FIRST``: with an empty compile cache; ``SECOND``: with what the first one left."""
    start: Start

    @property
    def json(self) -> dict[str, Any]:
        return {"side": self.side, "condition": str(self.condition), "start": self.number, **self.start.json}


class Figures(NamedTuple):
    """All that a run measures."""

    set_ups: list[SetUp]
    starts: list[MeasuredStart]
    scaled_up: dict[str, ScaledUp]
    """By side."""

    @property
    def json(self) -> dict[str, Any]:
        return {
            "set_ups": [each.json for each in self.set_ups],
            "columns_of_processes": ProcessRow._fields,
            "starts": [each.json for each in self.starts],
            "scaled_up": [{"side": side, **each.json} for side, each in self.scaled_up.items()],
        }

    def claims(self) -> list[dict[str, Any]]:
        """The claims about the conditions that were measured."""
        second, first = self._start(QUIET, SECOND), self._start(QUIET, FIRST)
        set_up = _ratio(self._set_up("ours"), self._set_up("base"))
        scaled_up = self.scaled_up["ours"].first_step_s if "ours" in self.scaled_up else None
        claims = [
            _at_most(f"second start, {QUIET}, s", second, MAX_SECOND_S, f"> {START_S:g}"),
            _at_most(f"first start, {QUIET}, s", first, MAX_FIRST_S, f"> {START_S:g}"),
            _at_most("set-up, ours over base's", set_up, MAX_SET_UP_RATIO),
            _at_most("first step of a scaled-up replica, s", scaled_up, MAX_SCALED_UP_S),
        ]
        with_bytecode = Condition(writes_bytecode=True)
        if any(each.condition == with_bytecode for each in self.starts):
            ratio = _ratio(second, self._start(with_bytecode, SECOND))
            claims.append(_at_most(f"second start, {NO_BYTECODE}=1 over unset", ratio, MAX_BYTECODE_RATIO))
        return claims

    def _start(self, condition: Condition, number: str) -> float | None:
        return _only(
            each.start.seconds
            for each in self.starts
            if (each.side, each.condition, each.number) == ("ours", condition, number)
        )

    def _set_up(self, side: str) -> float | None:
        return _only(
            each.seconds for each in self.set_ups if each.side == side and each.writes_bytecode == QUIET.writes_bytecode
        )


def described(measured: Sequence[MeasuredStart]) -> list[str]:
    """A line for each start."""
    return [
        f"{each.side}, {each.condition}, {each.number} start: "
        f"{each.start.failure or f'{each.start.shown_seconds} s'}: {each.start.parts}"
        for each in measured
    ]


def _at_most(name: str, value: float | None, bound: float, missing: str = "not measured") -> dict[str, Any]:
    shown = missing if value is None else round(value, 3)
    return claim(name, shown, f"<= {bound:g}", value is not None and value <= bound)


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


def _only(values: Iterable[float | None]) -> float | None:
    return next(iter(values), None)
