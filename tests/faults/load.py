"""Continuous searches from many concurrent clients, and the outcome of each."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import httpx

from deployments.embedded.problems import Problem
from tests.serve.application import Application, request

Json = dict[str, Any]
GRACE_S = 30.0
"""Seconds that a request may take beyond the limit of its search."""


class Outcome(NamedTuple):
    """Outcome of a request."""

    index: int
    """Index of its problem."""
    began: float
    """Start in monotonic seconds."""
    seconds: float
    status: int | None = None
    """None: there was no reply, for the reason in ``error``."""
    body: Any = None
    error: str | None = None

    @property
    def tree(self) -> Any:
        return self.body["tree"] if self.status == 200 else None

    @property
    def is_whole(self) -> bool:
        """Whether it is the answer of a search that finished and is not degraded."""
        return (
            self.status == 200
            and self.body["search"]["stop_reason"] == "finished"
            and not self.body["search"]["degraded"]
        )

    @property
    def is_typed(self) -> bool:
        """Whether it is an answer, or an error in OpenAI's format."""
        if self.status is None or not isinstance(self.body, dict):
            return False
        return self.status == 200 or set(self.body.get("error", ())) == {"message", "type", "param", "code"}

    def __str__(self) -> str:
        said = self.error if self.status is None else str(self.body.get("search", self.body))[:600]
        return f"problem {self.index}: {self.status} after {self.seconds:.1f} s {said}"


class Load:
    """Continuous searches, and their outcomes so far."""

    def __init__(
        self,
        application: Application,
        problems: Sequence[Problem],
        seed: int,
        searches: Sequence[Json] = (),
        **fields: Any,
    ) -> None:
        """``searches``: those of the problems, in turn; the usual beam search if empty."""
        self._searches = searches
        self._application = application
        self._problems = problems
        self._seed = seed
        self._fields = fields
        self._numbers = count()
        self._ends = threading.Event()
        self._outcomes: list[Outcome] = []
        self._open: dict[int, float] = {}
        """When the search of each client that has one began, by thread."""
        self.deadline_s = application.config.controller.limits.seconds + GRACE_S

    @property
    def outcomes(self) -> list[Outcome]:
        return list(self._outcomes)

    def none_since_before(self, moment: float) -> bool:
        """Whether every search has ended that began before a moment (monotonic seconds)."""
        return all(began > moment for began in [*self._open.values()])

    def once(self, client: httpx.Client, index: int) -> Outcome:
        """Searches one of the problems, always under the same seed."""
        body = request(self._problems[index], self._seed + index, **self._fields)
        if self._searches:
            body["search"] = self._searches[index % len(self._searches)]
        started = time.monotonic()
        try:
            reply = client.post("/v1/search", json=body)
            content = reply.json() if "json" in reply.headers.get("content-type", "") else reply.text
            return Outcome(index, started, time.monotonic() - started, reply.status_code, content)
        except (httpx.HTTPError, ValueError) as error:
            return Outcome(index, started, time.monotonic() - started, error=repr(error))

    @contextmanager
    def of(self, clients: int) -> Iterator[None]:
        """Keeps ``clients`` clients searching within the block, then waits for their last searches."""
        threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ends.set()
            deadline = time.monotonic() + self.deadline_s + 10.0
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            assert not any(thread.is_alive() for thread in threads), "a client still waits"

    def _ask(self) -> None:
        with self._application.client(httpx.Timeout(self.deadline_s)) as client:
            while not self._ends.is_set():
                self._open[threading.get_ident()] = time.monotonic()
                self._outcomes.append(self.once(client, next(self._numbers) % len(self._problems)))
            del self._open[threading.get_ident()]


def failures(outcomes: Sequence[Outcome], which: Callable[[Outcome], bool]) -> str:
    """The first outcomes for which ``which`` does not hold, as an assertion's message."""
    bad = [each for each in outcomes if not which(each)]
    return f"{len(bad)} of {len(outcomes)}:\n" + "\n".join(map(str, bad[:8]))


@contextmanager
def without_writing_ahead(application: Application) -> Iterator[None]:
    """Has the generator replicas of now write nothing ahead within the block."""

    def set_setting(replica: Any, setting: str | float) -> None:
        replica._engine._running.write_ahead.setting = setting

    application.in_replicas("Generator", partial(set_setting, setting="off"))
    try:
        yield
    finally:
        application.in_replicas("Generator", partial(set_setting, setting=application.config.generator.write_ahead))
