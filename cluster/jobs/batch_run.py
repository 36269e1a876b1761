"""Runs one batch, from its input file to its result files."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cluster.client.client import Client
from cluster.jobs.inputs import BatchRequest, JobInput
from cluster.jobs.outputs import Damaged, Identity, OutputFull, Outputs, paths
from cluster.jobs.run import Job, JobStopped, KeyRefused, Settings, batch_line
from cluster.jobs.usage import usage_of
from cluster.jobs.validation import checking
from cluster.jobs.window import Window
from deployments.store import Batch, BatchState, BatchStatus, BatchUsage, Files, LineError, StoreSettings
from deployments.store import Damaged as StateDamaged
from search.tools.fair_threads import FairThreads
from search.tools.tasks import cancel_and_wait

T = TypeVar("T")
LOOK_EVERY_S = 0.5
"""Interval of looking for a cancellation and of writing progress, seconds."""
KEY_GONE_S = 900.0
"""Seconds of refusals after which a key counts as removed. Until then, controllers may not know a new key yet."""
ENDING_S = 900.0
"""Seconds after which a batch that has to end, and cannot be ended in order, is ended with the results it has."""
_THREADS = FairThreads(2, 1 << 16, "batches")
"""Threads that read and check whole files. More would only slow down the runner's event loop."""
KEY_REMOVED = LineError(code="key_removed", message="the API key of this batch is no longer accepted")
LEFT = {
    BatchStatus.CANCELLED: LineError(
        code="batch_cancelled", message="the batch was cancelled before this request was done"
    ),
    BatchStatus.EXPIRED: LineError(
        code="batch_expired", message="the batch's completion window closed before this request was done"
    ),
}
"""Errors of requests that are not done when a batch ends early, by its final status."""


class Ending(NamedTuple):
    """How a batch ends."""

    status: BatchStatus
    reason: LineError | None = None
    """Why it has failed."""

    @property
    def of_the_rest(self) -> LineError:
        """The error of requests that are not done."""
        return self.reason or LEFT[self.status]


class LinesFailed(Exception):
    """All lines are done, but some failed for reasons of the service: a later retry may succeed."""


class BatchRun:
    """The job of one batch. Only for the process that holds its lease."""

    def __init__(self, batch: Batch, owner: str, files: Files, client: Client, window: Window) -> None:
        """``files``: files of the batch's ``owner``. ``client``: sends requests as that owner; not entered yet.
        ``window``: limit of requests in flight."""
        self._batch = batch
        self._owner = owner
        self._record = batch.record
        self._files = files
        self._client = client
        self._window = window

    async def run(self, limits: StoreSettings, last: bool) -> None:
        """Runs the batch to its end. ``last``: whether this is the last pass, so that all failures are final.

        Failed lines are retried if the state says so (`BatchState.again`). A batch with a damaged file ends with the
        results that it has.

        Raises:
            LinesFailed: lines failed for reasons of the service, and this was not the ``last`` pass.
            ClientError, JobStopped, OutputError, ProblemFileError, OSError: the batch cannot continue now.
        """
        try:
            await self._run(limits, last)
        except Damaged as error:
            await self.end_as_it_is(f"{error.path.name} {error.reason}")
        except Exception as error:
            if isinstance(error, StateDamaged) or not self._is_overdue():
                raise
            await self.end_as_it_is(f"its files could not be read or written: {type(error).__name__}")

    async def _run(self, limits: StoreSettings, last: bool) -> None:
        batch = self._batch
        try:
            steps = checking(batch.input_path, self._record.endpoint, limits.batch_lines_max)
            given = await _THREADS.run_steps(self._owner, steps)
        except FileNotFoundError:
            raise Damaged(batch.input_path, "is gone") from None
        except IsADirectoryError:
            raise Damaged(batch.input_path, "is not a file") from None
        if isinstance(given, list):
            self._end(BatchStatus.FAILED, given)
            return
        identity = Identity(
            input_sha256=given.sha256,
            input_kind=given.kind,
            lines=given.lines,
            model=None,
            search={},
            seed=0,
            trees=False,
        )
        state = batch.state
        decided = _decided(state) or must_end(batch)
        # Once the ending is decided, existing errors stay.
        again = decided is None and state.again
        opened = await self._in_turn(
            Outputs, batch.output_path, identity, given.last, again, limits.batch_output_bytes_max
        )
        with opened as outputs:
            progress = _Progress(batch, given, outputs, self._window)
            ending = decided or await self._worked(given, outputs, progress)
            done = ending.status is BatchStatus.COMPLETED and decided is None
            if done and not last and await self._in_turn(outputs.may_go_better):
                raise LinesFailed(f"{outputs.failed} of {given.lines} lines have failed")
            await self._finished(ending, given, outputs, progress)

    async def _in_turn(self, work: Callable[..., T], *args: Any) -> T:
        """Runs work on whole files in a thread. Owners take turns."""
        return await _THREADS.run(self._owner, partial(work, *args))

    async def _finished(self, ending: Ending, given: JobInput, outputs: Outputs, progress: "_Progress") -> None:
        """Adds the results to the owner's files. Idempotent: after a crash it can be repeated."""
        errors = () if ending.reason is None else (ending.reason,)
        if ending.status is BatchStatus.COMPLETED:
            progress.tell(BatchStatus.FINALIZING, ending=ending.status)
        else:
            progress.tell(BatchStatus.IN_PROGRESS, ending=ending.status, errors=errors)
            await self._in_turn(_account_for_the_rest, given, outputs, ending)
        usage = await self._in_turn(usage_of, outputs)
        progress.tell(ending.status, **await self._given_out(), usage=usage, errors=errors)

    async def _given_out(self) -> dict[str, str | None]:
        """Adds the results and errors to the owner's files. Returns their ids, as fields of the state."""
        results, errors, _ = paths(self._batch.output_path)
        ids: dict[str, str | None] = {}
        for kind, path in (("output", results), ("error", errors)):
            file_id = self._batch.result_id(kind) if path.is_file() and path.stat().st_size else None
            if file_id is not None:
                name = f"{self._record.id}_{kind}.jsonl"
                await self._in_turn(self._files.adopt, path, file_id, name, self._record.output_keep_s)
            ids[f"{kind}_file_id"] = file_id
        return ids

    async def _worked(self, given: JobInput, outputs: Outputs, progress: "_Progress") -> Ending:
        """Runs the job. Returns how the batch ends: completed, cancelled, expired, or failed without a key or with
        results that became too long."""
        progress.tell(BatchStatus.IN_PROGRESS)
        async with self._client:
            job = asyncio.create_task(Job(given, outputs, Settings("", {}), self._client, self._window).run())
            try:
                while not job.done():
                    await asyncio.wait({job}, timeout=LOOK_EVERY_S)
                    if not job.done() and (ending := must_end(self._batch)) is not None:
                        return ending
                    progress.tell(BatchStatus.IN_PROGRESS)
                job.result()
            except KeyRefused:
                if progress.refused() < KEY_GONE_S:
                    raise
                return Ending(BatchStatus.FAILED, KEY_REMOVED)
            except OutputFull as error:
                message = f"{error} (store.batch_output_bytes_max)"
                return Ending(BatchStatus.FAILED, LineError(code="output_too_long", message=message))
            except JobStopped:
                # The service failed at everything: this does not count as a pass.
                progress.tell(BatchStatus.IN_PROGRESS, again=True)
                raise
            finally:
                await cancel_and_wait(job)
        if outputs.done.count != given.lines:
            raise AssertionError(f"{given.lines} lines, and {outputs.done.count} are done")
        return Ending(BatchStatus.COMPLETED)

    async def end_as_it_is(self, reason: str) -> None:
        """Ends the batch without its requests that are not done: cancelled or expired if it has to end, else failed.
        Results are given out as they are, and a damaged state is replaced."""
        error = LineError(code="files_damaged", message=reason)
        ending = must_end(self._batch) or Ending(BatchStatus.FAILED)
        self._end(ending.status, [error], await self._given_out())

    def _is_overdue(self) -> bool:
        """Whether the batch has had to end for `ENDING_S`."""
        cancelled = self._batch.cancelled
        since = self._record.expires if cancelled is None else min(cancelled, self._record.expires)
        return time.time() >= since + ENDING_S

    def _end(
        self, status: BatchStatus, errors: Sequence[LineError], files: Mapping[str, str | None] | None = None
    ) -> None:
        """``files``: ids of the results and errors, as fields of the state."""
        told = {"status": status, "ended": time.time(), "errors": tuple(errors), **(files or {})}
        try:
            state = self._batch.state
        except StateDamaged:
            state = BatchState()
        self._batch.tell(state.model_copy(update=told))


