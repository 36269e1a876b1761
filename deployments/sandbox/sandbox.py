"""A pool of worker processes that run Python programs in pydantic-monty, an interpreter without access to its machine.

A program sees neither files nor network nor environment variables; its clock stands still and its random numbers
follow from a seed, so it prints the same wherever it runs. Third-party packages are missing, and parts of Python's own
library.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple, Self

from pydantic_monty import (
    AsyncMonty,
    AsyncMontySession,
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySyntaxError,
    OSPolicy,
    ResourceLimits,
)

from deployments.sandbox.gaps import Names, names_of, probe, with_wildcards
from search.tools.fair_slots import FairSlots, Requester

CLOCK = datetime(2025, 1, 1, tzinfo=UTC)
"""What a program's clock says."""
MAX_RECURSION = 1000
"""Function calls inside one another; Python's own limit."""
MAX_SESSIONS_PER_WORKER = 1000
"""Sessions after which a worker process is replaced, so that nothing accumulates in it."""


TIME_ERROR = "TimeoutError: the program ran longer than"
MEMORY_ERROR = "MemoryError: the program needs more than"


class Limits(NamedTuple):
    """What one program may use."""

    seconds: float = 2.0
    memory_bytes: int = 128 * 2**20
    """Memory of a session, its state included."""
    output_chars: int = 10_000
    """Characters of the output that are kept; the rest is dropped, and the program goes on."""


PROBE_LIMITS = Limits(seconds=60.0, output_chars=100_000)


class End(StrEnum):
    """How a run ended."""

    OK = "ok"
    ERROR = "error"
    """An exception, or a syntax error."""
    TIME = "time"
    """The time limit."""
    MEMORY = "memory"
    """The memory limit."""
    CRASH = "crash"
    """The worker process ended."""

    @property
    def keeps_state(self) -> bool:
        """Whether the session's variables outlive the run."""
        return self in (End.OK, End.ERROR)


class Run(NamedTuple):
    """What came of a program."""

    output: str
    """What it printed, at most ``Limits.output_chars``; also of a program that failed later."""
    error: str | None
    """The last line of its traceback, as ``NameError: name 'x' is not defined``; None if it ran to its end."""
    ended: End
    seconds: float
    """How long it took, by the wall clock."""
    cut: bool = False
    """Whether it printed more than ``output``."""


class SandboxBusy(Exception):
    """No worker process became free in time."""


