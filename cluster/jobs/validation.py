"""Checks a batch's input file before any request is sent, as OpenAI does: valid lines, unique ``custom_id``."""

import hashlib
from pathlib import Path

from cluster.evaluation.problem_files import BadLine, EvalProblem, ProblemFileError, other_format
from cluster.jobs.formats import InputKind
from cluster.jobs.inputs import Item, JobInput, looking_at
from deployments.store import LineError
from search.tools.fair_threads import Steps

MAX_FAULTS = 100
"""Most errors that are reported of one file."""


def checking(path: Path, endpoint: str, most: int) -> Steps[JobInput | list[LineError]]:
    """Returns the input of a batch for ``endpoint`` with at most ``most`` lines, or the errors in it. A step is a line.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        name = other_format(file)
    if name is not None:
        message = f"the file is {name.partition(';')[0]}, but must be JSON lines in UTF-8"
        return [LineError(code="invalid_file", message=message)]
    try:
        given = yield from looking_at(path, InputKind.OPENAI)
    except ProblemFileError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        return [LineError(code="empty_file", message="the file has no lines")]
    if given.lines > most:
        return [LineError(code="too_many_requests", message=f"a batch may have {most} requests, not {given.lines}")]
    faults: list[LineError] = []
    known: set[bytes] = set()
    for item in given.items():
        if (fault := _fault(item, endpoint, known)) is not None:
            faults.append(fault)
            if len(faults) == MAX_FAULTS:
                break
        yield
    return faults or given


def _fault(item: Item, endpoint: str, known: set[bytes]) -> LineError | None:
    """The error in one line, if any. ``known``: digests of earlier ids, to which its own is added."""
    work, line = item.work, item.number
    if isinstance(work, BadLine):
        return LineError(code="invalid_line", message=work.reason, line=line)
    assert not isinstance(work, EvalProblem)
    if work.url != endpoint:
        message = f"url is {work.url}, but the batch's endpoint is {endpoint}"
        return LineError(code="mismatched_url", message=message, line=line, param="url")
    digest = hashlib.blake2b(work.custom_id.encode(), digest_size=16).digest()
    if digest in known:
        message = f"the custom_id {work.custom_id[:80]!r} occurs twice"
        return LineError(code="duplicate_custom_id", message=message, line=line, param="custom_id")
    known.add(digest)
    return None
