"""Runs the programs that branches write: in the sandbox, or by a function of the operator's own.

What a program prints follows from the text of its path: the variables are those of the path's earlier programs, which
run again before it, and random numbers are seeded by the text before the first. So every replica gives the same output,
and siblings share nothing. Programs at or before one that met a limit left no variables: they do not run again.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from deployments.sandbox import End, Limits, Run, Sandbox, SandboxBusy
from deployments.sandbox.sandbox import MEMORY_ERROR, TIME_ERROR
from search.answers.programs import OPENING, Program, programs
from search.ports import ToolRequest
from search.tools.fair_slots import Requester
from search.tools.import_path import imported_async_function

WORKERS = 2
"""Programs of a replica that run at one time; others wait. They take the time of its processors from the engine."""
WAIT_ERROR = "TimeoutError: too many programs are run, and there was no room for this one in time"
LIMIT_ERRORS = (TIME_ERROR, MEMORY_ERROR, WAIT_ERROR)
"""After these a program has left no variables."""
CUT = "[the output is cut]\n"


class ProgramRun(NamedTuple):
    """What the model is given behind a program."""

    output: str
    failed: bool = False
    timed_out: bool = False


class ProgramRunner:
    """Runs programs for the branches of one replica. Use from one event loop."""

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None
        self._opening = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    async def run(self, tool: ToolRequest, solution: str, requester: Requester | None) -> ProgramRun:
        """Runs the program with which the text of a path's solution ends. Where too many programs wait, it is told so
        as after a time limit."""
        written = list(programs(solution))
        if len(written) > tool.calls:
            return ProgramRun(f"RuntimeError: no more than {tool.calls} programs may be run\n", failed=True)
        if tool.function:
            return await _by_function(tool, [each.source for each in written])
        sources = [each.source for each in _with_variables(written)]
        limits = Limits(tool.seconds, tool.memory_bytes, tool.output_chars)
        try:
            runs = await (await self._opened()).run(sources, limits, _seed(solution), requester)
        except SandboxBusy:  # a fault of this branch alone
            return ProgramRun(f"{WAIT_ERROR}\n", failed=True, timed_out=True)
        # An earlier program that met the limit only now has left other variables than before.
        return _shown(runs[-1])._replace(timed_out=any(run.ended is End.TIME for run in runs))

    async def _opened(self) -> Sandbox:
        async with self._opening:
            if self._sandbox is None:
                self._sandbox = await Sandbox(WORKERS).__aenter__()
        return self._sandbox

    def close(self) -> None:
        """Ends the worker processes, in the background. If the event loop has ended, they end with this process."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            with suppress(RuntimeError):
                self._closing = asyncio.get_running_loop().create_task(sandbox.__aexit__())


def _with_variables(written: Sequence[Program]) -> Sequence[Program]:
    """The programs that run for the last of ``written``: those behind the last one that met a limit."""
    first = 0
    for number, each in enumerate(written[:-1], 1):
        if each.output is not None and each.output.rstrip().rpartition("\n")[2].startswith(LIMIT_ERRORS):
            first = number
    return written[first:]


def _seed(solution: str) -> int:
    digest = hashlib.blake2b(solution.partition(OPENING)[0].encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _shown(run: Run) -> ProgramRun:
    output = run.output
    if run.cut or run.error:
        output += "" if not output or output.endswith("\n") else "\n"
        output += (CUT if run.cut else "") + (f"{run.error}\n" if run.error else "")
    return ProgramRun(output, run.ended is not End.OK)


async def _by_function(tool: ToolRequest, sources: Sequence[str]) -> ProgramRun:
    try:
        async with asyncio.timeout(tool.seconds):
            output = await imported_async_function(tool.function)(sources)
    except TimeoutError:
        return ProgramRun(f"{TIME_ERROR} {tool.seconds:g} s\n", failed=True, timed_out=True)
    except Exception as error:  # an operator's function may raise anything
        line = f"{type(error).__name__}: {error}".partition("\n")[0]
        return ProgramRun(f"{line[: tool.output_chars]}\n", failed=True)
    text = str(output)
    return ProgramRun(text if len(text) <= tool.output_chars else f"{text[: tool.output_chars]}\n{CUT}")
