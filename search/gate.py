"""Admission for many searches in one process: how many branches are in flight, and who is next.

A gate holds no task and no thread. A call waits inside the request that makes it, so cancelling the
request takes it out of the queue.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from search.ports import Lane


class Slot:
    """Room in a gate for some branches, given back one by one as they finish."""

    def __init__(self, gate: "Gate", weight: int) -> None:
        self._gate = gate
        self.weight = weight
        """Branches still held."""

    def release(self, count: int = 1) -> None:
        """Gives back the room of ``count`` branches, of no more than are still held."""
        count = min(count, self.weight)
        self.weight -= count
        self._gate._leave(count)


@dataclass(eq=False)
class _Waiter:
    weight: int
    admitted: asyncio.Future[None]


class Gate:
    """Admits calls while at most ``capacity`` branches are in flight.

    Strictly by lane, then by arrival: while a call waits for room, none behind it is admitted, however
    small. Speculative calls are admitted only up to ``speculative_share`` of the capacity. A call that is
    larger than what its lane may have is admitted alone.
    """

    def __init__(self, capacity: int, speculative_share: float = 0.75) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if not 0.0 <= speculative_share <= 1.0:
            raise ValueError(f"speculative_share must be in [0, 1], got {speculative_share}")
        self.capacity = capacity
        self._room = dict.fromkeys(Lane, capacity) | {Lane.SPECULATIVE: int(capacity * speculative_share)}
        self._usage = 0
        self._queues: dict[Lane, deque[_Waiter]] = {lane: deque() for lane in sorted(Lane)}

    @property
    def usage(self) -> int:
        """Branches in flight."""
        return self._usage

    @property
    def waiting(self) -> dict[Lane, int]:
        """Calls that wait, by lane."""
        return {lane: len(queue) for lane, queue in self._queues.items()}

    @asynccontextmanager
    async def admit(self, lane: Lane, weight: int) -> AsyncIterator[Slot]:
        """Waits until ``weight`` branches may start; gives back on leaving what was not released."""
        if weight < 1:
            raise ValueError(f"weight must be at least 1, got {weight}")
        waiter = _Waiter(weight, asyncio.get_running_loop().create_future())
        self._queues[lane].append(waiter)
        self._serve()
        slot = Slot(self, weight)
        try:
            await waiter.admitted
            yield slot
        finally:
            if waiter in self._queues[lane]:
                self._queues[lane].remove(waiter)
                self._serve()
            else:
                # Also when the wait was cancelled just after it was served: the room was taken then.
                slot.release(slot.weight)

    def _leave(self, count: int) -> None:
        self._usage -= count
        self._serve()

    def _serve(self) -> None:
        for lane, queue in self._queues.items():
            while queue and self._fits(lane, queue[0].weight):
                waiter = queue.popleft()
                self._usage += waiter.weight
                if not waiter.admitted.done():
                    waiter.admitted.set_result(None)
            if queue:
                return

    def _fits(self, lane: Lane, weight: int) -> bool:
        return self._usage == 0 or self._usage + weight <= self._room[lane]
