"""The branches that are being written, each under a request id of its own that is never used again."""

from collections import Counter
from enum import StrEnum
from itertools import count
from uuid import uuid4


class Ending(StrEnum):
    """How a branch's life ends; exactly one of these, exactly once."""

    FINISHED = "finished"
    """It was written and handed over."""
    ABORTED = "aborted"
    """It was no longer wanted: pruned, cancelled, or past its deadline."""
    FAILED = "failed"
    """The engine could not write it."""


class RegistryError(RuntimeError):
    """A branch ended twice, or one ended that never began: a programming error."""


class BranchRegistry:
    """Which branches are alive, and how those that are not have ended. Single-threaded."""

    def __init__(self) -> None:
        # Requests of different replicas may meet in one KV cache server's log: a prefix keeps them apart.
        self._prefix = uuid4().hex[:8]
        self._numbers = count(1)
        self._alive: dict[str, str] = {}
        self._begun = 0
        self._endings: Counter[Ending] = Counter()

    def __len__(self) -> int:
        """Branches that have begun and not ended."""
        return len(self._alive)

    def begin(self, search_id: str) -> str:
        """Registers a new branch of a search and returns its request id."""
        request_id = f"{self._prefix}-{next(self._numbers)}"
        self._alive[request_id] = search_id
        self._begun += 1
        return request_id

    def end(self, request_id: str, ending: Ending) -> None:
        """Raises RegistryError unless the branch is alive."""
        if self._alive.pop(request_id, None) is None:
            raise RegistryError(f"branch {request_id} is {ending} but is not alive")
        self._endings[ending] += 1

    @property
    def searches(self) -> Counter[str]:
        """How many branches each search has alive."""
        return Counter(self._alive.values())

    @property
    def counts(self) -> dict[str, int]:
        """Branches begun and alive, and how many ended in which way."""
        endings = {ending.value: self._endings[ending] for ending in Ending}
        return {"begun": self._begun, "alive": len(self), **endings}

    def check_integrity(self) -> list[str]:
        """For a time when nothing should be alive: what is, or does not add up, in words; else empty."""
        problems = [f"search {search} has {number} branches alive" for search, number in self.searches.items()]
        ended = sum(self._endings.values())
        if self._begun != ended + len(self):
            problems.append(f"{self._begun} branches began, {ended} ended, {len(self)} are alive")
        return problems
