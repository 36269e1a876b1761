"""KV counts of the ETS benchmark."""

import pytest

from benchmarks.ets_kv.arithmetic_reward import RIGHT, SILENT, WRONG, reward
from benchmarks.ets_kv.held import Round, rounds_of
from search.run.kv_usage import distinct_tokens
from search.tree import Node, SearchTree, Step, StepEnd


def write(tree: SearchTree, parent: Node, *steps: tuple[int, ...]) -> list[Node]:
    nodes = tree.request(parent, len(steps))
    for node, tokens in zip(nodes, steps, strict=True):
        tree.write(node, Step(tokens, str(tokens), StepEnd.DELIMITER))
        tree.complete(node, 0.5)
    return nodes


def test_a_round_counts_the_kv_of_its_paths() -> None:
    """Two samples have the same text and one has a common beginning; three steps are written below one of each."""
    tree = SearchTree()
    first, _, third = write(tree, tree.root, (1, 2, 3), (1, 2, 3), (1, 2, 4, 5))
    write(tree, first, (7, 8), (7, 9))
    write(tree, third, (7, 8))
    assert rounds_of(tree) == [
        Round(samples=3, texts=2, by_node=10, by_path=5, one_parent=5),
        # Five tokens of parents, and 7 8, 9 and 7 8. Below the shorter parent alone: its three tokens and these five.
        Round(samples=3, texts=3, by_node=13, by_path=10, one_parent=8),
    ]


def test_distinct_prefixes_are_counted_like_nodes_of_a_prefix_tree() -> None:
    assert distinct_tokens([]) == 0
    assert distinct_tokens([(1, 2, 3), (1, 2), (1, 2, 3), (2, 2), (1, 3)]) == 6


@pytest.mark.parametrize(
    ("steps", "worth"),
    [
        (["12 + 7 = 19"], RIGHT),
        (["12 + 7 = 18"], WRONG),
        (["3 * 4 = 12 and 12 / 8 = $1.50."], RIGHT),
        (["Let us think."], SILENT),
        (["1 / 0 = 5"], WRONG),
        (["12 + 7 = 19", "so 19 x 2 = 39"], (RIGHT + WRONG) / 2),
    ],
)
def test_the_reward_of_a_step_is_the_mean_over_its_sums(steps: list[str], worth: float) -> None:
    assert reward(steps) == pytest.approx(worth)
