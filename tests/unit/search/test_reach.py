"""Gates that know nothing of each other share what the generators can write."""

import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cluster_sim.virtual_time import run
from search.gate import Gate, Slot
from search.ports import Headroom, Lane
from search.reach import AHEAD, FEWEST, FEWEST_EACH, Reach, shared

BATCH = 64


def told(branches: int, replica: str = "one", gates: int = 1, of_others: int = 0) -> Headroom:
    return Headroom(10, 20, 0, 0, branches, replica, gates, of_others)


class Replica:
    """Writes `BATCH` branches at a time, first come, first served, each in a second or so."""

    def __init__(self, name: str) -> None:
        self._luck = random.Random(name)
        self._name = name
        self._batch = asyncio.Semaphore(BATCH)
        self._calls: dict[Slot, tuple[str, int]] = {}

    @property
    def branches(self) -> int:
        return sum(branches for _, branches in self._calls.values())

    async def write(self, gate: Gate, slot: Slot) -> None:
        """All branches of a slot, given back one by one; tells with each."""

        async def branch() -> None:
            async with self._batch:
                await asyncio.sleep(self._luck.uniform(0.5, 1.5))
            self._calls[slot] = gate.name, self._calls[slot][1] - 1
            gate.saw(shared(told(BATCH, self._name), gate.name, self._calls.values()))
            slot.release()

        self._calls[slot] = gate.name, slot.weight
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(slot.weight):
                    group.create_task(branch())
        finally:
            del self._calls[slot]


class Cluster:
    """Some gates before some replicas, of which each call gets any."""

    def __init__(self, gates: int, replicas: int) -> None:
        self.gates = [Gate() for _ in range(gates)]
        self.replicas = [Replica(str(number)) for number in range(replicas)]
        self._luck = random.Random(7)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def branches(self) -> int:
        return sum(replica.branches for replica in self.replicas)

    def search(self, gate: Gate, width: int, rounds: int) -> "asyncio.Task[None]":
        """So many rounds of so many branches, a tenth of a second between two."""
        task = asyncio.create_task(self._search(gate, width, rounds))
        self._tasks.add(task)
        return task

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert [gate.usage for gate in self.gates] == [0] * len(self.gates)
        assert self.branches == 0

    async def _search(self, gate: Gate, width: int, rounds: int) -> None:
        owner = object()

        async def call(wanted: int) -> None:
            async with gate.admit(Lane.DEMAND, wanted, owner, in_parts=True) as slot:
                if slot.weight < wanted:
                    group.create_task(call(wanted - slot.weight))
                await self._luck.choice(self.replicas).write(gate, slot)

        for _ in range(rounds):
            async with asyncio.TaskGroup() as group:
                group.create_task(call(width))
            await asyncio.sleep(0.1)


async def watched(cluster: Cluster, begin: float, end: float) -> tuple[list[int], list[list[int]]]:
    """Branches at the replicas, and of each gate, ten times a second from ``begin`` to ``end``, virtual seconds."""
    branches, of_gates = [], []
    await asyncio.sleep(begin)
    for _ in range(round(10 * (end - begin))):
        branches.append(cluster.branches)
        of_gates.append([gate.usage for gate in cluster.gates])
        await asyncio.sleep(0.1)
    return branches, of_gates


@pytest.mark.parametrize(("gates", "replicas"), [(1, 1), (2, 1), (4, 2), (8, 4)])
def test_gates_together_let_in_what_one_would(gates: int, replicas: int) -> None:
    async def main() -> tuple[list[int], list[list[int]]]:
        cluster = Cluster(gates, replicas)
        for gate in cluster.gates:
            for _ in range(3):
                cluster.search(gate, 10_000, 1)
        found = await watched(cluster, 25.0, 40.0)
        await cluster.end()
        return found

    branches, of_gates = run(main())
    of_all = AHEAD * BATCH * replicas
    assert max(branches) <= 1.1 * of_all
    assert min(branches) >= BATCH * replicas
    for usage in zip(*of_gates, strict=True):
        assert sum(usage) / len(usage) > 0.6 * of_all / gates, "less than its part"


def test_what_others_do_not_use_is_for_whoever_wants_it() -> None:
    """A wide search keeps the replicas busy though three more gates have searches."""

    async def main() -> list[int]:
        cluster = Cluster(4, 2)
        cluster.search(cluster.gates[0], 10_000, 1)
        for gate in cluster.gates[1:]:
            cluster.search(gate, 4, 1000)
        branches, _ = await watched(cluster, 10.0, 30.0)
        await cluster.end()
        return branches

    branches = run(main())
    assert min(branches) >= BATCH * 2


def test_who_comes_late_finds_room() -> None:
    """One gate has filled everything; another's small search does not wait for its end."""

    async def main() -> float:
        cluster = Cluster(2, 1)
        cluster.search(cluster.gates[0], 10_000, 1)
        await asyncio.sleep(10)
        began = asyncio.get_running_loop().time()
        await cluster.search(cluster.gates[1], 4, 5)
        took = asyncio.get_running_loop().time() - began
        await cluster.end()
        return took

    # A round waits for what is at the replica already, twice its batch at most.
    assert run(main()) <= 5 * (AHEAD + 1.2)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=12))
def test_a_replica_tells_each_gate_of_the_others(calls: list[tuple[str, int]]) -> None:
    words = {gate: shared(told(BATCH), gate, calls) for gate in "abcd"}
    held = {gate: sum(branches for name, branches in calls if name == gate) for gate in words}
    for gate, word in words.items():
        assert word.of_others == sum(held.values()) - held[gate]
        assert word.gates == 1 + sum(branches > 0 for name, branches in held.items() if name != gate)
        assert word._replace(gates=1, of_others=0) == told(BATCH)


@given(st.integers(1, 300), st.integers(1, 100), st.integers(0, 2000))
def test_a_gate_has_what_is_left_and_its_part_at_least(branches: int, gates: int, of_others: int) -> None:
    of_all = max(FEWEST, AHEAD * branches)
    found = Reach().saw(told(branches, gates=gates, of_others=of_others), 0.0)
    assert found == max(FEWEST_EACH, of_all // gates, of_all - of_others)
    assert Reach().saw(told(branches), 0.0) == of_all


def test_of_several_replicas_all_that_they_have_counts() -> None:
    def capacity(words: Sequence[Headroom]) -> int | None:
        reach = Reach()
        return [reach.saw(word, 0.0) for word in words][-1]

    assert capacity([told(64, "one", 2, 100), told(64, "two", 2, 28)]) == 128
    assert capacity([told(64, "one", 2, 100), told(64, "two")]) == 156
    assert capacity([told(64, "one", 4, 100), told(64, "two", 3, 150)]) == 64
