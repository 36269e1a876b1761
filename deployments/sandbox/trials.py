"""Trials of programs: a candidate runs in a session of its own, and the checks of its question after it."""

import ast
import re
from typing import NamedTuple

from deployments.sandbox.gaps import is_gap
from deployments.sandbox.sandbox import End, Limits, Sandbox
from search.answers.checks import Checks, Outcome, has_passed, parsed_python, shown
from search.tools.fair_slots import Requester

TOTAL = 4
"""Most time that all checks of a program may take together, as a multiple of the limit of one."""
_IS_MAIN = ("__name__ == '__main__'", "'__main__' == __name__")
_LINES = re.compile(r"\r\n|\r|\n")
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


async def try_program(
    sandbox: Sandbox, limits: Limits, program: str, checks: Checks, requester: Requester | None = None
) -> Trial:
    """Runs a program and its checks. After a limit the checks that are left fail.

    Raises:
        SandboxBusy: no worker process became free in time.
    """
    outcomes: list[Outcome] = []
    passed = 0
    async with sandbox.session(limits, requester=requester) as session:
        setup = await session.run(checks.setup) if checks.setup else None
        given = await session.run(as_module(program))  # after a limit of the question's own in an empty session
        failure, ended, seconds = given.error, given.ended, given.seconds
        cut = setup is not None and setup.ended in UNSURE
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
    errors = [failure or "", *(outcome.error for outcome in outcomes)]
    lacking = any(is_gap(error, program) for error in errors)
    if setup is not None and setup.error and is_gap(setup.error, checks.setup):  # so its names are missing
        lacking = lacking or any(error.startswith("NameError:") for error in errors)
    return Trial(tuple(outcomes), share, cut or ended in UNSURE, lacking)


def as_module(program: str) -> str:
    """``program`` as if it were imported, as those who grade it do: without top-level
    ``if __name__ == "__main__":`` statements, which may read input."""
    if "__main__" not in program:
        return program
    try:
        statements = parsed_python(program).body
    except ValueError:
        return program
    lines = _LINES.split(program)
    for each in statements:
        if isinstance(each, ast.If) and not each.orelse and ast.unparse(each.test) in _IS_MAIN:
            lines[each.lineno - 1 : each.end_lineno] = [""] * ((each.end_lineno or each.lineno) - each.lineno + 1)
    return "\n".join(lines)
