"""One process with both engines, pinned to its cores: it solves a problem for each line of its stdin.

    python -m benchmarks.lock_step.worker

The first line is a `Start`, as JSON; the reply is a line when the engines are up. Every further line is a `Question`;
its reply is a `Solved`. The process ends when its stdin does.
"""

import json
import os
import sys
from typing import NamedTuple, TextIO

from benchmarks.lock_step.beam_search import BeamSettings


class Start(NamedTuple):
    """What a worker needs to know before its first problem."""

    cores: tuple[int, ...]
    """One thread of each engine runs on each of them."""
    generator: str
    prm: str
    search: BeamSettings
    context_tokens: int
    """Most tokens of prompt and path together."""

    @classmethod
    def parse(cls, line: str) -> "Start":
        cores, generator, prm, search, context_tokens = json.loads(line)
        return cls(tuple(cores), generator, prm, BeamSettings(*search), context_tokens)


class Question(NamedTuple):
    """One problem to solve."""

    text: str
    seed: int


def main() -> None:
    replies = _private_stdout()
    given = Start.parse(sys.stdin.readline())
    os.sched_setaffinity(0, given.cores)
    # Imported on the worker's own cores: torch and vLLM look at the cores that they may use.
    from benchmarks.lock_step.engines import Engines
    from deployments.engines.allocator import release_free_memory

    engines = Engines(given.generator, given.prm)
    release_free_memory()
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        question = Question(*json.loads(line))
        solved = engines.solve(question.text, question.seed, given.search, given.context_tokens)
        print(json.dumps(solved._asdict()), file=replies, flush=True)
        # The workers and the application have to fit into the machine's memory beside each other.
        release_free_memory()


def _private_stdout() -> TextIO:
    """The process's stdout for replies only; what libraries print goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


if __name__ == "__main__":
    main()
