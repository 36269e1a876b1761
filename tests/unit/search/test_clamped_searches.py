"""Searches over the queue and ledger of a replica that makes branches wait, or gives them back: every search ends, and
one that is alone always makes progress."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import PROMPT, Bench, FakeGenerator, Turns
from search_settings import SEARCHES

from deployments.engines.grants import grant_order
from deployments.engines.request_queue import Ending, EngineRequest, RequestQueue
from kvstore.memory.clamp import KVClamp
from kvstore.memory.ledger import KVLedger
from search.ports import Child, ChildGroup, ExpandRequest
from search.snapshot import replay_of, tree_as_json

BLOCK = 4
MAX_TOKENS = 40
"""Most tokens of a path, and of a whole solution: a path of this length always fits into the smallest memory."""


class ClampedGenerator(FakeGenerator):
    """A replica's queue with little memory, as with ``clamp: shrink`` or ``clamp: wait``."""

    def __init__(self, queue: RequestQueue, order: int, shrinks: bool = True) -> None:
        super().__init__(order, Turns(random.Random(order)))
        self.queue = queue
        self._shrinks = shrinks

    async def expand(self, request: ExpandRequest) -> AsyncIterator[ChildGroup]:
        self.requests.append(request)
        assert self.queue.clamp is not None
        alive: list[EngineRequest] = []
        given_back: list[Child] = []
        short_of_memory: set[int] = set()
        try:
            asked = [len(item.branches) for item in request.expansions]
            least = [item.least for item in request.expansions] if self._shrinks else asked
            for number, index in grant_order(asked, least):
                item, branch = request.expansions[number], request.expansions[number].branches[index]
                queued = EngineRequest(
                    request.search_id,
                    (item, branch),
                    item.prefix,
                    None,
                    request.search_id,
                    request.lane,
                    alive.remove,
                    growth=branch.max_tokens,
                )
                optional = index >= least[number]
                if number not in short_of_memory and self.queue.submit(
                    queued, reserve=self._shrinks, optional=optional
                ):
                    alive.append(queued)
                else:
                    short_of_memory.add(number)
                    given_back.append(Child(item.parent, branch.index, (), 0))
            if given_back:
                yield ChildGroup(tuple(given_back))
            while alive:
                await self._turns.take()
                while self.queue.start_next() is not None:
                    pass
                ready = [queued for queued in alive if queued.started]
                if not ready:
                    await asyncio.sleep(0)
                    continue
                queued = self._rng.choice(ready)
                child = self._write(request, *queued.label)._replace(waited=queued.waited)
                self.queue.end(queued, Ending.FINISHED)
                yield ChildGroup((child,))
        finally:
            for queued in tuple(alive):
                self.queue.end(queued, Ending.ABORTED)


def little_memory(blocks: int) -> RequestQueue:
    return RequestQueue(16, KVClamp(KVLedger(blocks, BLOCK)))


@settings(max_examples=50, deadline=None)
@given(
    searches=st.lists(SEARCHES, min_size=1, max_size=4),
    capacity=st.integers(-(-(len(PROMPT) + MAX_TOKENS + 1) // BLOCK), 40),
    order=st.integers(0, 1 << 20),
)
def test_every_search_ends_and_no_block_stays_promised(
    searches: list[dict[str, Any]], capacity: int, order: int
) -> None:
    async def main() -> None:
        queue = little_memory(capacity)
        benches = [Bench(order + number) for number in range(len(searches))]
        for bench in benches:
            bench.generator = ClampedGenerator(queue, order)
        limits = {"max_path_tokens": MAX_TOKENS, "max_step_tokens": 9}
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(
                *(
                    bench.search(wanted | limits, search_id=f"search {number}")
                    for number, (bench, wanted) in enumerate(zip(benches, searches, strict=True))
                )
            )
        assert queue.check_integrity() == []
        for bench, wanted, outcome in zip(benches, searches, outcomes, strict=True):
            bench.check_idle()
            assert outcome.stop_reason == "finished"
            again = await Bench(order + 9).search(wanted | limits, tree=replay_of(outcome.tree))
            assert tree_as_json(again.tree) == tree_as_json(outcome.tree)

    asyncio.run(main())


@settings(max_examples=50, deadline=None)
@given(
    searches=st.lists(SEARCHES, min_size=1, max_size=4),
    capacity=st.integers(-(-(len(PROMPT) + MAX_TOKENS + 1) // BLOCK), 40),
    order=st.integers(0, 1 << 20),
    leaving=st.dictionaries(st.integers(0, 3), st.integers(0, 60), max_size=3),
)
def test_with_wait_trees_equal_those_with_ample_memory(
    searches: list[dict[str, Any]], capacity: int, order: int, leaving: dict[int, int]
) -> None:
    """``leaving``: searches that are cancelled, each with the turn of the event loop at which it is."""

    async def main() -> None:
        queue = little_memory(capacity)
        limits = {"max_path_tokens": MAX_TOKENS, "max_step_tokens": 9}
        benches = [Bench(order + number) for number in range(len(searches))]
        tasks = []
        for number, (bench, wanted) in enumerate(zip(benches, searches, strict=True)):
            bench.generator = ClampedGenerator(queue, order, shrinks=False)
            tasks.append(asyncio.create_task(bench.search(wanted | limits, search_id=f"search {number}")))
        async with asyncio.timeout(60):
            for turn in range(61):
                for number, task in enumerate(tasks):
                    if leaving.get(number) == turn:
                        task.cancel()
                await asyncio.sleep(0)
            await asyncio.gather(*tasks, return_exceptions=True)
        assert queue.check_integrity() == []
        for number, (bench, wanted, task) in enumerate(zip(benches, searches, tasks, strict=True)):
            bench.check_idle()
            if task.cancelled():
                assert number in leaving
                continue
            outcome = task.result()
            assert outcome.stop_reason == "finished"
            assert outcome.tree.given_back == 0
            assert tree_as_json((await Bench(order + 9).search(wanted | limits)).tree) == tree_as_json(outcome.tree)

    asyncio.run(main())


def test_wide_searches_in_little_memory_get_fewer_branches_and_some_wait() -> None:
    async def main() -> None:
        queue = little_memory(24)
        benches = [Bench(number) for number in range(3)]
        for bench in benches:
            bench.generator = ClampedGenerator(queue, 1)
        wanted = {"strategy": "beam_search", "n": 16, "m": 4, "max_path_tokens": MAX_TOKENS, "max_step_tokens": 9}
        outcomes = await asyncio.gather(
            *(bench.search(wanted, search_id=f"search {number}") for number, bench in enumerate(benches))
        )
        assert all(outcome.tree.given_back > 0 for outcome in outcomes)
        assert queue.waited > 0

    asyncio.run(main())
