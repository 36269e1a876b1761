"""Answers that are programs: candidates that do the same on the checks of their question vote for one answer."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from deployments.sandbox import Limits, Sandbox, SandboxBusy
from deployments.sandbox.trials import Trial, try_program
from search.answers.checks import Checks, Outcome, as_compared, failed_checks
from search.answers.code_answer import code_answer
from search.answers.equivalence import WAIT_S, Grouping
from search.ports import ScoreRequest, StepScorer
from search.run.environment import SearchEnvironment
from search.tools.fair_slots import Requester
from search.tree import SearchTree


class CodeAnswers:
    """The sandbox of a controller, for the votes of its searches. It starts with the first vote."""

    def __init__(self, workers: int, limits: Limits) -> None:
        self._workers = workers
        self._limits = limits
        self._sandbox: asyncio.Task[Sandbox] | None = None

    def environment(
        self, shared: SearchEnvironment, checks: Checks, tree: SearchTree, requester: Requester | None
    ) -> SearchEnvironment:
        """The environment of a search whose answers are programs. ``shared``: that of all others. ``tree`` learns of
        votes that are unsure. ``requester``: who waits for its programs."""
        return replace(
            shared,
            scorer=_CheckingScorer(shared.scorer, checks),
            matcher=_Behaviors(self, checks, tree, requester),
            extract_answer=code_answer,
            remark=partial(self._remark, checks, requester) if checks.checks else None,
        )

    async def _remark(self, checks: Checks, requester: Requester | None, solution: str) -> str:
        """What the checks of a question say of a solution; empty if nothing is known."""
        program = code_answer(solution)
        if program is None:
            return "The candidate has no complete program in a block of Python."
        try:
            trial = await self.trial(program, checks, requester)
        except SandboxBusy:
            return ""
        return "" if trial.lacking else failed_checks(checks.checks, trial.outcomes)

    async def trial(self, program: str, checks: Checks, requester: Requester | None) -> Trial:
        """Raises SandboxBusy if no worker process became free in time, or none could be started."""
        if self._sandbox is None:
            self._sandbox = asyncio.create_task(Sandbox(self._workers).__aenter__())
        try:
            sandbox = await asyncio.shield(self._sandbox)
        except Exception as error:  # of the operating system, or the sandbox's own
            self._sandbox = None
            raise SandboxBusy(f"the sandbox did not start: {error}") from error
        return await try_program(sandbox, self._limits, program, checks, requester)

    async def aclose(self) -> None:
        """Ends the worker processes."""
        started, self._sandbox = self._sandbox, None
        if started is not None:
            await (await started).__aexit__()

    def close(self) -> None:
        """As `aclose`, in a task of its own."""
        with suppress(RuntimeError):  # no event loop: the worker processes end with this one
            self._closing = asyncio.get_running_loop().create_task(self.aclose())


class _CheckingScorer:
    """A scorer that is told the checks of the search."""

    def __init__(self, scorer: StepScorer, checks: Checks) -> None:
        self._scorer = scorer
        self._checks = checks

    async def score(self, request: ScoreRequest) -> Sequence[Sequence[float]]:
        return await self._scorer.score(request._replace(checks=self._checks))


class _Behaviors:
    """The matcher of one search. Programs are the same if all checks show the same for them. A program that fails them
    all with errors, or that cannot be run, is the same as its own text alone, and so is one that ran into its time
    limit, which degrades the search. Without checks, texts are compared."""

    def __init__(self, sandbox: CodeAnswers, checks: Checks, tree: SearchTree, requester: Requester | None) -> None:
        self._sandbox = sandbox
        self._requester = requester
        self._checks = checks
        self._tree = tree
        self._known: dict[str, tuple[Outcome, ...] | str] = {}
        """What programs do; the text of those that do nothing."""

    async def grouping(self, answers: Sequence[str], wait_s: float = WAIT_S) -> Grouping:
        """See `AnswerMatcher.grouping`."""
        if self._checks.checks:
            try:
                async with asyncio.timeout(wait_s), asyncio.TaskGroup() as group:
                    for answer in {*answers} - self._known.keys():
                        group.create_task(self._try(answer))
            except TimeoutError:
                pass
        unread = len({*answers} - self._known.keys()) if self._checks.checks else 0
        self._tree.unsure_votes = self._tree.unsure_votes or unread > 0
        groups: dict[tuple[Outcome, ...] | str, list[int]] = {}
        for index, answer in enumerate(answers):
            groups.setdefault(self._known.get(answer, answer), []).append(index)
        return Grouping([*groups.values()], unread)

    async def _try(self, program: str) -> None:
        try:
            trial = await self._sandbox.trial(program, self._checks, self._requester)
        except SandboxBusy:
            return
        fails = not trial.share and all(outcome.error for outcome in trial.outcomes)
        if trial.lacking or (fails and not trial.unsure):
            self._known[program] = program
        elif not trial.unsure:
            self._known[program] = tuple(map(as_compared, trial.outcomes))
