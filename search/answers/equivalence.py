"""Groups answers that are mathematically equivalent.

Plain numbers and words are read here. All other answers are read by math-verify and sympy in a worker process that can
be killed, because a model or a hostile client can write answers on which computer algebra hangs. Each answer is read
once.
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
"""Timeout of a worker's start, wall clock."""
REPLY_S = 20.0
"""Timeout of one reply, wall clock. The worker limits its own CPU time; this is for a worker that is stopped or gets no
CPU."""
MAX_OUT_OF_TIME = 4
"""Maximum number of answers per grouping on which the worker may time out. After that, unread answers are compared as
text."""
_MAX_MATH_CHARS = 256
"""Longer answers are compared as text only."""

_EXPLOSIVE = re.compile(
    r"\d[\s})]*(?:\^|\*\*)[\s{(]*\d+[\s})]*(?:\^|\*\*)"  # a tower of powers of numbers
    r"|(?:\^|\*\*)[\s{(]*\d{4,}"  # a huge exponent
    r"|\d{4,}[\s})]*!|![\s})]*!"  # a huge factorial
)


class Undecided(RuntimeError):
    """The worker timed out on an answer, died, or cannot be started."""


class EquivalenceWorker(WorkerProcess):
    """The worker process that reads answers."""

    def __init__(self, script: Path = WORKER_SCRIPT) -> None:
        super().__init__("equivalence worker", script, STARTUP_S)

    def readings(self, answer: str) -> list[list[Any]]:
        """The values that ``answer`` may have, in the format of ``search.answers.readings``; empty if it has none.

        Raises:
            Undecided: the answer took too long, or the process died. A dead process is replaced at the next use.
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
    """Groups the answers of searches by mathematical equivalence. One instance serves a whole process and any event
    loop.

    An answer on which the worker times out is compared as text instead.
    """

    def __init__(self, worker: EquivalenceWorker | None = None) -> None:
        self._worker = worker or EquivalenceWorker()
        # One thread is the queue to the one worker.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._closing = threading.Event()

    async def start(self) -> None:
        """Starts the worker now, so that the first search that needs it does not wait seconds for it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._start)

    async def group(self, answers: Sequence[str]) -> list[list[int]]:
        """Indices of ``answers``, grouped by equivalence; groups and members in order of first appearance.

        The grouping does not depend on the order of the answers. An ambiguous answer depends on the others: ``50%``
        goes with ``50`` if that is present, else with ``0.5`` (``search.answers.readings.grouped``).
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
        """Whether two answers are equivalent."""
        return len(await self.group([a, b])) == 1

    def close(self) -> None:
        """Ends the worker. Waits until it has read its current answer, about a second of CPU time."""
        self._closing.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._worker.close()

    def _start(self) -> None:
        with suppress(WorkerLost):
            self._worker.start()

    def _read_all(self, answers: Iterable[str]) -> dict[str, Readings]:
        """The readings of each answer, by its canonical spelling. Runs in the thread."""
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
    """The readings of an answer that needs no computer algebra, or must not be passed to it; None for any other."""
    number = as_number(answer)
    if number is not None:
        return of_number(number)
    if is_word(answer) or would_be_misread(answer) or not _is_harmless(answer):
        return of_text(canonical(answer))
    return None


def _is_harmless(answer: str) -> bool:
    """Whether sympy should cope with an answer. A filter for common traps only; other answers that hang end in a
    timeout."""
    return len(answer) <= _MAX_MATH_CHARS and _EXPLOSIVE.search(answer) is None
