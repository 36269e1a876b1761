"""Worker process that solves problems: reads one problem per line, writes one solution per line.

A script, started by ``search.run.solver``, which first sends the module path and the import path of the operator's step
clusters, if any. It ends when its stdin closes, so it never outlives its parent.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    # Output that a library prints to stdout must not be read as a reply.
    os.dup2(2, 1)
    clusters: Callable[..., Any] | None = None

    def load(greeting: dict[str, Any]) -> None:
        nonlocal clusters
        sys.path[:] = greeting["path"]
        import search.strategies.catalog  # noqa: F401  # Imported now, so that the first problem does not wait for it.

        if greeting["step_clusters"] is not None:
            clusters = named(greeting["step_clusters"])

    def solve(problem: list[Any]) -> Any:
        function, argument = problem
        return named(function)(argument, clusters)

    replies.write(reply_of(load, sys.stdin.readline()) + "\n")
    import scipy.cluster.hierarchy
    import scipy.optimize  # noqa: F401  # Ready already, and the first problem need not wait for these either.

    for line in sys.stdin:
        replies.write(reply_of(solve, line) + "\n")


def named(path: str) -> Callable[..., Any]:
    from search.tools.import_path import imported_function

    return imported_function(path)


def reply_of(work: Callable[[Any], Any], line: str) -> str:
    """The result as JSON, or the error: a failed problem must not end the process."""
    try:
        return json.dumps({"solution": work(json.loads(line)), "error": None})
    except Exception as error:
        return json.dumps({"solution": None, "error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
