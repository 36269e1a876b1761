"""Runs a job: sends every line of the input, as many at once as the service accepts."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cluster.client.client import Client
from cluster.client.errors import ClientError, Refused, Unreachable, Unsendable
from cluster.client.replies import Question
from cluster.client.retries import ENDS_ENGINES
from cluster.evaluation.code_test import CodeMatcher, grading_slots
from cluster.evaluation.loop import graded, problem_seed
from cluster.evaluation.problem_files import BadLine, EvalProblem
from cluster.evaluation.search_field import catalog_for
from cluster.jobs.formats import ServiceTier
from cluster.jobs.inputs import BatchRequest, Item, JobInput
from cluster.jobs.outputs import FAILED, Outputs
from cluster.jobs.samples import path_answers
from cluster.jobs.window import Window
from search.answers.code_answer import code_answer
from search.answers.equivalence import AnswerMatcher
from search.answers.extraction import extract_answer
from search.settings import parse_search
from search.tools.turns import Turns

MAX_FAILURES = 256
"""Consecutive failures after which the job stops."""
MAX_REASON_CHARACTERS = 1000
"""Length at which the reason of a failed line is cut."""
FULL = 429
SLOW = 408
OUT_OF_TIME = ("budget_exhausted", "search.budget.seconds")
INPUT = "input"
"""Kind of an error of the line itself: a retry would fail again."""


class JobStopped(RuntimeError):
    """The service is gone or fails at everything. Finished lines stay done; run again, the job resumes."""


class KeyRefused(JobStopped):
    """The service does not accept the API key."""


@dataclass(frozen=True)
class Settings:
    """How problems are sent. Batch requests have their own settings; only ``service_tier`` applies to those that name
    none."""

    strategy: str
    """As it was written on the command line."""
    search: dict[str, object]
    """The ``search`` field of every request."""
    seed: int = 0
    """Each problem's seed is derived from it."""
    trees: bool = False
    """Whether trees are kept with the results."""
    service_tier: ServiceTier = ServiceTier.FLEX


