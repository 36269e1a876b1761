"""The end of a tree, without a pause for it.

Freeing tens of thousands of nodes in one go holds the event loop for as many microseconds; and nodes that know their
parents are left to the garbage collector, which looks at all trees that are growing too.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from search.tree import Node, SearchTree

NODES_PER_TURN = 128


class Disposal:
    """Frees the trees of finished searches, a few nodes at a time, with turns for others on the event loop between.

    Of one event loop. A tree is freed when nobody has it any more; who still has a node of it then, has that one alone.
    """

    def __init__(self) -> None:
        self._waiting: deque[Iterator[None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def watch(self, tree: SearchTree) -> Callable[[], object]:
        """Frees ``tree`` when its last user has dropped it. To be called on the event loop.

        Returns what frees it at once, whoever still has it.
        """
        loop = asyncio.get_running_loop()

        def dropped(parts: dict[str, Any]) -> None:
            # By whoever dropped it, in whatever thread: only the loop's own may touch what waits.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._take, dismantled(parts))

        free = weakref.finalize(tree, dropped, vars(tree))
        free.atexit = False
        return free

    async def finish(self) -> None:
        """Waits until all trees that were dropped are freed."""
        await asyncio.sleep(0)  # what was dropped just now has been announced, not taken
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
    """Frees what a tree was made of, a little at every step, so that nothing is left to the garbage collector."""
    by_id: dict[Any, Node] = parts.pop("_nodes")
    nodes: deque[Node] = deque()
    while by_id:
        for _ in range(min(NODES_PER_TURN, len(by_id))):
            nodes.appendleft(by_id.popitem()[1])
        yield
    # Whatever else there is only names nodes, which are still held here.
    found: dict[Any, Any] = parts.pop("found")
    while found:  # one at a time: each may tell of a whole level
        found.popitem()
        yield
    folds = [vars(fold) for fold, _ in parts.pop("_folds").values()]
    for container in (*_containers(parts), *(part for fold in folds for part in _containers(fold))):
        while container:
            for _ in range(min(NODES_PER_TURN, len(container))):
                container.popitem() if type(container) is dict else container.pop()
            yield
    # Parents go before their children, so each is the last to name what it is made of.
    while nodes:
        for _ in range(min(NODES_PER_TURN, len(nodes))):
            _cut_off(nodes.popleft())
        yield


def _containers(parts: dict[str, Any]) -> list[Any]:
    """Takes out what may be large."""
    return [parts.pop(name) for name in list(parts) if type(parts[name]) in (dict, list)]


def _cut_off(node: Node) -> None:
    """Has a node name no other."""
    node.children, node.lookaheads = {}, {}
    node.parent = node.repeats = node.continuations = node.statistics = None
    node.repeated_by = ()
