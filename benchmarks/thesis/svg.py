"""Line charts as SVG: the locked requirements have no plotting library."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 36, 84
COLORS = ("#1f6fb4", "#d1570f", "#2a8a3c", "#8a4fb0", "#7a7a7a")
TICKS = 5

Line = Sequence[tuple[float, float]]


class Axis(NamedTuple):
    label: str
    low: float
    high: float
    doubles: bool = False
    """Whether equal distances are equal factors."""

    def position(self, value: float) -> float:
        """0 at ``low``, 1 at ``high``."""
        low, high, value = map(math.log2, (self.low, self.high, value)) if self.doubles else (*self[1:3], value)
        return (value - low) / (high - low) if high > low else 0.5


def line_chart(title: str, x_label: str, y_label: str, lines: Mapping[str, Line], *, doubles: bool = False) -> str:
    """A chart of named lines over a common x axis. The y axis begins at 0.

    Args:
        doubles: whether the x axis is logarithmic; its ticks are then the values that occur.
    """
    xs = sorted({x for line in lines.values() for x, _ in line})
    x_axis = Axis(x_label, xs[0], xs[-1], doubles)
    y_axis = Axis(y_label, 0.0, _rounded_up(max(y for line in lines.values() for _, y in line)))
    x_ticks = xs if len(xs) <= 2 * TICKS else [xs[0] + (xs[-1] - xs[0]) * part / TICKS for part in range(TICKS + 1)]
    y_ticks = [y_axis.high * part / TICKS for part in range(TICKS + 1)]

    def at(x: float, y: float) -> tuple[float, float]:
        across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + across * x_axis.position(x), HEIGHT - BOTTOM - down * y_axis.position(y)

    parts = [_text(WIDTH / 2, 22, title, size=15), _text(WIDTH / 2, HEIGHT - BOTTOM + 38, x_label)]
    parts.append(_text(16, (TOP + HEIGHT - BOTTOM) / 2, y_label, turned=True))
    for tick in y_ticks:
        _, y = at(x_axis.low, tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{tick:g}", anchor="end"))
    parts += [_text(at(tick, 0)[0], HEIGHT - BOTTOM + 18, f"{tick:.4g}") for tick in x_ticks]
    for number, (name, line) in enumerate(lines.items()):
        color = COLORS[number % len(COLORS)]
        points = [at(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        if len(points) <= 4 * TICKS:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points]
        if not name:
            continue
        left = LEFT + number * (WIDTH - LEFT - RIGHT) / len(lines)
        parts.append(f'<rect x="{left:.0f}" y="{HEIGHT - 28}" width="14" height="4" fill="{color}"/>')
        parts.append(_text(left + 20, HEIGHT - 22, name, anchor="start"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, size: int = 12, anchor: str = "middle", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'


def _rounded_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 and 10 times a power of ten; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= value * (1 - 1e-9))
