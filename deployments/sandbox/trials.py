"""Trials of programs: a candidate runs in a session of its own, and the checks of its question after it."""

from typing import NamedTuple

from deployments.sandbox.gaps import is_gap
from deployments.sandbox.sandbox import End, Limits, Sandbox
from search.answers.checks import Checks, Outcome, has_passed, shown

TOTAL = 4
"""Most time that all checks of a program may take together, as a multiple of the limit of one."""
UNSURE = frozenset({End.TIME, End.CRASH})
"""Ends that another attempt may change."""


class Trial(NamedTuple):
    """What a program did."""

    outcomes: tuple[Outcome, ...]
    """For each check, what it showed; in a program that fails by itself, its error."""
    share: float
    """Share of the checks that passed, in [0, 1]; without checks, whether the program runs to its end."""
    unsure: bool
    """Whether a time limit or a crash ended it, which does not happen on every machine."""
    lacking: bool
    """Whether it needs something of Python that the interpreter lacks, so that nothing is known of it."""


async def try_program(sandbox: Sandbox, limits: Limits, program: str, checks: Checks) -> Trial:
    """Runs a program and its checks. After a limit the checks that are left fail.

    Raises:
        SandboxBusy: no worker process became free in time.
    """
    outcomes: list[Outcome] = []
    passed = 0
    async with sandbox.session(limits) as session:
        given = await session.run(checks.setup) if checks.setup else None
        if given is None or given.ended.keeps_state:
            given = await session.run(program)
        failure, ended, seconds = given.error, given.ended, given.seconds
        for check in checks.checks:
            if failure is None:
                run = await session.run(shown(check.source))
                outcomes.append(Outcome(run.output, run.error or ""))
                passed += has_passed(check, outcomes[-1])
                ended, seconds = run.ended, seconds + run.seconds
                if seconds > TOTAL * limits.seconds:
                    ended = End.TIME
                failure = None if ended.keeps_state else run.error or "TimeoutError"
            else:
                outcomes.append(Outcome("", failure))
    share = passed / len(checks.checks) if checks.checks else float(failure is None)
    lacking = any(is_gap(error, program) for error in (failure or "", *(outcome.error for outcome in outcomes)))
    return Trial(tuple(outcomes), share, ended in UNSURE, lacking)
