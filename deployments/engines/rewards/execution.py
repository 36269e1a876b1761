"""Family ``execution``: a verifier that runs programs. No engine.

A path answers with a program, its code block. Its reward is the share of the checks that pass: those of the request, or
the examples in its question.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from deployments.engines.errors import EngineStartError
from deployments.engines.rewards.card_file import CardSetting
from deployments.engines.rewards.function import CallScorer, step_ends
from deployments.engines.settings import ReplicaSettings, Settings
from deployments.sandbox import Limits, Sandbox
from deployments.sandbox.trials import Trial, try_program
from search.answers.checks import Check, Checks
from search.answers.code_answer import CodeBlock, code_block
from search.errors import ScorerError
from search.ports import ScoreItem, ScoreRequest
from search.rewards import RewardRows
from search.tools.fair_slots import Requester

if TYPE_CHECKING:
    from deployments.engines.rewards.family import RewardModelSettings

NOT_KNOWN = 0.5
"""Reward of a step whose program is not complete yet, of a program for which the sandbox lacks something, and of all
steps where there is nothing to check."""
FENCES = ("```", "~~~")


class ExecutionSettings(Settings):
    """A verifier that runs programs instead of a model."""

    family: Literal["execution"] = "execution"
    program_seconds: float = Field(
        2.0, gt=0, le=60, description="Time limit of a program, and of each check after it, seconds."
    )
    program_memory_bytes: int = Field(
        128 * 2**20, ge=2**20, le=2**33, description="Memory limit of a program and its checks, bytes."
    )
    workers: int = Field(
        2, ge=1, le=256, description="Programs that a replica runs at one time, each in a process of its own."
    )
    card: CardSetting = None
    replicas: ReplicaSettings = ReplicaSettings()

    @property
    def max_num_seqs(self) -> int:
        """Maximum concurrent calls."""
        return self.workers

    @property
    def limits(self) -> Limits:
        """Those of a program."""
        return Limits(self.program_seconds, self.program_memory_bytes)

    @property
    def engines(self) -> "dict[str, RewardModelSettings]":
        """None: see `RewardModelSettings.engines`."""
        return {}


class ExecutionScorer(CallScorer):
    """Runs the programs of paths in a sandbox, each program of a request once.

    A program is run once it is complete: when its code block ends, or the path. Until then its steps have the reward
    `NOT_KNOWN`. A path that ends without a program has reward 0.
    """

    canary_request: ClassVar[ScoreRequest] = ScoreRequest(
        "canary",
        "canary",
        (ScoreItem(("```python\nready = True\n```",), ended=True),),
        20.0,
        checks=Checks(checks=(Check("assert ready"),)),
    )

    def __init__(self, settings: ExecutionSettings) -> None:
        super().__init__("the sandbox", settings.max_num_seqs)
        self._limits = settings.limits
        self._sandbox: Sandbox | None = None

    async def start(self, stat_loggers: Sequence[object] = ()) -> None:
        """Starts the sandbox. Raises EngineStartError when that fails."""
        try:
            self._sandbox = await Sandbox(self._slots).__aenter__()
        except Exception as error:  # of the operating system, or the sandbox's own
            raise EngineStartError(f"the sandbox did not start: {error}") from error

    async def rows(self, request: ScoreRequest, requester: Requester | None) -> RewardRows:
        checks = request.checks
        if checks is None:
            return RewardRows([NOT_KNOWN] * len(step_ends(item)) for item in request.items)
        paths = [[*_programs(item)] for item in request.items]
        sources = dict.fromkeys(each.source for path in paths for each in path if each is not None)
        async with asyncio.TaskGroup() as group:
            tasks = {source: group.create_task(self._try(source, checks, requester)) for source in sources}
        trials = {source: task.result() for source, task in tasks.items()}
        rows = RewardRows()
        for item, path in zip(request.items, paths, strict=True):
            rows.append([NOT_KNOWN if each is None else _reward(trials[each.source]) for each in path])
            if item.ended and path[-1] is None:
                rows[-1][-1] = 0.0
        rows.unsure = frozenset(
            index for index, path in enumerate(paths) if any(each and trials[each.source].unsure for each in path)
        )
        return rows

    async def _try(self, source: str, checks: Checks, requester: Requester | None) -> Trial:
        async with self._limit.hold(requester):
            if self._sandbox is None:
                raise ScorerError(f"{self._name} is not started")
            self._running += 1
            self._called += 1
            try:
                return await try_program(self._sandbox, self._limits, source, checks, requester)
            finally:
                self._running -= 1

    async def close(self) -> None:
        """Ends the worker processes."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.__aexit__()

    def shutdown(self) -> None:
        with suppress(RuntimeError):  # no event loop: the worker processes end with this one
            self._closing = asyncio.get_running_loop().create_task(self.close())


def _reward(trial: Trial) -> float:
    return NOT_KNOWN if trial.lacking else trial.share


def _programs(item: ScoreItem) -> Iterator[CodeBlock | None]:
    """For each unscored step of a path, the program with which the path answers up to there; None before one is
    complete."""
    program: CodeBlock | None = None
    for number, end in enumerate(step_ends(item)):
        is_last = end == len(item.steps)
        # The program of a step without a fence is that of the step before it, unless the path ends in an open block.
        if number == 0 or is_last or any(fence in item.steps[end - 1] for fence in FENCES):
            program = code_block("".join(item.steps[:end]))
            if program is not None and not (program.closed or (is_last and item.ended)):
                program = None
        yield program