class Job:
    """Sends every line of ``given`` that has neither a result nor an error in ``outputs``."""

    def __init__(
        self,
        given: JobInput,
        outputs: Outputs,
        settings: Settings,
        client: Client,
        window: Window,
        on_line: Callable[[], None] = lambda: None,
    ) -> None:
        """``client`` raises refusals for lack of room (``waits_for_room=False``). ``on_line`` is called after every
        finished line."""
        self._given = given
        self._outputs = outputs
        self._settings = settings
        self._client = client
        self._window = window
        self._on_line = on_line
        self._matcher = AnswerMatcher()
        self._slots = grading_slots()
        self._failures = 0
        self._search = parse_search(settings.search, catalog_for(settings.strategy)) if settings.search else None

    async def run(self) -> None:
        """Runs until every line is done.

        Raises:
            JobStopped: the service is gone, or fails at everything.
            OutputError: a result could not be written.
            ProblemFileError: the input cannot be read any more.
        """
        turns = Turns()
        try:
            async with asyncio.TaskGroup() as group:
                for item in self._given.items():
                    await turns.pass_on()
                    if item.number in self._outputs.done:
                        continue
                    if isinstance(item.work, BadLine):
                        self._failed(item, INPUT, item.work.reason)
                        continue
                    await self._window.enter()
                    group.create_task(self._do(item))
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        finally:
            self._matcher.close()

    async def _do(self, item: Item) -> None:
        """Sends one line until it is done. The caller has entered the window for it."""
        while True:
            try:
                if await self._tried(item):
                    return
            finally:
                self._window.leave()
            await self._window.enter()

    async def _tried(self, item: Item) -> bool:
        """Sends one line. Returns whether it is done; False if it was refused for lack of room."""
        started = time.monotonic()
        try:
            line = await self._result(item, started)
        except Refused as error:
            if error.status == FULL:
                self._window.refused(error.retry_after_s)
                return False
            if error.status in (401, 403):
                raise KeyRefused(str(error)) from error
            # A request body or a search that was too slow says something about the load, not about the line.
            late = (error.code, error.param) == OUT_OF_TIME
            own = error.status is not None and 400 <= error.status < 500 and error.status != SLOW and not late
            harmful = error.code == ENDS_ENGINES
            kind = INPUT if own or harmful else FAILED
            of_service = not (late or harmful)
            self._failed(item, kind, str(error), error, time.monotonic() - started, of_service)
            return True
        except Unreachable as error:
            raise JobStopped(str(error)) from error
        except Unsendable as error:
            self._failed(item, INPUT, str(error))
            return True
        except (ClientError, ValueError) as error:  # ValueError: a reply with impossible numbers or nodes
            self._failed(item, FAILED, f"{type(error).__name__}: {error}", seconds=time.monotonic() - started)
            return True
        self._failures = 0
        self._window.granted()
        try:
            self._outputs.put(line)
        except ValueError as error:
            self._failed(item, FAILED, f"the reply cannot be written as JSON: {error}")
            return True
        self._on_line()
        return True

    async def _result(self, item: Item, started: float) -> dict[str, Any]:
        if isinstance(item.work, EvalProblem):
            return await self._solved(item.number, item.work, started)
        assert isinstance(item.work, BatchRequest)
        body = dict(item.work.body)
        if body.get("service_tier") is None:
            body["service_tier"] = self._settings.service_tier.value
        reply = await self._client.post(item.work.url, body)
        seconds = time.monotonic() - started
        return batch_line(item.number, item.work.custom_id, 200, reply) | {"seconds": round(seconds, 6)}

    async def _solved(self, number: int, problem: EvalProblem, started: float) -> dict[str, Any]:
        settings = self._settings
        seed = problem_seed(settings.seed, problem.unique_id)
        question = Question(
            problem.problem,
            settings.search | problem.search,
            seed=seed,
            tree=True,
            service_tier=settings.service_tier.value,
        )
        reply = await self._client.ask(question)
        seconds = time.monotonic() - started
        assert reply.tree is not None
        assert self._search is not None
        tested = problem.test is not None
        grader = CodeMatcher(problem.test, self._slots) if problem.test is not None else self._matcher
        row = await graded(reply, seconds, problem, settings.strategy, seed, grader)
        extract = code_answer if tested else extract_answer
        paths = await path_answers(reply.tree, self._search, seed, problem.answer, grader, extract)
        line = {"line": number, "problem": problem.problem, **row.as_json()}
        del line["error"]
        line |= {
            "text": reply.text,
            "finish_reason": reply.finish_reason,
            "prompt_tokens": reply.usage.prompt_tokens if reply.usage else None,
            "paths": [path.model_dump() for path in paths],
        }
        if settings.trees:
            tree = reply.tree.model_dump(mode="json")
            line |= {"prompt_token_ids": list(reply.prompt_token_ids), "tree": tree}
        return line

    def _failed(
        self,
        item: Item,
        kind: str,
        reason: str,
        refused: Refused | None = None,
        seconds: float | None = None,
        of_service: bool = True,
    ) -> None:
        """Writes the line's error. ``of_service``: whether it may be a sign that the service is gone.

        Raises:
            JobStopped: `MAX_FAILURES` lines have failed in a row.
        """
        work, reason = item.work, reason[:MAX_REASON_CHARACTERS]
        named = {"line": item.number, "kind": kind, "reason": reason}
        if seconds is not None:
            named["seconds"] = round(seconds, 6)
        if isinstance(work, EvalProblem):
            named |= {"problem_id": work.unique_id, "level": work.level}
        elif isinstance(work, BatchRequest):
            error = refused and {
                "message": refused.message,
                "type": refused.kind,
                "param": refused.param,
                "code": refused.code,
            }
            status = refused.status if refused is not None else None
            if status is not None:
                named = batch_line(item.number, work.custom_id, status, {"error": error}) | named
            else:
                named = batch_line(item.number, work.custom_id, None, {"code": kind, "message": reason}) | named
        self._outputs.put_error(named)
        self._on_line()
        # Each batch request may be wrong in its own way; problems are all sent alike.
        if of_service and (kind == FAILED or isinstance(work, EvalProblem)):
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                raise JobStopped(f"{MAX_FAILURES} lines one after the other have failed, the last one: {reason}")


def batch_line(number: int, custom_id: str, status: int | None, body: dict[str, Any]) -> dict[str, Any]:
    """One line of an OpenAI batch's output, with the number of its input line."""
    name = f"batch_req_{number}"
    if status is None:
        return {"id": name, "custom_id": custom_id, "response": None, "error": body, "line": number}
    response = {"status_code": status, "request_id": str(body.get("id") or name), "body": body}
    return {"id": name, "custom_id": custom_id, "response": response, "error": None, "line": number}


def _first(error: BaseException) -> BaseException:
    """The error that ended the job: the first of a group, at any depth."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
