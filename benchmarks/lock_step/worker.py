"""One process with both engines, pinned to its cores: it solves some problems for each line of its stdin.

    python -m benchmarks.lock_step.worker

The first line is a `Start`, as JSON; the reply is a line when the engines are up. Every further line is a `Batch`; its
reply is a list of `Solved`. The process ends when its stdin does.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, TextIO

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
    arguments: Mapping[str, dict[str, Any]] = {}
    """Engine arguments by role, in place of those for a CPU."""

    @classmethod
    def parse(cls, line: str) -> "Start":
        cores, generator, prm, search, *rest = json.loads(line)
        return cls(tuple(cores), generator, prm, BeamSettings(*search), *rest)


class Question(NamedTuple):
    """One problem to solve."""

    text: str
    seed: int


class Batch(NamedTuple):
    """Problems to solve in lock step with each other."""

    questions: tuple[Question, ...]
    in_flight: int
    """Problems at a time."""

    @classmethod
    def parse(cls, line: str) -> "Batch":
        questions, in_flight = json.loads(line)
        return cls(tuple(Question(*each) for each in questions), in_flight)


def main() -> None:
    replies = private_stdout()
    given = Start.parse(sys.stdin.readline())
    os.sched_setaffinity(0, given.cores)
    # Imported on the worker's own cores: torch and vLLM look at the cores that they may use.
    from benchmarks.lock_step.engines import Engines
    from deployments.engines.allocator import release_free_memory

    engines = Engines(given.generator, given.prm, given.arguments)
    release_free_memory()
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        batch = Batch.parse(line)
        solved = engines.solve(batch.questions, batch.in_flight, given.search, given.context_tokens)
        print(json.dumps([each._asdict() for each in solved]), file=replies, flush=True)
        # The workers and the application have to fit into the machine's memory beside each other.
        release_free_memory()


def private_stdout() -> TextIO:
    """The process's stdout for replies only; what libraries print goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


if __name__ == "__main__":
    main()
