"""Which answers are mathematically the same.

Plain numbers and words are read here. The rest is read by math-verify and sympy in a process that may be killed: a
computer algebra system can hang on what a model, or whoever prompts it, wrote. Each answer is read once.
"""

import asyncio
import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from search.answers.canonical import (
    as_number,
    canonical,
    for_algebra,
    is_word,
    without_percent,
    would_be_misread,
)
from search.answers.readings import Readings, grouped, of_number, of_text, of_values
from search.tools.turns import Turns
from search.tools.worker_process import WorkerLost, WorkerProcess

WORKER_SCRIPT = Path(__file__).with_name("equivalence_worker.py")

STARTUP_S = 60.0
REPLY_S = 20.0
"""Wall clock. The worker bounds itself by processor time; this is for one that is stopped, or gets none."""
MAX_OUT_OF_TIME = 4
"""Answers of one grouping that may run the worker out of its time; what is unread after that is compared as text."""
_MAX_MATH_CHARS = 256
"""Longer answers are compared as text only."""

_EXPLOSIVE = re.compile(
    r"\d[\s})]*(?:\^|\*\*)[\s{(]*\d+[\s})]*(?:\^|\*\*)"  # a tower of powers of numbers
    r"|(?:\^|\*\*)[\s{(]*\d{4,}"  # a huge exponent
    r"|\d{4,}[\s})]*!|![\s})]*!"  # a huge factorial
)


class Undecided(RuntimeError):
    """The worker ran out of time over an answer, or cannot be started."""


class EquivalenceWorker(WorkerProcess):
    """One process that reads answers."""

    def __init__(self, script: Path = WORKER_SCRIPT) -> None:
        super().__init__("equivalence worker", script, STARTUP_S)

    def readings(self, answer: str) -> list[list[Any]]:
        """The values that ``answer`` may stand for, as ``search.answers.readings`` takes them; none if it has none.

        Raises:
            Undecided: it takes too much time, or the process died of it; it is then replaced at the next use.
        """
        try:
            self.start()
            reply = self.exchange(json.dumps(answer).encode() + b"\n", REPLY_S)
        except WorkerLost as error:
            raise Undecided(str(error)) from error
        values: list[list[Any]] | None = json.loads(reply)
        if values is None:
            raise Undecided("the equivalence worker ran out of time")
        return values


class AnswerMatcher:
    """Groups the answers of searches by mathematical equivalence. One for a whole process, any event loop.

    An answer that takes the worker too long is compared as text instead.
    """

    def __init__(self, worker: EquivalenceWorker | None = None) -> None:
        self._worker = worker or EquivalenceWorker()
        # One thread is the queue to the one worker.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._closing = threading.Event()

    async def start(self) -> None:
        """Starts the worker ahead of the first question that needs it, which would wait seconds for it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._start)

    async def group(self, answers: Sequence[str]) -> list[list[int]]:
        """Indices of ``answers``, same ones together; groups and members in order of first appearance.

        Which are together does not depend on their order. What an answer may mean can depend on the others: ``50%``
        goes with ``50`` if that is there, else with ``0.5`` (``search.answers.readings.grouped``).
        """
        turns = Turns()
        known: dict[str, Readings | None] = {}
        for answer in dict.fromkeys(answers):
            known[answer] = _known_readings(answer)
            await turns.pass_on()
        unread: dict[str, str] = {}
        for answer in sorted(answer for answer, readings in known.items() if readings is None):
            unread.setdefault(canonical(answer), answer)
        read: Mapping[str, Readings] = {}
        if unread:
            read = await asyncio.get_running_loop().run_in_executor(self._thread, self._read_all, unread.values())
        distinct = grouped([readings or read[canonical(answer)] for answer, readings in known.items()])
        numbers = {answer: number for number, answer in enumerate(known)}
        group_of = {member: group for group, members in enumerate(distinct) for member in members}
        groups: list[list[int]] = [[] for _ in distinct]
        for index, answer in enumerate(answers):
            groups[group_of[numbers[answer]]].append(index)
        return groups

    async def same(self, a: str, b: str) -> bool:
        """Whether two answers are the same."""
        return len(await self.group([a, b])) == 1

    def close(self) -> None:
        """Ends the worker; waits for the answer that it is at, about a second of its processor time."""
        self._closing.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._worker.close()

    def _start(self) -> None:
        with suppress(WorkerLost):
            self._worker.start()

    def _read_all(self, answers: Iterable[str]) -> dict[str, Readings]:
        """Runs in the thread: the readings of each answer, by its canonical spelling."""
        read: dict[str, Readings] = {}
        lost = 0
        for answer in answers:
            text = canonical(answer)
            read[text] = of_text(text)
            if lost >= MAX_OUT_OF_TIME or self._closing.is_set():
                continue
            try:
                read[text] = self._read(answer) or read[text]
            except Undecided:
                lost += 1
        return read

    def _read(self, answer: str) -> Readings:
        body, is_percent = without_percent(answer)
        return of_values(self._worker.readings(for_algebra(body)), is_percent)


def _known_readings(answer: str) -> Readings | None:
    """The readings of an answer that needs no computer algebra, or must not get near it; None for any other."""
    number = as_number(answer)
    if number is not None:
        return of_number(number)
    if is_word(answer) or would_be_misread(answer) or not _is_harmless(answer):
        return of_text(canonical(answer))
    return None


def _is_harmless(answer: str) -> bool:
    """Whether sympy may be expected to cope. Only a filter for the usual traps: what it lets through that
    hangs all the same costs a time-out."""
    return len(answer) <= _MAX_MATH_CHARS and _EXPLOSIVE.search(answer) is None