def must_end(batch: Batch) -> Ending | None:
    """How the batch ends if it has to end now, cancelled or expired; None if it may continue.

    Raises:
        NotThere: it has been removed.
    """
    if batch.cancelled is not None:
        return Ending(BatchStatus.CANCELLED)
    return Ending(BatchStatus.EXPIRED) if time.time() >= batch.record.expires else None


def _decided(state: BatchState) -> Ending | None:
    """How the batch ends if that was decided before."""
    return None if state.ending is None else Ending(state.ending, next(iter(state.errors), None))


class _Progress:
    """The state of one batch, written when it has changed."""

    def __init__(self, batch: Batch, given: JobInput, outputs: Outputs, window: Window) -> None:
        self._batch = batch
        self._outputs = outputs
        self._window = window
        told = batch.state
        begun = {"total": given.lines, "in_progress": told.in_progress or time.time()}
        # `outputs` has already dropped the errors to retry.
        self._state = told.model_copy(update={**begun, "rests_until": None, "again": False})
        self._done = outputs.done.count
        self._told: BatchState | None = None

    def refused(self) -> float:
        """Records that the key was refused. Returns for how many seconds it has been."""
        now = time.time()
        since = self._refused_since or now
        self.tell(BatchStatus.IN_PROGRESS, refused_since=since)
        return now - since

    @property
    def _refused_since(self) -> float | None:
        """None once a line was done, or was refused for lack of room: the key is known then."""
        known = self._outputs.done.count != self._done or self._window.refusals
        return None if known else self._state.refused_since

    def tell(self, status: BatchStatus, **found: str | float | BatchUsage | tuple[LineError, ...] | None) -> None:
        """Writes the state if it has changed. ``found``: other fields of the state."""
        now, state, done = time.time(), self._state, self._outputs
        self._state = state.model_copy(
            update={
                "status": status,
                "completed": done.done.count - done.failed,
                "failed": done.failed,
                "refused_since": self._refused_since,
                "finalizing": state.finalizing or (now if status is BatchStatus.FINALIZING else None),
                "ended": now if status.is_final else None,
                **found,
            }
        )
        if self._state != self._told:
            self._batch.tell(self._state)
            self._told = self._state


def _account_for_the_rest(given: JobInput, outputs: Outputs, ending: Ending) -> None:
    """Writes an error for every request that is not done.

    Raises:
        OutputError: it could not be written.
    """
    rest = ending.of_the_rest
    for item in given.items():
        if item.number not in outputs.done and isinstance(item.work, BatchRequest):
            error = {"code": rest.code, "message": rest.message}
            outputs.put_error(batch_line(item.number, item.work.custom_id, None, error) | {"kind": str(ending.status)})
