"""How much may be sent to a backend: calls at one URL at a time, and calls and tokens in a minute."""

from collections import deque
from dataclasses import dataclass

MINUTE_S = 60.0
FIRST_CALLS = 64
"""Concurrent calls at a URL before anything is known of it."""
SLOWER = 2.0
"""The number of calls is too high where a token costs this many times the time that it cost at best."""
FORGOTTEN = 1.1
"""The best time grows by this factor with every decrease: what a server could do once it may not do again."""


class CallLimit:
    """Number of concurrent calls at one URL, between 1 and ``most``: additive increase, multiplicative decrease, as TCP
    finds its window (Chiu and Jain 1989).

    It begins at 64 calls and grows by one with every answer, so that it doubles from window to window, until the server
    first shows its limit; from then on by one a window, and only while it is used up. A window is as many answers as
    the limit. Refusals (429, 503) halve it, once for all calls that were under way together. Rising latency takes a
    quarter: where the time of a token, over the number of calls beside it, is twice the least of earlier windows, more
    calls at a time make the server slower. That is seen only where replies tell their tokens.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(FIRST_CALLS, most))
        self._found = False
        """Whether the server has shown its limit."""
        self._decreased_at = float("-inf")
        self._best_s = float("inf")
        """Least time of a token over the number of calls beside it: the inverse of throughput."""
        self._restart()

    def _restart(self) -> None:
        self._window = self.calls
        self._answers = self._tokens = self._beside = 0
        self._seconds = 0.0
        self._filled = False

    @property
    def calls(self) -> int:
        """Concurrent calls that are allowed now."""
        return int(self._limit)

    def answered(self, seconds: float, calls: int, tokens: int) -> None:
        """Counts an answer of ``tokens`` (0: not told) after ``seconds``, of one of ``calls`` concurrent calls."""
        self._answers += 1
        self._tokens += tokens
        self._seconds += seconds
        self._beside += calls
        self._filled = self._filled or calls >= self.calls
        if not self._found and calls >= self.calls:
            self._set(self._limit + 1)
        if self._answers < self._window:
            return
        beside = self._beside / self._answers
        cost_s = self._seconds / self._tokens / beside if self._tokens else self._best_s
        if self._filled and cost_s > SLOWER * self._best_s:
            self._found = True
            self._set(0.75 * self._limit)
            self._best_s *= FORGOTTEN
        elif self._found and self._filled:
            self._set(self._limit + 1)
        self._best_s = min(cost_s, self._best_s)
        self._restart()

    def refused(self, sent_at: float, now: float) -> None:
        """Counts a refusal of a call that was sent at ``sent_at``; both are the event loop's seconds."""
        if sent_at >= self._decreased_at:
            self._found = True
            self._decreased_at = now
            self._set(self._limit / 2)
            self._restart()

    def _set(self, limit: float) -> None:
        self._limit = min(float(self._most), max(1.0, limit))


@dataclass(eq=False)
class Spent:
    """What a call has taken of a `MinuteLimit`."""

    at: float
    amount: int


class MinuteLimit:
    """At most ``most`` in any minute; None: no limit. Times are the event loop's seconds."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._spent: deque[Spent] = deque()
        self._sum = 0

    def free_at(self, amount: int, now: float) -> float:
        """The time from which ``amount`` may be spent. What is more than a minute's whole limit may be spent when
        nothing else is."""
        if self._most is None:
            return now
        while self._spent and self._spent[0].at <= now - MINUTE_S:
            self._sum -= self._spent.popleft().amount
        left = self._sum
        at = now
        for earlier in self._spent:
            if left + amount <= self._most:
                break
            left -= earlier.amount
            at = earlier.at + MINUTE_S
        return at

    def spend(self, amount: int, now: float) -> Spent:
        """Spends an amount, which `settle` may correct."""
        spent = Spent(now, amount)
        if self._most is not None:
            self._spent.append(spent)
            self._sum += amount
        return spent

    def settle(self, spent: Spent, amount: int) -> None:
        """Says what a call has really taken."""
        if self._spent and spent.at >= self._spent[0].at:
            self._sum += amount - spent.amount
            spent.amount = amount
