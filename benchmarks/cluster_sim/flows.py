"""Searches without trees: each replays the rounds of a recorded search. A round is a number of branches, then of items.

A generator is not simulated step by step: all of its branches progress at the speed of a step of that batch size. The
controller's cost of a search is the mean over searches with trees. Slots and autoscaling are the real ones.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from benchmarks.cluster_sim.cluster import ANYBODY, AtHome, ClusterSize, ControllerSize, Pool, PowerOfTwoChoices
from benchmarks.cluster_sim.costs import EngineCosts
from benchmarks.cluster_sim.processors import OwnCores, ProcessorSharing, Program, settle
from benchmarks.cluster_sim.workload import Problem
from deployments.service.slots import NoSlot, Slots


class Round(NamedTuple):
    """One level of a search."""

    branches: int
    tokens: int
    """Tokens of all branches."""
    longest: int
    """Tokens of the longest branch."""
    items: int
    """Texts to score."""


def rounds_of(problem: Problem) -> tuple[Round, ...]:
    """Rounds of a recorded search, one per level."""
    rounds = []
    for level in problem.levels:
        written = [step for family in level for step in family]
        texts = sum(len({step.text for step in family}) for family in level)
        tokens = [step.tokens for step in written]
        rounds.append(Round(len(written), sum(tokens), max(tokens), texts))
    return tuple(rounds)


class Means(NamedTuple):
    """Mean costs of searches with trees."""

    controller_s: float
    """CPU seconds of a controller for each search."""
    token_s: float
    """CPU seconds of a generator's engine per token, beyond its decode steps: for requests that join the batch, and for
    the prefill of uncached tokens."""
    item_s: float
    """The same for a reward model's engine, per item."""


class FlowGenerator:
    """A generator replica; its branches share the speed of a step."""

    def __init__(self, costs: EngineCosts, means: Means) -> None:
        self._costs = costs
        self._means = means
        self._steps = ProcessorSharing(self._speed)
        self.ongoing = 0

    @property
    def pressure(self) -> float:
        return self._steps.load / self._costs.max_num_seqs

    async def write(self, wanted: Round) -> None:
        """Waits until the longest branch is written. The round's weight is its mean number of active branches."""
        done = asyncio.get_running_loop().create_future()
        self.ongoing += 1
        self._steps.add(wanted.longest, partial(settle, done), wanted.tokens / wanted.longest)
        try:
            await done
        finally:
            self.ongoing -= 1

    def _speed(self, branches: float) -> float:
        """Steps per second of each branch."""
        batch = min(branches, self._costs.max_num_seqs)
        return batch / branches / (self._costs.engine.step(max(1, round(batch))) + self._means.token_s * batch)


class FlowScorer:
    """A reward model replica: scores all waiting items, up to a batch, in one pass."""

    def __init__(self, costs: EngineCosts, means: Means) -> None:
        self._costs = costs
        self._means = means
        self._program = Program(OwnCores())
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._items = 0
        self._busy = False
        self.ongoing = 0

    @property
    def pressure(self) -> float:
        return self._items / self._costs.max_num_seqs

    async def score(self, items: int) -> None:
        self.ongoing += 1
        self._items += items
        done = asyncio.get_running_loop().create_future()
        self._queue.append((items, done))
        if not self._busy:
            self._next()
        try:
            await done
        finally:
            self.ongoing -= 1
            self._items -= items

    def _next(self) -> None:
        batch: list[asyncio.Future[None]] = []
        items = 0
        while self._queue and (not batch or items + self._queue[0][0] <= self._costs.max_num_seqs):
            more, done = self._queue.popleft()
            items += more
            batch.append(done)
        self._busy = bool(batch)
        if batch:
            passes = -(-items // self._costs.max_num_seqs)
            seconds = passes * self._costs.engine.step(min(items, self._costs.max_num_seqs))
            self._program.post(seconds + items * self._means.item_s, lambda: self._passed(batch))

    def _passed(self, batch: Sequence[asyncio.Future[None]]) -> None:
        for done in batch:
            settle(done)
        self._next()


class FlowController:
    """A controller replica without trees."""

    def __init__(
        self, size: ControllerSize, means: Means, generators: Pool[FlowGenerator], scorers: Pool[FlowScorer]
    ) -> None:
        self.program = Program(OwnCores())
        self.slots = Slots(size.searches)
        self.ongoing = 0
        self._means = means
        self._generators = generators.handle()
        self._scorers = scorers.handle()

    @property
    def pressure(self) -> float:
        return (self.slots.held + self.slots.waiting) / self.slots.count

    async def search(self, name: str, rounds: Sequence[Round]) -> None:
        """Replays a search. Raises NoSlot if all slots are taken."""
        self.ongoing += 1
        try:
            async with self.slots.hold(ANYBODY):
                share = self._means.controller_s / (2 * len(rounds))
                for wanted in rounds:
                    await self.program.work(share)
                    with self._generators.call(name) as generator:
                        await generator.write(wanted)
                    await self.program.work(share)
                    with self._scorers.call(name) as scorer:
                        await scorer.score(wanted.items)
        finally:
            self.ongoing -= 1


class Flows:
    """The whole cluster, without trees."""

    def __init__(
        self,
        size: ClusterSize,
        costs: tuple[EngineCosts, EngineCosts],
        means: Means,
        seed: int,
    ) -> None:
        """``costs``: of the generators, then of the reward models."""
        generator, scorer = costs
        self.generators = Pool(lambda: FlowGenerator(generator, means), size.generators, AtHome, seed)
        self.scorers = Pool(lambda: FlowScorer(scorer, means), size.scorers, AtHome, seed + 1)
        self.controllers = Pool(
            lambda: FlowController(size.controller, means, self.generators, self.scorers),
            size.controllers,
            PowerOfTwoChoices,
            seed + 2,
        )
        self._proxies = self.controllers.handle()
        self.refused = 0

    async def solve(self, name: str, rounds: Sequence[Round]) -> float:
        """Sends one search, from a client that retries when it is refused; returns the seconds."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                with self._proxies.call(name) as controller:
                    await controller.search(name, rounds)
                return loop.time() - began
            except NoSlot as refusal:
                self.refused += 1
                await asyncio.sleep(refusal.retry_after_s)
