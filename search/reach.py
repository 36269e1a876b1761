"""How many branches the generators can write at once, as their replicas say with every reply."""

from search.ports import Headroom
from search.token_beam import MAX_WIDTH

AHEAD = 2
"""So many times the branches that generators write at once may be with them: those that are next wait there, in the
order among searches that the engines keep, so that no engine waits for a controller."""
FEWEST = MAX_WIDTH
"""Never fewer: what comes in one piece is no wider, and generators that are short of memory have room again before
anybody is told."""
FORGET_S = 60.0
"""A replica that has said nothing for so long has gone, or is not called."""


class Reach:
    """The last word of every replica."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, float]] = {}

    def saw(self, headroom: Headroom, now: float) -> int | None:
        """How many branches may be in flight at ``now``, seconds; None where nothing is known of any replica."""
        if all(now - at > FORGET_S for _, at in self._told.values()):
            # Nobody was asked: nobody has gone for having said nothing.
            self._told = {replica: (branches, now) for replica, (branches, _) in self._told.items()}
        if headroom.branches:
            self._told[headroom.replica] = headroom.branches, now
        for replica in [replica for replica, (_, at) in self._told.items() if now - at > FORGET_S]:
            del self._told[replica]
        if not self._told:
            return None
        return max(FEWEST, AHEAD * sum(branches for branches, _ in self._told.values()))
