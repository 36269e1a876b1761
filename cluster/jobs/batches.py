"""Runs the batches of a store, each as a job like that of ``banyan batch``. Survives crashes of the runner.

All state of a batch is in the store: its job's two files say which lines are done. So the process that holds the lease
continues where another one stopped. Requests in flight when a runner died have no line, and are sent again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from cluster.client.client import Client
from cluster.client.errors import ClientError
from cluster.evaluation.problem_files import ProblemFileError
from cluster.jobs.batch_run import BatchRun, LinesFailed, must_end
from cluster.jobs.outputs import OutputError
from cluster.jobs.run import JobStopped
from cluster.jobs.window import Window
from deployments.store import Batch, Damaged, NotThere, Pending, Store, StoreBusy, StoreError

logger = logging.getLogger("banyan.batches")

LOOK_EVERY_S = 0.5
"""Interval of looking for new batches and cancellations, seconds."""
REST_S = 10.0
"""Seconds before a batch that could not continue is tried again."""
MAX_REST_S = 300.0
"""Longest backoff between passes, seconds. The backoff doubles after every pass with failed lines."""
MAX_PASSES = 8
"""Passes after which failures are final. With the backoff between them they take a quarter of an hour."""
SWEEP_EVERY_S = 60.0


class BatchJobs:
    """Runs one batch of each owner at a time, the oldest first, and all owners at once. For use in one event loop."""

    def __init__(self, store: Store, connect: Callable[[str], Client]) -> None:
        """``connect``: returns a client for an owner's requests, not entered yet, that raises refusals for lack of
        room."""
        self._store = store
        self._connect = connect
        self._at_work: dict[str, tuple[str, Window, asyncio.Task[None]]] = {}
        """Running batches by name of the mark: owner, limit of requests in flight, and task."""
        self._next_pass: dict[str, float] = {}
        """Earliest time of a batch's next pass (monotonic), by name of the mark."""
        self._rests: dict[str, float] = {}
        """End of the rest of a batch that could not continue (monotonic), by name of the mark."""
        self.waiting = 0
        """Number of batches that are not running."""

    @property
    def running(self) -> int:
        return len(self._at_work)

    async def run(self) -> None:
        """Runs until cancelled. The batches in progress are then left to another runner."""
        swept_at = 0.0
        try:
            while True:
                looked = await _was_read(self._look())
                if time.monotonic() - swept_at > SWEEP_EVERY_S:
                    swept_at = time.monotonic()
                    await _was_read(asyncio.to_thread(self._store.sweep))
                await asyncio.sleep(LOOK_EVERY_S if looked else REST_S)
        finally:
            tasks = [task for _, _, task in self._at_work.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _look(self) -> None:
        """Starts the batches that are due."""
        pending = await asyncio.to_thread(self._store.pending)
        now = time.monotonic()
        self._rests = {name: until for name, until in self._rests.items() if until > now}
        names = {each.name for each in pending}
        self._next_pass = {name: until for name, until in self._next_pass.items() if name in names}
        busy = {owner for owner, _, _ in self._at_work.values()}
        for each in pending:
            if each.name in self._at_work or each.name in self._rests:
                continue
            if each.name not in self._next_pass and not await self._begin(each):
                continue
            waits = self._next_pass[each.name] > time.monotonic()
            full = each.owner in busy or len(self._at_work) >= self._store.settings.batch_requests
            if (waits or full) and not await self._must_end(each):
                continue
            busy.add(each.owner)
            window = Window(self._store.settings.batch_requests)
            self._at_work[each.name] = each.owner, window, asyncio.create_task(self._do(each, window))
        self.waiting = len(pending) - len(self._at_work)
        self._share()

    async def _begin(self, pending: Pending) -> bool:
        """Reads the remaining backoff of a batch; False if it cannot be read."""
        try:
            rest_s = await asyncio.to_thread(_rest_of, pending.batch)
        except (OSError, StoreError) as error:
            self._rest(pending, error)
            return False
        self._next_pass[pending.name] = time.monotonic() + rest_s
        return True

    async def _must_end(self, pending: Pending) -> bool:
        try:
            return await asyncio.to_thread(must_end, pending.batch) is not None
        except (OSError, StoreError) as error:
            self._rest(pending, error)
            return False

    def _rest(self, pending: Pending, error: Exception) -> None:
        logger.warning("a batch pauses for %g s: %s: %s", REST_S, type(error).__name__, error)
        self._rests[pending.name] = time.monotonic() + REST_S

    def _share(self) -> None:
        """Divides the requests in flight evenly among the running batches."""
        if self._at_work:
            share = max(1, self._store.settings.batch_requests // len(self._at_work))
            for _, window, _ in self._at_work.values():
                window.resize(share)

    async def _do(self, pending: Pending, window: Window) -> None:
        """Runs one batch to its end, or as far as it gets now."""
        try:
            with pending.batch.lease():
                try:
                    if not pending.batch.state.status.is_final:
                        await self._run(pending, window)
                except LinesFailed as error:
                    self._passed(pending, error)
                    return
                except Damaged as error:
                    logger.error("a batch is damaged: %s", error)
                    if not await self._was_ended(pending, error):
                        # The sweep marks it again if it can be read one day.
                        await asyncio.to_thread(self._store.finished, pending)
                        return
                await asyncio.to_thread(pending.batch.drop_work)
                await asyncio.to_thread(self._store.finished, pending)
        except StoreBusy:
            self._rests[pending.name] = time.monotonic() + REST_S
        except (ClientError, JobStopped, OutputError, ProblemFileError, NotThere, OSError) as error:
            self._rest(pending, error)
        except Exception:
            logger.exception("a batch failed unexpectedly and pauses for %g s", REST_S)
            self._rests[pending.name] = time.monotonic() + REST_S
        finally:
            del self._at_work[pending.name]
            self._share()

    async def _run(self, pending: Pending, window: Window) -> None:
        last = pending.batch.state.passes + 1 >= MAX_PASSES
        await self._run_of(pending, window).run(self._store.settings, last)

    def _run_of(self, pending: Pending, window: Window) -> BatchRun:
        files = self._store.owned(pending.owner).files
        return BatchRun(pending.batch, pending.owner, files, self._connect(pending.owner), window)

    async def _was_ended(self, pending: Pending, damage: Damaged) -> bool:
        """Ends a batch whose state is damaged, with the results that it has. False if its record is: then nothing is
        known of it."""
        try:
            await self._run_of(pending, Window(1)).end_as_it_is(str(damage))
        except Damaged:
            return False
        return True

    def _passed(self, pending: Pending, error: LinesFailed) -> None:
        """Starts the backoff before the next pass, also for other runners. Only for the holder of the lease."""
        state = pending.batch.state
        made = state.passes + 1
        rest_s = min(REST_S * 2 ** (made - 1), MAX_REST_S)
        logger.warning("a batch is retried in %g s: %s", rest_s, error)
        told = {"passes": made, "rests_until": time.time() + rest_s, "again": True}
        pending.batch.tell(state.model_copy(update=told))
        self._next_pass[pending.name] = time.monotonic() + rest_s


def _rest_of(batch: Batch) -> float:
    """Remaining backoff since the batch's last pass, seconds; 0 for a damaged batch, which is to be ended."""
    try:
        until = batch.state.rests_until
    except Damaged:
        return 0.0
    return 0.0 if until is None else min(until - time.time(), MAX_REST_S)


async def _was_read(work: Awaitable[None]) -> bool:
    try:
        await work
    except (OSError, StoreError) as error:
        logger.warning("the store cannot be read: %s", error)
        return False
    return True