class Session:
    """The variables that programs leave to the next ones. After a limit or a crash they are lost: the next program
    begins with none."""

    def __init__(self, sandbox: "Sandbox", limits: Limits, seed: int, requester: Requester | None) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._seed = seed
        self._requester = requester
        self._worker: AsyncMontySession | None = None

    async def run(self, source: str) -> Run:
        """Runs one program.

        Raises:
            SandboxBusy: no worker process became free in time.
        """
        if self._worker is None:
            self._worker = await self._sandbox.take_worker(self._limits, self._seed, self._requester)
        printed = _Printed(self._limits.output_chars)
        begin = time.perf_counter()
        error: str | None = None
        ended = End.OK
        try:
            await self._worker.feed_run(self._sandbox.with_wildcards(source), print_callback=printed.take)
        except MontyError as failure:
            ended, error = self._end(failure, time.perf_counter() - begin)
        seconds = time.perf_counter() - begin
        if not ended.keeps_state:
            await self.close()
        return Run(printed.text, error, ended, seconds, printed.cut)

    async def close(self) -> None:
        """Gives the worker process back."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await self._sandbox.give_back(worker)

    def _end(self, failure: MontyError, seconds: float) -> tuple[End, str]:
        """The end of a run that failed after ``seconds``, and its error."""
        limits = self._limits
        if isinstance(failure, MontyCrashedError) and not failure.timed_out:
            return End.CRASH, "SystemError: the interpreter ended"
        exception = failure.exception()
        # Programs raise TimeoutError too.
        if isinstance(failure, MontyCrashedError) or (
            isinstance(exception, TimeoutError) and seconds >= limits.seconds
        ):
            return End.TIME, f"{TIME_ERROR} {limits.seconds:g} s"
        if isinstance(exception, MemoryError):
            return End.MEMORY, f"{MEMORY_ERROR} {limits.memory_bytes / 2**20:g} MiB"
        if isinstance(failure, MontyRuntimeError | MontySyntaxError):
            text = failure.display("type-msg")
        else:
            text = str(failure)
        return End.ERROR, text.partition("\n")[0][: limits.output_chars]


class Sandbox:
    """A pool of worker processes, open between ``async with`` and its end, for which owners and their searches take
    turns. A worker that crashes is replaced."""

    def __init__(self, workers: int, wait_s: float = 60.0) -> None:
        """``workers``: programs that run at one time. ``wait_s``: longest wait for one of them."""
        self._pool = AsyncMonty(
            min_processes=1,
            max_processes=workers,
            checkout_timeout=wait_s,
            max_checkouts_per_worker=MAX_SESSIONS_PER_WORKER,
        )
        # The pool (pydantic-monty 1.4) loses workers where a checkout is cancelled, so none waits there.
        self._free = FairSlots(workers)
        self._wait_s = wait_s
        self._names: Names = {}

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        try:
            (run,) = await self.run([probe()], PROBE_LIMITS)
            if run.error:
                raise RuntimeError(f"the interpreter does not tell which names its modules have: {run.error}")
            self._names = names_of(run.output)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *args: object) -> None:
        await self._pool.__aexit__(*args)

    @asynccontextmanager
    async def session(
        self, limits: Limits, seed: int = 0, requester: Requester | None = None
    ) -> AsyncIterator[Session]:
        """A session without variables. It has a worker process from its first program on, until it ends: open it for
        programs that are there, never for programs to come.

        ``seed``: of the random numbers that programs draw.
        """
        session = Session(self, limits, seed, requester)
        try:
            yield session
        finally:
            await session.close()

    async def run(
        self, sources: Sequence[str], limits: Limits, seed: int = 0, requester: Requester | None = None
    ) -> list[Run]:
        """Runs programs one after another in a session of their own.

        Raises:
            SandboxBusy: no worker process became free in time.
        """
        async with self.session(limits, seed, requester) as session:
            return [await session.run(source) for source in sources]

    def with_wildcards(self, source: str) -> str:
        """``source`` as the interpreter takes it; see `deployments.sandbox.gaps.with_wildcards`."""
        return with_wildcards(source, self._names)

    async def take_worker(self, limits: Limits, seed: int, requester: Requester | None) -> AsyncMontySession:
        """A free worker with a session of its own, to be given back.

        Raises:
            SandboxBusy: none became free in time.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire(requester)
        except TimeoutError as error:
            raise SandboxBusy("no worker process of the sandbox became free in time") from error
        session = self._pool.checkout(
            limits=ResourceLimits(
                max_feed_duration_secs=limits.seconds,
                max_memory=limits.memory_bytes,
                max_recursion_depth=MAX_RECURSION,
            ),
            os_policy=OSPolicy(datetime=CLOCK, sleep="zero", random_start={"seed": seed}),
            assert_message_annotations=False,
        )
        try:
            await _to_its_end(session.__aenter__())
        except asyncio.CancelledError:
            await self.give_back(session)
            raise
        except BaseException:
            self._free.release()
            raise
        return session

    async def give_back(self, worker: AsyncMontySession) -> None:
        """Ends a worker's session, and the program that may still run in it."""
        try:
            await _to_its_end(worker.__aexit__(None, None, None))
        finally:
            self._free.release()


async def _to_its_end(call: Awaitable[object]) -> None:
    """Awaits a call that must not be cut off, and raises CancelledError after it if the task was cancelled."""
    future = asyncio.ensure_future(call)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    future.result()
    if cancelled is not None:
        raise cancelled


class _Printed:
    """What a program prints, up to a limit. Called from the pool's thread."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self.text = ""
        self.cut = False

    def take(self, stream: str, text: str) -> None:
        left = self._max_chars - len(self.text)
        self.text += text[:left]
        self.cut = self.cut or len(text) > left
