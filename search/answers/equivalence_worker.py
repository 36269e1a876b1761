"""The process in which math-verify runs: reads pairs of answers from stdin, writes whether they are the same.

A script, started by ``search.answers.equivalence``. It bounds each comparison by the processor time that it takes,
so that what is the same does not depend on what else the machine does; math-verify's own bounds are wall
clock. It ends when its stdin closes, so it never outlives the one who started it.
"""

import contextlib
import json
import os
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

CPU_S = 0.5
MEMORY_BYTES = 4 << 30


class OutOfTime(BaseException):
    """Not an ``Exception``: sympy and math-verify catch all of those and go on."""


def out_of_time(signum: int, frame: object) -> None:
    raise OutOfTime


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, out_of_time)
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    # Whatever a library prints must not be read as a reply.
    os.dup2(2, 1)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    from math_verify import parse, verify

    @lru_cache(maxsize=1024)
    def parsed(answer: str) -> list[Any]:
        return list(parse(f"\\boxed{{{answer}}}", parsing_timeout=None))

    def same(a: str, b: str) -> bool:
        first, second = parsed(a), parsed(b)
        return bool(verify(first, second, timeout_seconds=None) or verify(second, first, timeout_seconds=None))

    same("x+1", "1+x")  # loads what is loaded at first use
    replies.write("ready\n")
    for line in sys.stdin:
        verdict = False
        # Nothing that an answer contains may end the worker; what cannot be compared is not the same.
        with contextlib.suppress(Exception, OutOfTime):
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            verdict = same(*json.loads(line))
            signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(f"{int(verdict)}\n")


if __name__ == "__main__":
    main()
