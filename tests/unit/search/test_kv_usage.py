"""KV usage: prompt, paths and branches being written; shared prefixes count once; round by round."""

from typing import Any

import pytest
from search_fakes import PROMPT, search

from search.run.kv_usage import KVUsage
from search.run.report import SearchCost
from search.snapshot import tree_as_json
from search.tree import Node, SearchTree, Step, StepEnd


def write(tree: SearchTree, node: Node, tokens: int) -> None:
    tree.write(node, Step(tuple(range(tokens)), "text", StepEnd.DELIMITER))
    tree.complete(node, 0.5)


async def test_shared_prefixes_count_once_and_nodes_off_the_current_paths_do_not_count() -> None:
    tree = SearchTree(7)
    usage = KVUsage(tree, prompt_tokens=10)
    left, right = tree.request(tree.root, 2)
    await usage.round_begins()
    write(tree, left, 3)
    write(tree, right, 4)
    below = tree.request(left, 2)
    await usage.round_begins()
    assert (usage.by_node.peak, usage.by_node.sum) == (10 + 3 + 4, 17)
    for node in below:
        write(tree, node, 1)
    await usage.search_ends()
    assert (usage.by_node.peak, usage.by_node.sum) == (17, 17 + (10 + 3 + 1 + 1))
    await usage.search_ends()
    assert usage.by_node.sum == 32


async def test_branches_still_being_written_count_in_the_next_round_too() -> None:
    tree = SearchTree(7)
    usage = KVUsage(tree, prompt_tokens=10)
    slow, quick = tree.request(tree.root, 2)
    await usage.round_begins()
    write(tree, quick, 2)
    (below,) = tree.request(quick, 1)
    await usage.round_begins()
    write(tree, slow, 5)
    write(tree, below, 1)
    await usage.search_ends()
    # The first round is counted before `slow` has any tokens.
    assert usage.by_node.sum == (10 + 2) + (10 + 5 + 2 + 1)


@pytest.mark.parametrize("strategy", ["beam_search", "rebase", "ets", "dvts"])
def test_a_level_by_level_search_uses_the_kv_of_its_levels(strategy: str) -> None:
    outcome = search({"strategy": strategy, "n": 8, "kv_usage": True})[1]
    levels: dict[int, set[Any]] = {}
    for node in outcome.tree.nodes:
        levels.setdefault(node.depth, set()).update(node.path)
    held = [
        len(PROMPT) + sum(len(node.step.token_ids) for node in on_paths if node.step) for on_paths in levels.values()
    ]
    assert (outcome.cost.kv_node_tokens_peak, outcome.cost.kv_node_tokens_sum) == (max(held), sum(held))


def test_whole_solutions_count_whole_in_one_round() -> None:
    cost = search({"strategy": "best_of_n", "n": 5, "kv_usage": True})[1].cost
    assert cost.kv_node_tokens_peak == cost.kv_node_tokens_sum == len(PROMPT) + cost.generated_tokens


def test_kv_usage_is_reported_on_request_and_does_not_change_the_tree() -> None:
    settings = {"strategy": "beam_search", "n": 8}
    plain, asked = search(settings)[1], search(settings | {"kv_usage": True})[1]
    assert tree_as_json(plain.tree) == tree_as_json(asked.tree)
    figures = {name for name in SearchCost.model_fields if name.startswith("kv_")}
    assert asked.cost.model_dump().keys() - plain.cost.model_dump().keys() == figures
    assert [getattr(plain.cost, name) for name in figures] == [None] * 4


async def test_a_path_that_is_returned_to_counts_again() -> None:
    tree = SearchTree(7)
    usage = KVUsage(tree, prompt_tokens=10)
    left, right = tree.request(tree.root, 2)
    await usage.round_begins()
    write(tree, left, 3)
    write(tree, right, 4)
    for parent in (left, right, left):
        (below,) = tree.request(parent, 1)
        await usage.round_begins()
        write(tree, below, 1)
    await usage.search_ends()
    assert usage.by_node.sum == (10 + 3 + 4) + (10 + 3 + 1) + (10 + 4 + 1) + (10 + 3 + 1)
    # Both steps begin alike, and so do the two below the left one, but never on paths of the same round.
    assert usage.by_path.sum == (10 + 4) + (10 + 3 + 1) + (10 + 4 + 1) + (10 + 3 + 1)
