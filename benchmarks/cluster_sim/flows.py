"""Searches without trees: each is the rounds of a recorded one, each round so many branches and then so many items.

A generator is not simulated step by step: all branches that it writes go on at the speed of a step of that many. What
a search costs its controller is the mean of searches with trees. Places and autoscaling stay the real ones.
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
from deployments.service.places import NoPlace, Places


class Round(NamedTuple):
    """One level of a search."""

    branches: int
    tokens: int
    """Of all of them."""
    longest: int
    """Tokens of the longest branch."""
    items: int
    """Texts to be scored."""


def rounds_of(problem: Problem) -> tuple[Round, ...]:
    """A recorded search, level by level."""
    rounds = []
    for level in problem.levels:
        written = [step for family in level for step in family]
        texts = sum(len({step.text for step in family}) for family in level)
        tokens = [step.tokens for step in written]
        rounds.append(Round(len(written), sum(tokens), max(tokens), texts))
    return tuple(rounds)


class Means(NamedTuple):
    """What searches with trees cost on average."""

    controller_s: float
    """CPU seconds of a controller for each search."""
    token_s: float
    """Of a generator's engine for each token, beside the steps in which it is written: taking up branches, and reading
    what no cache had of their paths."""
    item_s: float
    """The same of a reward model's engine for each item."""


class FlowGenerator:
    """A generator replica: its branches share the speed of a step."""

    def __init__(self, costs: EngineCosts, means: Means) -> None:
        self._costs = costs
        self._means = means
        self._steps = ProcessorSharing(self._speed)
        self.ongoing = 0

    @property
    def pressure(self) -> float:
        return self._steps.load / self._costs.max_num_seqs

    async def write(self, wanted: Round) -> None:
        """Until the longest branch is written; on average so many are at a time as fill the time."""
        done = asyncio.get_running_loop().create_future()
        self.ongoing += 1
        self._steps.add(wanted.longest, partial(settle, done), wanted.tokens / wanted.longest)
        try:
            await done
        finally:
            self.ongoing -= 1

    def _speed(self, branches: float) -> float:
        """Steps a second that each branch takes part in."""
        batch = min(branches, self._costs.max_num_seqs)
        return batch / branches / (self._costs.engine.step(max(1, round(batch))) + self._means.token_s * batch)


class FlowScorer:
    """A reward model replica: takes all that waits, up to a batch, in one pass."""

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
        self.places = Places(size.searches)
        self.ongoing = 0
        self._means = means
        self._generators = generators.handle()
        self._scorers = scorers.handle()

    @property
    def pressure(self) -> float:
        return (self.places.held + self.places.waiting) / self.places.count

    async def search(self, name: str, rounds: Sequence[Round]) -> None:
        """Raises NoPlace where all places are taken."""
        self.ongoing += 1
        try:
            async with self.places.hold(ANYBODY):
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
    """The cluster without trees."""

    def __init__(
        self,
        size: ClusterSize,
        costs: tuple[EngineCosts, EngineCosts],
        means: Means,
        seed: int,
    ) -> None:
        """``costs``: of generators and of reward models."""
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
        """One request of a client that comes again when it is refused; how long it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                with self._proxies.call(name) as controller:
                    await controller.search(name, rounds)
                return loop.time() - began
            except NoPlace as refusal:
                self.refused += 1
                await asyncio.sleep(refusal.retry_after_s)
