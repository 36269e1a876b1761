"""Groups answers that are mathematically equivalent.

Plain numbers and words are read here. All other answers are read by math-verify and sympy in a worker process that can
be killed, because a model or a hostile client can write answers on which computer algebra hangs. Each answer is read
once.
"""

import asyncio
import itertools
import json
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, PriorityQueue
from typing import Any, NamedTuple

from search.answers.canonical import canonical
from search.answers.forms import forms_of
from search.answers.readings import Form, Readings, grouped, of_forms, of_text
from search.tools.turns import Turns
from search.tools.worker_process import WorkerLost, WorkerProcess

WORKER_SCRIPT = Path(__file__).with_name("equivalence_worker.py")

STARTUP_S = 60.0
"""Timeout of a worker's start, wall clock."""
REPLY_S = 20.0
"""Timeout of one reply, wall clock. The worker limits its own CPU time; this is for a worker that is stopped or gets no
CPU."""
BUDGET_S = 4.0
"""CPU time of one grouping in the worker, after which its remaining answers are compared as text. Two hundred ordinary
formulas take less."""
WAIT_S = 60.0
"""Wall-clock limit of a grouping, waits for its turns included, where the caller sets none."""
LOST_S = 2.0
"""Share of the budget that an answer uses up by which the worker is lost: another one has to be started."""


class Reply(NamedTuple):
    """The worker's reply to one answer."""

    forms: list[Form] | None
    """The forms of the answer with their formulas evaluated; empty if none has a value, None if it took too long or the
    process died."""
    seconds: float
    """CPU time that the answer has cost, the same whenever it is asked for again."""


class Grouping(NamedTuple):
    """Which answers are equivalent."""

    groups: list[list[int]]
    """Indices of the answers; groups and members in order of first appearance."""
    unread: int
    """Number of different answers that were compared as text, since reading them took too long."""


class EquivalenceWorker(WorkerProcess):
    """The worker process that evaluates formulas."""

    def __init__(self, script: Path = WORKER_SCRIPT) -> None:
        super().__init__("equivalence worker", script, STARTUP_S)

    def evaluated(self, forms: Sequence[Form]) -> Reply:
        """Evaluates the forms of an answer. A process that died is replaced at the next use."""
        try:
            self.start()
            seconds, evaluated = json.loads(self.exchange(json.dumps(forms).encode() + b"\n", REPLY_S))
        except WorkerLost:
            return Reply(None, LOST_S)
        return Reply(evaluated, seconds)


class _Backlog:
    """The answers of one grouping that the worker has to read."""

    def __init__(self, answers: Iterable[str], number: int) -> None:
        """``number``: decides which of two goes first that have used the same time."""
        self.waiting = deque(answers)
        self.read: dict[str, Readings] = {}
        """Readings by canonical spelling."""
        self.used = 0.0
        """CPU time of the worker, seconds."""
        self.ended: Future[None] = Future()
        """Done when no answer waits or the budget is used up; cancelled when the grouping does not wait any longer."""
        self._number = number

    def __lt__(self, other: "_Backlog") -> bool:
        return (self.used, self._number) < (other.used, other._number)


class AnswerMatcher:
    """Groups the answers of searches by mathematical equivalence. One instance serves a whole process and any event
    loop.

    Searches take turns of one answer in the one worker: the grouping that has used the least of its time goes first, so
    ordinary answers do not wait for expensive ones of other searches. A grouping ends with the task that awaits it, at
    its deadline, and when it has used up `BUDGET_S`: answers not read by then are compared as text.
    """

    def __init__(self, worker: EquivalenceWorker | None = None) -> None:
        self._worker = worker or EquivalenceWorker()
        # One thread, since there is one worker.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._queue: PriorityQueue[_Backlog] = PriorityQueue()
        self._numbers = itertools.count()
        self._closing = threading.Event()

    async def start(self) -> None:
        """Starts the worker now, so that the first search that needs it does not wait seconds for it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._start)

    async def group(self, answers: Sequence[str]) -> list[list[int]]:
        """The groups of `grouping`."""
        return (await self.grouping(answers)).groups

    async def grouping(self, answers: Sequence[str], wait_s: float = WAIT_S) -> Grouping:
        """Groups ``answers`` by equivalence; those not read after ``wait_s`` seconds are compared as text.

        The grouping does not depend on the order of the answers. An ambiguous answer depends on the others: ``50%``
        goes with ``50`` if that is present, else with ``0.5`` (``search.answers.readings.grouped``).
        """
        turns = Turns()
        known: dict[str, Readings | None] = {}
        for answer in dict.fromkeys(answers):
            known[answer] = _known_readings(answer)
            await turns.pass_on()
        unknown: dict[str, str] = {}
        for answer in sorted(answer for answer, readings in known.items() if readings is None):
            unknown.setdefault(canonical(answer), answer)
        read = await self._read_all(unknown.values(), wait_s)
        unread = {text: of_text(text) for text in unknown.keys() - read.keys()}
        read |= unread
        groups = grouped([known[answer] or read[canonical(answer)] for answer in answers])
        return Grouping(groups, len(unread))

    async def same(self, a: str, b: str) -> bool:
        """Whether two answers are equivalent."""
        return len(await self.group([a, b])) == 1

    def close(self) -> None:
        """Ends the worker. Waits until it has read its current answer, about a second of CPU time."""
        self._closing.set()
        self._thread.shutdown(wait=True)
        self._worker.close()

    def _start(self) -> None:
        with suppress(WorkerLost):
            self._worker.start()

    async def _read_all(self, answers: Iterable[str], wait_s: float) -> dict[str, Readings]:
        """The readings of answers by their canonical spelling, without those for which the time was too short."""
        backlog = _Backlog(answers, next(self._numbers))
        if backlog.waiting:
            self._queue.put(backlog)
            self._thread.submit(self._take_turns)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await asyncio.wrap_future(backlog.ended)
        return dict(backlog.read)  # a copy: the worker may be at an answer

    def _take_turns(self) -> None:
        """Reads answers until no grouping waits. Runs in the thread."""
        while True:
            try:
                backlog = self._queue.get_nowait()
            except Empty:
                return
            if backlog.ended.cancelled():
                continue
            try:
                if not self._closing.is_set():
                    self._read_next(backlog)
            except Exception as error:
                if backlog.ended.set_running_or_notify_cancel():
                    backlog.ended.set_exception(error)
                continue
            if backlog.waiting and backlog.used < BUDGET_S and not self._closing.is_set():
                self._queue.put(backlog)
            elif backlog.ended.set_running_or_notify_cancel():
                backlog.ended.set_result(None)

    def _read_next(self, backlog: _Backlog) -> None:
        answer = backlog.waiting.popleft()
        forms, seconds = self._worker.evaluated(forms_of(answer))
        backlog.used += seconds
        if forms is not None:
            text = canonical(answer)
            backlog.read[text] = of_forms(forms) or of_text(text)


def _known_readings(answer: str) -> Readings | None:
    """The readings of an answer that needs no computer algebra; None for any other."""
    forms = forms_of(answer)
    return None if _has_formula(forms) else of_forms(forms)


def _has_formula(form: Any) -> bool:
    return isinstance(form, list) and (form[:1] == ["latex"] or any(map(_has_formula, form)))
