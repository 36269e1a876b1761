"""Mathematical equivalence of answers, by math-verify in a process that may be killed.

``AnswerMatcher`` is for searches, ``equivalent`` for scripts.
"""

import asyncio
import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

from search.answers.extraction import canonical, quickly_same

WORKER_SCRIPT = Path(__file__).with_name("equivalence_worker.py")

STARTUP_S = 60.0
COMPARISON_S = 5.0
"""Wall clock. The worker bounds itself by processor time; this is for what it cannot interrupt."""
GROUPING_S = 10.0
_MOST_MATH_CHARS = 256
"""Longer answers are compared as text only."""

_EXPLOSIVE = re.compile(
    r"\d[\s})]*(?:\^|\*\*)[\s{(]*\d+[\s})]*(?:\^|\*\*)"  # a tower of powers of numbers
    r"|(?:\^|\*\*)[\s{(]*\d{4,}"  # a huge exponent
    r"|\d{4,}[\s})]*!|![\s})]*!"  # a huge factorial
)


class Undecided(RuntimeError):
    """The worker did not say in time, or cannot be started, whether two answers are the same."""


class EquivalenceWorker:
    """One process that runs math-verify, started at first use and replaced when it hangs or dies.

    Blocking, and for one caller at a time.
    """

    def __init__(self, script: Path = WORKER_SCRIPT) -> None:
        self._script = script
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process if there is none and waits until it is ready.

        Raises:
            Undecided: it did not get ready within ``STARTUP_S``.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        # -P: the script's own directory, full of short module names, must not be on the import path.
        command = [sys.executable, "-P", str(self._script)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._reply(self._process, STARTUP_S)

    def same(self, a: str, b: str) -> bool:
        """Whether two answers are mathematically the same.

        Raises:
            Undecided: no reply within ``COMPARISON_S``; the process has been replaced by none.
        """
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([a, b]).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            self.close()
            raise Undecided("the equivalence worker died") from error
        return self._reply(process, COMPARISON_S) == b"1\n"

    def close(self) -> None:
        """Ends the process, working or not. The next use starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _reply(self, process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        # poll, not select: a server may well have more than 1024 descriptors open.
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        end = time.monotonic() + timeout_s
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(descriptor, 64) if poller.poll(max(0.0, end - time.monotonic()) * 1000) else b""
            if not piece:
                self.close()
                raise Undecided(f"the equivalence worker died or gave no reply in {timeout_s:g} s")
            line += piece
        return line


class AnswerMatcher:
    """Groups the answers of searches by mathematical equivalence. One for a whole process, any event loop.

    An answer that the worker cannot judge in time is compared as text instead, and costs one time-out.
    """

    def __init__(self, worker: EquivalenceWorker | None = None) -> None:
        self._worker = worker or EquivalenceWorker()
        # One thread is the queue to the one worker.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")

    async def start(self) -> None:
        """Starts the worker ahead of the first question that needs it, which would wait seconds for it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._start)

    async def group(self, answers: Sequence[str]) -> list[list[int]]:
        """Indices of ``answers``, equal ones together; groups and members in order of first appearance."""
        by_text: dict[str, list[int]] = {}
        for index, answer in enumerate(answers):
            by_text.setdefault(canonical(answer), []).append(index)
        spellings = [answers[members[0]] for members in by_text.values()]
        if _decided(spellings):
            return list(by_text.values())
        merged = asyncio.get_running_loop().run_in_executor(self._thread, self._merge, spellings)
        members = list(by_text.values())
        return [sorted(index for place in places for index in members[place]) for places in await merged]

    async def same(self, a: str, b: str) -> bool:
        """Whether two answers are the same."""
        return len(await self.group([a, b])) == 1

    def close(self) -> None:
        """Ends the worker; waits for a comparison under way, ``COMPARISON_S`` at most."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._worker.close()

    def _start(self) -> None:
        with suppress(Undecided):
            self._worker.start()

    def _merge(self, spellings: Sequence[str]) -> list[list[int]]:
        """Runs in the thread. Compares each spelling with the first of every group so far."""
        self._start()
        end = time.monotonic() + GROUPING_S
        groups: list[list[int]] = []
        hung: set[str] = set()
        for index, answer in enumerate(spellings):
            home = self._home(answer, groups, spellings, hung) if time.monotonic() < end else None
            if home is None:
                groups.append([index])
            else:
                home.append(index)
        return groups

    def _home(self, answer: str, groups: list[list[int]], spellings: Sequence[str], hung: set[str]) -> list[int] | None:
        """The group that ``answer`` belongs to. Answers on which the worker ``hung`` join by text alone, which
        the spellings have been grouped by already."""
        for group in groups:
            first = spellings[group[0]]
            if {first, answer} & hung:
                continue
            try:
                if _same(self._worker, first, answer):
                    return group
            except Undecided:
                # Which of the two did it is not known, and finding out could cost another hang.
                hung |= {first, answer}
        return None


def equivalent(a: str, b: str) -> bool:
    """Whether two answers are the same; blocks up to ``COMPARISON_S``, at first use some seconds longer.

    For scripts and grading. Answers on which math-verify hangs are compared as text.
    """
    quick = quickly_same(a, b)
    if quick is not None:
        return quick
    worker, lock = _own_worker()
    with lock:
        try:
            return _same(worker, a, b)
        except Undecided:
            return False


def _same(worker: EquivalenceWorker, a: str, b: str) -> bool:
    quick = quickly_same(a, b)
    if quick is not None:
        return quick
    return _is_harmless(a) and _is_harmless(b) and worker.same(a, b)


def _is_harmless(answer: str) -> bool:
    """Whether sympy may be expected to cope. Only a filter for the usual traps: what it lets through that
    hangs all the same costs a time-out."""
    return len(answer) <= _MOST_MATH_CHARS and _EXPLOSIVE.search(answer) is None


def _decided(spellings: Sequence[str]) -> bool:
    """Whether plain comparison settles every pair."""
    return all(quickly_same(a, b) is not None for place, a in enumerate(spellings) for b in spellings[place + 1 :])


@cache
def _own_worker() -> tuple[EquivalenceWorker, threading.Lock]:
    worker = EquivalenceWorker()
    atexit.register(worker.close)
    return worker, threading.Lock()
