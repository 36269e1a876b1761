"""Does the batches of a store: each as the job that ``banyan batch`` does, whoever is killed meanwhile.

All that is known of a batch stands in the store: its job's two files say which lines are done. So whoever has the lease
goes on where another was; what a runner that died was at has no line, and is done again.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from cluster.client.client import Client
from cluster.client.errors import ClientError, Refused
from cluster.evaluation.problem_files import ProblemFileError
from cluster.jobs.inputs import BatchRequest, JobInput
from cluster.jobs.outputs import Identity, OutputError, Outputs
from cluster.jobs.run import Job, JobStopped, KeyRefused, Settings, batch_line
from cluster.jobs.validation import checked
from cluster.jobs.window import Window
from store import Batch, BatchState, BatchStatus, LineError, NotThere, Pending, Store, StoreBusy

logger = logging.getLogger("banyan.batches")

LOOK_EVERY_S = 0.5
"""For new batches, cancellations, and what is done."""
REST_S = 10.0
"""A batch that could not go on is left alone for so long."""
SWEEP_EVERY_S = 60.0
LEFT = {
    BatchStatus.CANCELLED: ("batch_cancelled", "the batch was cancelled before this request was done"),
    BatchStatus.EXPIRED: ("batch_expired", "the batch's completion window closed before this request was done"),
}
"""What is said of the requests that are not done when a batch ends before its time."""


class BatchJobs:
    """Of each owner one batch at a time, the oldest first; of all owners at once. One event loop."""

    def __init__(self, store: Store, connect: Callable[[str], Client]) -> None:
        """``connect``: a client, not entered yet, whose requests are that owner's; it raises refusals for lack of
        room."""
        self._store = store
        self._connect = connect
        self._at_work: dict[str, tuple[str, Window, asyncio.Task[None]]] = {}
        """By name of the mark: the owner, how many requests are in flight, and who does it."""
        self._rests: dict[str, float] = {}
        """Until when (monotonic), by name of the mark."""
        self.waiting = 0
        """Batches that nobody is at."""

    @property
    def running(self) -> int:
        return len(self._at_work)

    async def run(self) -> None:
        """Goes on until it is cancelled; the batches that it is at then are for another.

        Raises:
            OSError: the store's directory cannot be made.
        """
        await asyncio.to_thread(self._store.prepare)
        swept_at = 0.0
        try:
            while True:
                try:
                    await self._look()
                    if time.monotonic() - swept_at > SWEEP_EVERY_S:
                        swept_at = time.monotonic()
                        await asyncio.to_thread(self._store.sweep)
                except OSError as error:
                    logger.warning("the store cannot be read: %s", error)
                await asyncio.sleep(LOOK_EVERY_S)
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
        busy = {owner for owner, _, _ in self._at_work.values()}
        for each in pending:
            if each.name in self._at_work or each.name in self._rests:
                continue
            full = each.owner in busy or len(self._at_work) >= self._store.settings.batch_requests
            if full and not await asyncio.to_thread(_is_to_end, each.batch):
                continue
            busy.add(each.owner)
            window = Window(self._store.settings.batch_requests)
            self._at_work[each.name] = each.owner, window, asyncio.create_task(self._do(each, window))
        self.waiting = len(pending) - len(self._at_work)
        self._share()

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
                    await self._finish(pending, window)
                await asyncio.to_thread(self._store.finished, pending)
        except StoreBusy:
            self._rests[pending.name] = time.monotonic() + REST_S
        except (ClientError, JobStopped, OutputError, ProblemFileError, NotThere, OSError) as error:
            logger.warning("a batch rests for %g s: %s: %s", REST_S, type(error).__name__, error)
            self._rests[pending.name] = time.monotonic() + REST_S
        except Exception:
            logger.exception("a batch rests for %g s", REST_S)
            self._rests[pending.name] = time.monotonic() + REST_S
        finally:
            del self._at_work[pending.name]
            self._share()

    async def _finish(self, pending: Pending, window: Window) -> None:
        """
        Raises:
            ClientError, JobStopped, OutputError, ProblemFileError, OSError: it cannot go on now.
        """
        batch, record = pending.batch, pending.batch.record
        given = await asyncio.to_thread(
            checked, batch.input_path, record.endpoint, self._store.settings.batch_lines_max
        )
        if isinstance(given, list):
            _fail(batch, given)
            return
        try:
            async with self._connect(pending.owner) as client:
                identity = Identity(
                    input_sha256=given.sha256,
                    input_kind=given.kind,
                    lines=given.lines,
                    model=await client.model(),
                    search={},
                    seed=0,
                    trees=False,
                )
                with await asyncio.to_thread(Outputs, batch.output_path, identity, given.last) as outputs:
                    await self._through(pending, given, outputs, client, window)
        except (KeyRefused, Refused) as error:
            if isinstance(error, Refused) and error.status not in (401, 403):
                raise
            _fail(batch, [LineError(code="invalid_api_key", message=str(error))])

    async def _through(
        self, pending: Pending, given: JobInput, outputs: Outputs, client: Client, window: Window
    ) -> None:
        batch = pending.batch
        progress = _Progress(batch, given, outputs)
        ending = await self._worked(batch, given, outputs, client, window, progress)
        if ending is BatchStatus.COMPLETED:
            progress.tell(BatchStatus.FINALIZING)
        else:
            await asyncio.to_thread(_account_for_the_rest, given, outputs, ending)
        outputs.sync()
        files = self._store.owned(pending.owner).files
        found = {"output": outputs.path, "error": outputs.errors_path}
        ids: dict[str, str | None] = {}
        for kind, path in found.items():
            ids[kind] = batch.result_id(kind) if path.stat().st_size else None
            if (file_id := ids[kind]) is not None:
                name = f"{batch.record.id}_{kind}.jsonl"
                await asyncio.to_thread(files.adopt, path, file_id, name, batch.record.output_keep_s)
        progress.tell(ending, output_file_id=ids["output"], error_file_id=ids["error"])

    async def _worked(
        self,
        batch: Batch,
        given: JobInput,
        outputs: Outputs,
        client: Client,
        window: Window,
        progress: "_Progress",
    ) -> BatchStatus:
        """How the batch ends: all is done, or it has to."""
        job: asyncio.Task[None] | None = None
        try:
            while outputs.done.count < given.lines:
                if batch.cancelled is not None:
                    return BatchStatus.CANCELLED
                if time.time() >= batch.record.expires:
                    return BatchStatus.EXPIRED
                progress.tell(BatchStatus.IN_PROGRESS)
                if job is None:
                    job = asyncio.create_task(Job(given, outputs, Settings("", {}), client, window).run())
                await asyncio.wait({job}, timeout=LOOK_EVERY_S)
                if job.done():
                    job.result()
            return BatchStatus.COMPLETED
        finally:
            if job is not None:
                await _ended(job)


class _Progress:
    """The state of one batch, written when it has changed."""

    def __init__(self, batch: Batch, given: JobInput, outputs: Outputs) -> None:
        self._batch = batch
        self._outputs = outputs
        told = batch.state
        self._state = told.model_copy(update={"total": given.lines, "in_progress": told.in_progress or time.time()})
        self._told: BatchState | None = None

    def tell(self, status: BatchStatus, **ids: str | None) -> None:
        now, state, done = time.time(), self._state, self._outputs
        self._state = state.model_copy(
            update={
                "status": status,
                "completed": done.done.count - done.failed,
                "failed": done.failed,
                "finalizing": state.finalizing or (now if status is BatchStatus.FINALIZING else None),
                "ended": now if status.is_final else None,
                **ids,
            }
        )
        if self._state != self._told:
            self._batch.tell(self._state)
            self._told = self._state


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancels a task and waits until it has ended, however it ends."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


def _fail(batch: Batch, errors: list[LineError]) -> None:
    state = batch.state
    failed = {"status": BatchStatus.FAILED, "ended": time.time(), "errors": tuple(errors)}
    batch.tell(state.model_copy(update=failed))


def _is_to_end(batch: Batch) -> bool:
    return batch.cancelled is not None or time.time() >= batch.record.expires


def _account_for_the_rest(given: JobInput, outputs: Outputs, ending: BatchStatus) -> None:
    """An error for every request that is not done.

    Raises:
        OutputError: it could not be written.
    """
    code, message = LEFT[ending]
    for item in given.items():
        if item.number not in outputs.done and isinstance(item.work, BatchRequest):
            error = {"code": code, "message": message}
            outputs.put_error(batch_line(item.number, item.work.custom_id, None, error) | {"kind": ending.value})
