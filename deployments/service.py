"""What the endpoint does, without HTTP and without Serve: plans, admits, runs and accounts for searches.

The controller deployment gives it ports over handles, the unit tests give it ports that are plain objects.
"""

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from deployments.config import AppConfig
from deployments.http.errors import BadRequest, Busy, DeadlineExceeded
from deployments.http.plan import Planner
from deployments.http.schema import ChatRequest, ScoreBody
from search.answers.equivalence import AnswerMatcher
from search.errors import LimitKind, LimitReached, PromptTooLong
from search.gate import Gate
from search.ports import Generator, Lane, ScoreItem, ScoreRequest, StepScorer
from search.run.report import EventSink, SearchOutcome
from search.run.runner import run_search
from search.settings import SearchSettings

GRACE_S = 15.0
"""A search ends by its own clock; this much later it is ended from outside, with 504."""


class Encoder(Protocol):
    """The generator's chat template and tokenizer; see `deployments.engines.encoding.ChatEncoder`."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...


class Job(NamedTuple):
    """A request that has been checked and can be searched."""

    search_id: str
    question: str
    prompt: tuple[int, ...]
    settings: SearchSettings


@dataclass(eq=False)
class Running:
    """A search that is being worked on."""

    search_id: str
    since: float = field(default_factory=time.monotonic)
    """Monotonic seconds."""


class SearchService:
    """All searches of one controller replica. Single-threaded: one event loop."""

    def __init__(
        self,
        config: AppConfig,
        encoder: Encoder,
        generator: Generator,
        scorer: StepScorer,
        matcher: AnswerMatcher,
    ) -> None:
        self.config = config
        self._encoder = encoder
        self._generator = generator
        self._scorer = scorer
        self._matcher = matcher
        controller = config.controller
        self._planner = Planner(config.generator.served_name, controller.default_search, controller.limits)
        self._gate = Gate(controller.branches)
        self._running: dict[str, Running] = {}

    @property
    def running(self) -> int:
        """Searches and scorings that hold a place."""
        return len(self._running)

    def prepare(self, request: ChatRequest) -> Job:
        """
        Raises:
            NotFound: unknown model.
            BadRequest: a setting is wrong, or the prompt does not fit the context.
        """
        settings = self._planner.settings(request)
        messages = [{"role": message.role, "content": message.text} for message in request.messages]
        try:
            prompt = self._encoder.encode_chat(messages)
        except ValueError as error:
            raise BadRequest(str(error), "messages") from None
        context = self.config.generator.max_model_len
        if len(prompt) >= context:
            raise too_long(f"the prompt has {len(prompt)} tokens; the context of {context} leaves no room to answer")
        return Job(uuid.uuid4().hex, request.question, tuple(prompt), settings)

    def check_model(self, name: str) -> None:
        """Raises NotFound unless a request may name this model."""
        self._planner.check_model(name)

    @contextmanager
    def place(self, search_id: str) -> Iterator[Running]:
        """One of the places for searches, held until the end of the block.

        Raises:
            Busy: all are taken.
        """
        most = self.config.controller.searches
        if len(self._running) >= most:
            raise Busy(f"all {most} places for searches are taken; try again shortly", self._retry_after_s())
        running = self._running[search_id] = Running(search_id)
        try:
            yield running
        finally:
            del self._running[search_id]

    def room(self, branches: int) -> AbstractAsyncContextManager[object]:
        """Room at the generators for so many branches, waited for among the searches and held until the end."""
        return self._gate.admit(Lane.DEMAND, branches)

    async def search(self, job: Job, on_event: EventSink | None = None) -> SearchOutcome:
        """Runs a search in the caller's own task: cancelling the caller cancels all of it.

        Raises:
            BadRequest: the request's own budget is too small for any answer, or its prompt too long.
            DeadlineExceeded: out of time without any answer.
            GeneratorError, ScorerError: the engines failed, on every replica.
        """
        seconds = job.settings.budget.seconds or self.config.controller.limits.seconds
        try:
            async with asyncio.timeout(seconds + GRACE_S):
                return await run_search(
                    job.question,
                    job.prompt,
                    job.settings,
                    generator=self._generator,
                    scorer=self._scorer,
                    gate=self._gate,
                    matcher=self._matcher,
                    search_id=job.search_id,
                    context_tokens=self.config.generator.max_model_len,
                    fallback=self.config.controller.fallback,
                    on_event=on_event,
                )
        except PromptTooLong as error:
            raise too_long(str(error)) from None
        except LimitReached as error:
            if error.kind is LimitKind.SECONDS:
                raise DeadlineExceeded(f"no answer yet: {error}") from None
            raise BadRequest(
                f"no answer is possible: {error}", f"search.budget.{error.kind}", "budget_exhausted"
            ) from None

    async def score(self, body: ScoreBody) -> Sequence[float]:
        """The reward of each step of one path, in order.

        Raises:
            BadRequest: more steps than a path may have.
            Busy: no place is free.
            ScorerError: no usable rewards could be had.
        """
        limits = self.config.controller.limits
        if len(body.steps) > limits.depth:
            raise BadRequest(f"steps may be at most {limits.depth}, not {len(body.steps)}", "steps", "above_limit")
        search_id = uuid.uuid4().hex
        item = ScoreItem(tuple(body.steps), len(body.steps))
        with self.place(search_id):
            [rewards] = await self._scorer.score(ScoreRequest(search_id, body.question, (item,), limits.seconds))
            return rewards

    def check_integrity(self) -> list[str]:
        """What is left over though no search runs; empty when all is well."""
        problems = [f"search {running.search_id} is running" for running in self._running.values()]
        if self._gate.usage:
            problems.append(f"{self._gate.usage} branches hold room in the gate")
        waiting = sum(self._gate.waiting.values())
        return [*problems, f"{waiting} calls wait at the gate"] if waiting else problems

    def _retry_after_s(self) -> int:
        """Half the age of the oldest search, within 1 and 30 s: about when a place comes free."""
        oldest = min(running.since for running in self._running.values())
        return round(min(30.0, max(1.0, (time.monotonic() - oldest) / 2)))


def too_long(message: str) -> BadRequest:
    return BadRequest(message, "messages", "context_length_exceeded")
