"""Simulated replicas whose engines cost nothing, like the fakes that `calls` puts behind a real controller."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from benchmarks.cluster_sim.calls import PAUSE_S
from benchmarks.cluster_sim.costs import CallCosts
from benchmarks.cluster_sim.processors import Processor, Program
from benchmarks.quick_ports import OwnTime, QuickGenerator, QuickScorer
from search.ports import ChildGroup, ExpandRequest, ScoreRequest


class QuickGeneratorReplica:
    """Replies as fast as its process handles calls, ``group`` children at a time; see `calls.FakeGenerator`."""

    pressure = 0.0

    def __init__(self, processor: Processor, calls: CallCosts, repeated: float, group: int) -> None:
        self.ongoing = 0
        self._program = Program(processor)
        self._calls = calls.generator
        self._group = group
        self._quick = QuickGenerator(OwnTime(), repeated, 8)

    async def expand(self, request: ExpandRequest) -> AsyncGenerator[ChildGroup, None]:
        self.ongoing += 1
        try:
            await self._program.work(self._calls["call"])
            async for written in self._quick.expand(request):
                for start in range(0, len(written.children), self._group):
                    if start:
                        await asyncio.sleep(PAUSE_S)
                    group = written.children[start : start + self._group]
                    await self._program.work(self._calls["group"] + self._calls["child"] * len(group))
                    yield ChildGroup(group)
        finally:
            self.ongoing -= 1


class QuickScorerReplica:
    pressure = 0.0

    def __init__(self, processor: Processor, calls: CallCosts) -> None:
        self.ongoing = 0
        self._program = Program(processor)
        self._calls = calls.prm
        self._quick = QuickScorer(OwnTime())

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        self.ongoing += 1
        try:
            await self._program.work(self._calls["call"] + self._calls["item"] * len(request.items))
            return await self._quick.score(request)
        finally:
            self.ongoing -= 1
