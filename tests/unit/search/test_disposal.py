"""Trees of finished searches are freed without the garbage collector, a few nodes at a time."""

import asyncio
import gc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from search_fakes import Bench, broken

from search.errors import GeneratorError, ScorerError
from search.run.disposal import NODES_PER_TURN, Disposal
from search.run.environment import Fallback
from search.strategies.catalog import STRATEGIES
from search.tree import Node, SearchTree, Step, StepEnd


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # existing objects, which `nodes_alive` would otherwise scan each time
    gc.disable()
    yield
    gc.enable()


def nodes_alive() -> int:
    """Number of nodes that were created since the test began."""
    # Not isinstance: it would ask objects of other libraries for their class, and some warn then.
    return sum(type(each) is Node for each in gc.get_objects())


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def search(settings: dict[str, Any], disposal: Disposal, **options: Any) -> None:
    bench = Bench()
    bench.scorer.spoil = options.pop("spoil", bench.scorer.spoil)
    bench.generator.fail_after = options.pop("fail_after", None)
    bench.tree = SearchTree()  # type: ignore[assignment]
    disposal.watch(bench.tree)
    outcome = await bench.search(settings, **options)
    assert len(outcome.tree) > 8


@pytest.mark.parametrize("strategy", sorted({*STRATEGIES} - {"greedy"}))
@pytest.mark.parametrize("merge_siblings", [True, False])
async def test_a_finished_search_leaves_nothing_to_the_garbage_collector(
    strategy: str, merge_siblings: bool, no_collector: None
) -> None:
    before = nodes_alive()
    await search({"strategy": strategy, "merge_siblings": merge_siblings}, Disposal())
    await turns()
    assert nodes_alive() == before


async def test_a_failed_search_leaves_nothing_to_the_garbage_collector(no_collector: None) -> None:
    before = nodes_alive()
    with pytest.raises(ScorerError):
        await search({"strategy": "beam_search"}, Disposal(), fallback=Fallback.FAIL, spoil=broken)
    with pytest.raises(GeneratorError):
        await search({"strategy": "beam_search"}, Disposal(), fail_after=0)
    await turns()
    assert nodes_alive() == before


async def test_a_large_tree_is_freed_a_few_nodes_at_a_time(no_collector: None) -> None:
    before = nodes_alive()
    tree = SearchTree()
    disposal = Disposal()
    disposal.watch(tree)
    for parent in (tree.root, *tree.request(tree.root, 30)):
        for node in tree.request(parent, 30) if parent is not tree.root else ():
            tree.write(node, Step((1,), "text", StepEnd.DELIMITER))
        if parent is not tree.root:
            continue
        for child in parent.children.values():
            tree.write(child, Step((1,), f"{child.id}", StepEnd.DELIMITER))
            tree.complete(child, 0.5)
    kept = tree[3, 3]
    assert nodes_alive() - before == 1 + 30 + 900
    del tree, parent, node, child
    alive = [nodes_alive()]
    for _ in range(100):
        await asyncio.sleep(0)
        alive.append(nodes_alive())
    assert alive[-1] - before == 1  # only `kept`, which has lost its tree
    assert kept.parent is None
    assert max(a - b for a, b in pairwise(alive)) <= 2 * NODES_PER_TURN


def test_a_tree_that_outlives_its_event_loop_is_freed_too() -> None:
    async def watched() -> SearchTree:
        tree = SearchTree()
        Disposal().watch(tree)
        return tree

    del (tree := [asyncio.run(watched())])[0]
    assert tree == []
