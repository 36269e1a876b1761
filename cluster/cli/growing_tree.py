"""Draws a growing search tree in a terminal.

Sibling steps with the same text are drawn once, with their count: a beam search writes the same step many times, and
a reader wants to see where the paths part.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.text import Text
from rich.tree import Tree

from cluster.client.printable import printable
from cluster.client.replies import NodeId, StepScored

GOOD, FAIR = 0.8, 0.5
MAX_STEP_CHARACTERS = 160


@dataclass(eq=False)
class DrawnStep:
    """All sibling steps with the same text."""

    text: str
    parent: "DrawnStep | None" = None
    count: int = 0
    best: float | None = None
    """The highest reward among them."""
    terminal: bool = False
    rank: float = 0.0
    """The highest reward at or below this step."""
    children: dict[str, "DrawnStep"] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    def record(self, reward: float | None, terminal: bool) -> None:
        """Counts one more step of this text."""
        self.count += 1
        self.terminal = self.terminal or terminal
        if reward is None:
            return
        self.best = reward if self.best is None else max(self.best, reward)
        step: DrawnStep | None = self
        while step is not None and step.rank < reward:
            step.rank = reward
            step = step.parent

    def walk(self) -> Iterator["DrawnStep"]:
        """Every step below this one, parents first, siblings by descending rank."""
        for child in sorted(self.children.values(), key=lambda child: -child.rank):
            yield child
            yield from child.walk()


class GrowingTree:
    """Collects scored steps and draws them."""

    def __init__(self, question: str) -> None:
        self._question = question
        self._root = DrawnStep("")
        self._drawn: dict[NodeId, DrawnStep] = {(): self._root}
        self._deepest = 0
        self._steps = 0
        self._tokens = 0
        self.answering = False
        """Whether the search has ended and the answer is being streamed."""

    def add(self, event: StepScored) -> None:
        """Puts a step below its parent, or below the nearest ancestor that is known."""
        known = next(event.node[:size] for size in reversed(range(len(event.node))) if event.node[:size] in self._drawn)
        parent = self._drawn[known]
        text = printable(event.text).strip()
        drawn = parent.children.setdefault(text, DrawnStep(text, parent))
        drawn.record(event.reward, event.terminal)
        self._drawn[event.node] = drawn
        self._deepest = max(self._deepest, drawn.depth)
        self._steps += 1
        self._tokens = max(self._tokens, event.tokens)

    @property
    def status(self) -> Text:
        """One line about the search's progress."""
        doing = "answering" if self.answering else "searching" if self._steps else "waiting for the first step"
        return Text(f"{doing} · {self._steps:,} steps scored · {self._tokens:,} tokens", style="dim")

    def draw(self, most_lines: int) -> Tree:
        """The tree in at most about ``most_lines`` lines; other steps are counted below their parent."""
        shown = self._shown(max(1, most_lines - 1))
        drawing = Tree(Text(shorten(printable(self._question)), style="bold", overflow="ellipsis", no_wrap=True))
        self._draw_below(self._root, drawing, shown)
        return drawing

    def _shown(self, most_lines: int) -> set[DrawnStep]:
        """The steps to draw: those with the highest rank. None ranks above its parent, so paths stay whole.
        A third of the lines is reserved for the counts of hidden steps."""
        ranked = sorted(self._root.walk(), key=lambda step: -step.rank)
        return set(ranked if len(ranked) <= most_lines else ranked[: max(1, most_lines * 2 // 3)])

    def _draw_below(self, step: DrawnStep, drawing: Tree, shown: set[DrawnStep]) -> None:
        children = sorted(step.children.values(), key=lambda child: -child.rank)
        for child in children:
            if child in shown:
                self._draw_below(child, drawing.add(self._line(child)), shown)
        if hidden := [child for child in children if child not in shown]:
            drawing.add(Text(f"… {sum(child.count for child in hidden)} more", style="dim"))

    def _line(self, step: DrawnStep) -> Text:
        # The client does not read which paths were given up. A leaf above the deepest level is drawn as given up.
        outgrown = not step.terminal and not step.children and step.depth < self._deepest
        line = Text(overflow="ellipsis", no_wrap=True)
        line.append(reward_text(step.best), style="dim" if outgrown else reward_style(step.best))
        line.append(f"  {shorten(step.text)}", style="dim strike" if outgrown else "")
        if step.count > 1:
            line.append(f"  ×{step.count}", style="dim")
        if step.terminal:
            line.append("  ●", style=reward_style(step.best))
        return line


def reward_text(reward: float | None) -> str:
    return " -- " if reward is None else f"{reward:.2f}"


def reward_style(reward: float | None) -> str:
    if reward is None:
        return "cyan"
    return "green" if reward >= GOOD else "yellow" if reward >= FAIR else "red"


def shorten(text: str) -> str:
    """One line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_STEP_CHARACTERS else f"{line[: MAX_STEP_CHARACTERS - 1]}…"
