"""How many branches the generators can write at once, as their replicas say with every reply, and whose share that is.

Gates in several processes know nothing of each other, the generators know of all: every call names the gate that let it
in, and every reply says how many gates have branches there and how many branches are of the others. So a gate may fill
what the others leave, and has an equal part where they leave none; where one finds less than its part, the others, told
so, make room as they finish. By this nobody has to be counted who is there and idle, forgotten when he has gone, or
asked: what has no branch at a generator takes no room. The number of replicas, which Serve would tell, counts the idle
ones too, and dividing by those who called of late keeps a lone wide search from engines that stand still.
"""

from collections import Counter
from collections.abc import Iterable

from search.ports import Headroom
from search.token_beam import MAX_WIDTH

AHEAD = 2
"""So many times the branches that generators write at once may be with them: those that are next wait there, in the
order among searches that the engines keep, so that no engine waits for a controller."""
FEWEST = MAX_WIDTH
"""Never fewer of all gates together: what comes in one piece fits where one gate has it all."""
FEWEST_EACH = 16
"""Nor fewer of one gate, however many there are: what a search of common width asks for at a time."""
FORGET_S = 60.0
"""A replica that has said nothing for so long has gone, or is not called."""


def shared(headroom: Headroom, gate: str, calls: Iterable[tuple[str, int]]) -> Headroom:
    """What a replica tells the gate of that name.

    Args:
        calls: of each that is open the name of its gate, and its branches that are not written yet.
    """
    held: Counter[str] = Counter()
    for name, branches in calls:
        if branches and name != gate:
            held[name] += branches
    return headroom._replace(gates=1 + len(held), of_others=held.total())


class Reach:
    """The last word of every replica."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[Headroom, float]] = {}

    def saw(self, headroom: Headroom, now: float) -> int | None:
        """How many branches may be in flight at ``now``, seconds; None where nothing is known of any replica."""
        if all(now - at > FORGET_S for _, at in self._told.values()):
            # Nobody was asked: nobody has gone for having said nothing. What they had of others is done by now.
            self._told = {
                replica: (word._replace(gates=1, of_others=0), now) for replica, (word, _) in self._told.items()
            }
        if headroom.branches:
            self._told[headroom.replica] = headroom, now
        for replica in [replica for replica, (_, at) in self._told.items() if now - at > FORGET_S]:
            del self._told[replica]
        if not self._told:
            return None
        words = [word for word, _ in self._told.values()]
        of_all = max(FEWEST, AHEAD * sum(word.branches for word in words))
        left = of_all - sum(word.of_others for word in words)
        return max(FEWEST_EACH, left, of_all // max(word.gates for word in words))
