"""Plot of a reward model's check as SVG: reliability diagram and ROC curve."""

from collections.abc import Sequence
from html import escape

from cluster.evaluation.prm_check import PrmSummary

SIDE = 300
"""Pixels of a panel's side."""
MARGIN = 70
WIDTH, HEIGHT = 2 * SIDE + 3 * MARGIN, SIDE + 2 * MARGIN
COLOR, PALE, GREY = "#1f6fb4", "#cfe2f3", "#999"

Point = tuple[float, float]


def plot(summary: PrmSummary, title: str) -> str:
    """The diagram, with ``title`` above it; a panel without data stays empty.

    Left: the share of right steps in each bin of rewards, with the bin's share of all steps below it. Right: the ROC
    curve of the steps.
    """
    error, area = summary.calibration_error, summary.auc
    left = "reliability" if error is None else f"reliability, calibration error {error:.3f}"
    right = "ROC curve" if area is None else f"ROC curve, area {area:.3f}"
    parts = [
        _text(WIDTH / 2, 24, title, size=15),
        *_Panel(MARGIN, left, "reward", "share of right steps").reliability(summary),
        *_Panel(2 * MARGIN + SIDE, right, "share of wrong steps accepted", "share of right ones").roc(summary.roc),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *parts, "</svg>"]) + "\n"


class _Panel:
    """A square diagram whose axes both go from 0 to 1."""

    def __init__(self, left: float, title: str, x_label: str, y_label: str) -> None:
        self._left = left
        self._frame = [_text(left + SIDE / 2, MARGIN - 12, title, size=13)]
        for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
            x, y = self._at(tick, tick)
            self._frame += [
                _line((left, y), (left + SIDE, y), "#ddd"),
                _line((x, MARGIN), (x, MARGIN + SIDE), "#ddd"),
                _text(x, MARGIN + SIDE + 18, f"{tick:g}"),
                _text(left - 6, y + 4, f"{tick:g}", anchor="end"),
            ]
        self._frame.append(_line(self._at(0, 0), self._at(1, 1), GREY, dashed=True))
        self._frame.append(_text(left + SIDE / 2, MARGIN + SIDE + 38, x_label))
        self._frame.append(_text(left - 40, MARGIN + SIDE / 2, y_label, turned=True))

    def reliability(self, summary: PrmSummary) -> list[str]:
        """Bars for the share of all steps in each bin, and points for what is right among them."""
        steps = sum(each.steps for each in summary.bins)
        bars = [self._bar(each.low, each.high, each.steps / steps) for each in summary.bins]
        points = [(each.reward, each.right) for each in summary.bins]
        legend = _text(self._left + 8, MARGIN + 16, "bars: share of all steps", anchor="start", size=11)
        return [*bars, *self._frame, *self._curve(points), *map(self._point, points), legend]

    def roc(self, curve: Sequence[Point]) -> list[str]:
        return [*self._frame, *self._curve(curve)]

    def _at(self, x: float, y: float) -> Point:
        return self._left + SIDE * x, MARGIN + SIDE * (1 - y)

    def _bar(self, low: float, high: float, share: float) -> str:
        x, y = self._at(low, share)
        width, height = SIDE * (high - low), SIDE * share
        return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{PALE}" stroke="white"/>'

    def _curve(self, points: Sequence[Point]) -> list[str]:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self._at(*point) for point in points))
        return [f'<polyline points="{path}" fill="none" stroke="{COLOR}" stroke-width="2"/>'] if points else []

    def _point(self, point: Point) -> str:
        x, y = self._at(*point)
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOR}"/>'


def _line(begin: Point, end: Point, color: str, *, dashed: bool = False) -> str:
    (x1, y1), (x2, y2) = begin, end
    dashes = ' stroke-dasharray="4 4"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{dashes}/>'


def _text(x: float, y: float, text: str, size: int = 12, anchor: str = "middle", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'
