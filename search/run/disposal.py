"""Frees the trees of finished searches without blocking the event loop.

Freeing tens of thousands of nodes in one go blocks the loop for about a microsecond per node. Nodes and their parents
also form reference cycles, which only the garbage collector would free, and it scans all growing trees as well.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from search.tree import ContextNode, Node, SearchTree

NODES_PER_TURN = 128
"""Nodes freed before other tasks on the event loop get a turn."""


class Disposal:
    """Frees the trees of finished searches, a few nodes at a time, between other tasks of one event loop.

    A tree is freed when its last reference is dropped. A node of it that is still referenced then loses its links to
    all other nodes.
    """

    def __init__(self) -> None:
        self._waiting: deque[Iterator[None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def watch(self, tree: SearchTree) -> Callable[[], object]:
        """Frees ``tree`` when its last reference is dropped. Call it on the event loop.

        Returns a function that frees the tree at once, even if it is still referenced.
        """
        loop = asyncio.get_running_loop()

        def dropped(parts: dict[str, Any]) -> None:
            # May run in any thread, but only the loop's thread may touch the queue.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._take, dismantled(parts))

        free = weakref.finalize(tree, dropped, vars(tree))
        free.atexit = False
        return free

    async def finish(self) -> None:
        """Waits until all dropped trees are freed."""
        await asyncio.sleep(0)  # A tree dropped just now enters the queue in the loop's next iteration.
        if self._task is not None:
            await asyncio.wait({self._task})

    def _take(self, tree: Iterator[None]) -> None:
        self._waiting.append(tree)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                for _ in self._waiting.popleft():
                    await asyncio.sleep(0)
        finally:
            self._task = None


def dismantled(parts: dict[str, Any]) -> Iterator[None]:
    """Frees the attributes of a tree, a few nodes at every step, and leaves nothing to the garbage collector."""
    by_id: dict[Any, Node] = parts.pop("_nodes")
    nodes: deque[Node] = deque()
    while by_id:
        for _ in range(min(NODES_PER_TURN, len(by_id))):
            nodes.appendleft(by_id.popitem()[1])
        yield
    # All other attributes only refer to nodes, which ``nodes`` keeps alive until the end.
    cached: dict[Any, Any] = parts.pop("strategy_cache")
    while cached:  # One at a time: each entry may hold a whole level.
        cached.popitem()
        yield
    folds = [vars(fold) for fold, _ in parts.pop("_folds").values()]
    for container in (*_containers(parts), *(part for fold in folds for part in _containers(fold))):
        while container:
            for _ in range(min(NODES_PER_TURN, len(container))):
                container.popitem() if type(container) is dict else container.pop()
            yield
    # Parents before children. Freeing a node then frees only its own data, never a whole subtree.
    while nodes:
        for _ in range(min(NODES_PER_TURN, len(nodes))):
            _cut_off(nodes.popleft())
        yield


def _containers(parts: dict[str, Any]) -> list[Any]:
    """Removes and returns the dicts and lists, which may be large."""
    return [parts.pop(name) for name in list(parts) if type(parts[name]) in (dict, list)]


def _cut_off(node: Node) -> None:
    """Removes a node's references to all other nodes."""
    node.children, node.lookaheads = {}, {}
    node.parent = node.context = node.repeats = node.continuations = node.statistics = None
    node.repeated_by = ()
    if isinstance(node, ContextNode):
        node.reading = node.reading._replace(sources=())
