"""Does the batches of a store: each as the job that ``banyan batch`` does, whoever is killed meanwhile.

All that is known of a batch stands in the store: its job's two files say which lines are done. So whoever has the lease
goes on where another was; what a runner that died was at has no line, and is done again.
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
from deployments.store import Batch, NotThere, Pending, Store, StoreBusy, StoreError

logger = logging.getLogger("banyan.batches")

LOOK_EVERY_S = 0.5
"""For new batches, cancellations, and what is done."""
REST_S = 10.0
"""A batch that could not go on is left alone for so long."""
MAX_REST_S = 300.0
"""One of which lines have failed rests twice as long each time, at most so long."""
MAX_PASSES = 8
"""Then what has failed has failed; with the rests between them that is a quarter of an hour."""
SWEEP_EVERY_S = 60.0


class BatchJobs:
    """Of each owner one batch at a time, the oldest first; of all owners at once. One event loop."""

    def __init__(self, store: Store, connect: Callable[[str], Client]) -> None:
        """``connect``: a client, not entered yet, whose requests are that owner's; it raises refusals for lack of
        room."""
        self._store = store
        self._connect = connect
        self._at_work: dict[str, tuple[str, Window, asyncio.Task[None]]] = {}
        """By name of the mark: the owner, how many requests are in flight, and who does it."""
        self._next_pass: dict[str, float] = {}
        """Before when (monotonic) a batch of which lines have failed is not asked for again, by name of the mark."""
        self._rests: dict[str, float] = {}
        """Until when (monotonic), by name of the mark."""
        self.waiting = 0
        """Batches that nobody is at."""

    @property
    def running(self) -> int:
        return len(self._at_work)

    async def run(self) -> None:
        """Goes on until it is cancelled; the batches that it is at then are for another."""
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
        """Begins what has its turn."""
        pending = await asyncio.to_thread(self._store.pending)
        now = time.monotonic()
        self._rests = {name: until for name, until in self._rests.items() if until > now}
        there = {each.name for each in pending}
        self._next_pass = {name: until for name, until in self._next_pass.items() if name in there}
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
        """Reads how long a batch still rests; False where it cannot be read."""
        try:
            rest_s = await asyncio.to_thread(_rest_of, pending.batch)
        except OSError as error:
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
        logger.warning("a batch rests for %g s: %s: %s", REST_S, type(error).__name__, error)
        self._rests[pending.name] = time.monotonic() + REST_S

    def _share(self) -> None:
        """As many requests in flight for one as for another."""
        if self._at_work:
            share = max(1, self._store.settings.batch_requests // len(self._at_work))
            for _, window, _ in self._at_work.values():
                window.resize(share)

    async def _do(self, pending: Pending, window: Window) -> None:
        """One batch to its end, or as far as it goes now."""
        try:
            with pending.batch.lease():
                if not pending.batch.state.status.is_final:
                    try:
                        await self._run(pending, window)
                    except LinesFailed as error:
                        self._passed(pending, error)
                        return
                await asyncio.to_thread(pending.batch.drop_work)
                await asyncio.to_thread(self._store.finished, pending)
        except StoreBusy:
            self._rests[pending.name] = time.monotonic() + REST_S
        except (ClientError, JobStopped, OutputError, ProblemFileError, NotThere, OSError) as error:
            self._rest(pending, error)
        except Exception:
            logger.exception("a batch rests for %g s", REST_S)
            self._rests[pending.name] = time.monotonic() + REST_S
        finally:
            del self._at_work[pending.name]
            self._share()

    async def _run(self, pending: Pending, window: Window) -> None:
        last = pending.batch.state.passes + 1 >= MAX_PASSES
        files = self._store.owned(pending.owner).files
        run = BatchRun(pending.batch, files, self._connect(pending.owner), window)
        await run.run(self._store.settings.batch_lines_max, last)

    def _passed(self, pending: Pending, error: LinesFailed) -> None:
        """It rests, but for its end; so it does with another runner. For who has the lease."""
        state = pending.batch.state
        made = state.passes + 1
        rest_s = min(REST_S * 2 ** (made - 1), MAX_REST_S)
        logger.warning("a batch is asked for again in %g s: %s", rest_s, error)
        told = {"passes": made, "rests_until": time.time() + rest_s, "again": True}
        pending.batch.tell(state.model_copy(update=told))
        self._next_pass[pending.name] = time.monotonic() + rest_s


def _rest_of(batch: Batch) -> float:
    """For how long it still rests since its last pass, seconds."""
    until = batch.state.rests_until
    return 0.0 if until is None else min(until - time.time(), MAX_REST_S)


async def _was_read(work: Awaitable[None]) -> bool:
    try:
        await work
    except (OSError, StoreError) as error:
        logger.warning("the store cannot be read: %s", error)
        return False
    return True
