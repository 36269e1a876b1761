"""The drawing shows where paths branch, fits the screen, and cannot control the terminal."""

import io

from rich.console import Console

from cluster.cli.growing_tree import GrowingTree
from cluster.client.replies import StepScored


def drawn(tree: GrowingTree, most_lines: int = 40) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(tree.draw(most_lines))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def step(*node: int, text: str = "", reward: float | None = 0.5, terminal: bool = False) -> StepScored:
    return StepScored(node=node, text=text or f"step {node}", reward=reward, terminal=terminal, tokens=1)


def test_steps_of_the_same_text_are_drawn_once_with_their_count() -> None:
    tree = GrowingTree("1 + 1?")
    for index in range(3):
        tree.add(step(index, text="1 + 1 = 2\n\n", reward=0.9))
    tree.add(step(2, 0, text="done", terminal=True))
    assert drawn(tree).count("1 + 1 = 2") == 1
    assert "×3" in drawn(tree)
    assert "●" in drawn(tree)


def test_steps_that_do_not_fit_are_counted() -> None:
    tree = GrowingTree("?")
    for index in range(100):
        tree.add(step(index, reward=index / 100))
    lines = drawn(tree, 10).splitlines()
    assert len(lines) <= 10
    assert "0.99" in lines[1]
    assert "… 94 more" in lines[-1]


def test_a_step_with_an_unknown_parent_hangs_below_its_nearest_ancestor() -> None:
    tree = GrowingTree("?")
    tree.add(step(0, text="known"))
    tree.add(step(0, 3, 1, text="orphan", reward=None))
    assert "orphan" in drawn(tree)
    assert "--" in drawn(tree)


def test_control_characters_do_not_reach_the_terminal() -> None:
    tree = GrowingTree("\x1b[2J?")
    tree.add(step(0, text="\x1b]0;title\x07 [red]markup[/red]"))
    assert "\x1b" not in drawn(tree)
    assert "[red]markup[/red]" in drawn(tree)
