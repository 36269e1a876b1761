"""What JSON schemas cost an engine, found out before one sees them: each is compiled in a worker process first."""

import asyncio
import hashlib
import itertools
import json
import logging
import signal
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from search.tools.worker_process import WorkerLost, WorkerProcess

WORKER_SCRIPT = Path(__file__).parents[1] / "engines" / "grammar_worker.py"
logger = logging.getLogger(__name__)

STARTUP_S = 60.0
"""Timeout of a worker's start, wall clock."""
REPLY_S = 60.0
"""Timeout of one reply, wall clock. The worker limits its own CPU time; this is for a worker that is stopped."""
WAIT_S = 60.0
"""Longest wait of a request for the figures of its schema."""
MAX_KNOWN = 4096
"""Schemas whose faults are remembered, some hundred bytes each; the least recently used is forgotten first."""

Spelling = tuple[list[str], str, int | None]
"""See `deployments.engines.encoding.ChatEncoder.spelling`."""


class SchemaTooDear(ValueError):
    """Holding answers to a schema would cost an engine too much, or cannot be done. The message begins with a verb."""


class SchemasBusy(RuntimeError):
    """The cost of a schema could not be found out in time. The same request may be sent again later."""


class SchemaLimits(NamedTuple):
    """What a schema may cost an engine."""

    compile_s: float
    """CPU time of compiling it, seconds."""
    grammar_bytes: int
    """Memory of the compiled grammar, which all branches of all its requests share."""
    token_s: float
    """CPU time of its mask for a token of one branch, seconds, in the dearest part of a text."""
    state_bytes: float
    """Memory for a token of one branch, while the branch is written."""

    @classmethod
    def of(cls, tokens: int) -> "SchemaLimits":
        """Limits for a vocabulary of this size: a grammar has masks of all tokens."""
        tens = tokens / 10_000
        return cls(1 + tens, int((16 + 4 * tens) * (1 << 20)), (0.5 + 0.3 * tens) / 1000, 32 << 10)

    @property
    def killed_after_s(self) -> float:
        """CPU time after which the worker is killed. It compiles large parts of a schema once more, to try them alone,
        and writes for a second at most."""
        return 2 * self.compile_s + 1.5


@dataclass(eq=False)
class _Waiting:
    """A request that waits for the figures of its schema."""

    order: tuple[int, int]
    """How many requests of its owner wait already, and its number: owners take turns."""
    owner: str
    schema: str
    digest: bytes
    fault: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Why the schema is refused; empty if it is not."""


class SchemaCosts:
    """Refuses schemas that would cost an engine too much. For use in one event loop.

    The worker process starts at the first schema. A schema on which it ran out of time or memory, or twice died, is
    refused; the next one gets a new process.
    """

    def __init__(self, spelling: Callable[[], Spelling], script: Path = WORKER_SCRIPT) -> None:
        """``spelling``: of the generator's tokenizer."""
        self._spelling = spelling
        self._script = script
        self._worker: WorkerProcess | None = None
        self._limits = SchemaLimits.of(0)
        # One thread, since there is one worker.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="schemas")
        self._known: OrderedDict[bytes, str] = OrderedDict()
        """Faults by the schemas' hashes; empty for a schema that may be used."""
        self._waiting: list[_Waiting] = []
        self._numbers = itertools.count()
        self._judging: asyncio.Task[None] | None = None
        self._closed = False

    async def check(self, schema: str, owner: str = "") -> None:
        """Returns if answers may be held to a schema.

        Raises:
            SchemaTooDear: they may not.
            SchemasBusy: there are no figures after `WAIT_S`.
        """
        digest = hashlib.sha256(schema.encode()).digest()
        fault = self._known.get(digest)
        if fault is None:
            fault = await self._fault(schema, digest, owner)
        else:
            self._known.move_to_end(digest)
        if fault:
            raise SchemaTooDear(fault)

    def close(self) -> None:
        """Ends the worker, busy or not."""
        self._closed = True
        if self._worker is not None:
            self._worker.kill()
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._worker is not None:
            self._worker.close()

    async def _fault(self, schema: str, digest: bytes, owner: str) -> str:
        others = sum(each.owner == owner for each in self._waiting)
        waiting = _Waiting((others, next(self._numbers)), owner, schema, digest)
        self._waiting.append(waiting)
        if self._judging is None or self._judging.done():
            self._judging = asyncio.create_task(self._judge_all())
        try:
            async with asyncio.timeout(WAIT_S):
                return await waiting.fault
        except (TimeoutError, WorkerLost):
            raise SchemasBusy("the cost of this JSON schema could not be determined in time; try again") from None
        finally:
            # Of a client that has left, nothing waits.
            with suppress(ValueError):
                self._waiting.remove(waiting)

    async def _judge_all(self) -> None:
        """Judges schemas until no request waits for one."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            first = min(self._waiting, key=lambda waiting: waiting.order)
            try:
                fault = await loop.run_in_executor(self._thread, self._judged, first.schema)
            except Exception as error:
                if not first.fault.done():
                    first.fault.set_exception(error if isinstance(error, WorkerLost) else WorkerLost(repr(error)))
                with suppress(ValueError):
                    self._waiting.remove(first)
                continue
            self._known[first.digest] = fault
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
            for each in [waiting for waiting in self._waiting if waiting.digest == first.digest]:
                self._waiting.remove(each)
                if not each.fault.done():
                    each.fault.set_result(fault)

    def _judged(self, schema: str) -> str:
        """Why a schema is refused; empty if it is not. Runs in the thread.

        Raises:
            WorkerLost: the worker cannot be started, or gave no reply in time.
        """
        if self._worker is None:
            spelling = self._spelling()
            self._limits = SchemaLimits.of(len(spelling[0]))
            greeting = json.dumps([*spelling, self._limits.killed_after_s]).encode() + b"\n"
            self._worker = WorkerProcess("schema worker", self._script, STARTUP_S, greeting)
        line, lost_before = json.dumps(schema).encode() + b"\n", False
        while True:
            self._worker.start()
            try:
                return self._fault_of(json.loads(self._worker.exchange(line, REPLY_S)))
            except WorkerLost as lost:
                if lost.status is None or self._closed:
                    raise
                if lost.status == -signal.SIGPROF:
                    return f"takes more than {self._limits.killed_after_s:.1f} s of CPU time; {self._allowed}"
                if lost_before:
                    return f"cannot be compiled within the memory limit; {self._allowed}"
                lost_before = True  # perhaps by something else

    def _fault_of(self, figures: dict[str, Any]) -> str:
        if "error" in figures:
            logger.warning("a JSON schema cannot be compiled: %s", figures["error"])
            return "cannot be compiled: no text can satisfy it"
        cost = SchemaLimits(figures["compile_s"], figures["bytes"], figures["token_s"], figures["state_bytes"])
        if all(figure <= most for figure, most in zip(cost, self._limits, strict=True)):
            return ""
        return f"costs too much: {_said(cost)}; {self._allowed}"

    @property
    def _allowed(self) -> str:
        return f"at most {_said(self._limits)} are allowed"


def _said(figures: SchemaLimits) -> str:
    return (
        f"{figures.compile_s:.1f} s of CPU time and {figures.grammar_bytes / (1 << 20):.1f} MiB to compile it, "
        f"{figures.token_s * 1000:.1f} ms and {figures.state_bytes / (1 << 10):.1f} KiB for each token of a branch"
    )
