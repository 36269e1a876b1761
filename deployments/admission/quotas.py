"""Quotas per minute of each client, in this controller."""

import math
import time

from deployments.admission.errors import Busy
from deployments.config import KeyRecord

WINDOW_S = 60.0
MAX_CLIENTS = 10_000
"""Maximum number of clients whose minute is remembered. Further ones share a minute: without
keys each address is a client, and an attacker may have many addresses."""
OTHERS = ""


class MinuteUsage:
    """What each client has used in its current minute.

    The minute begins with the first charge. It is measured by the monotonic clock: when the wall clock is set back, no
    client waits longer.
    """

    def __init__(self) -> None:
        self._used: dict[str, tuple[int, float]] = {}
        """Amount used and end of the minute, by client; in the order of the ends."""

    def __len__(self) -> int:
        """Number of clients that are remembered."""
        return len(self._used)

    def check(self, client: str, most: int, refusal: str, reason: str, amount: int = 1) -> None:
        """Checks that ``client`` may use ``amount`` more.

        Raises:
            Busy: it would use more than ``most`` in this minute; with the text ``refusal`` and the label ``reason``.
        """
        used, until = self._minute_of(self._name(client))
        if used + amount > most:
            raise Busy(refusal, reason, max(1, math.ceil(until - time.monotonic())))

    def charge(self, client: str, amount: int) -> None:
        name = self._name(client)
        used, until = self._minute_of(name)
        self._used[name] = used + amount, until

    def _name(self, client: str) -> str:
        """The name under which a client is remembered."""
        return client if client in self._used or len(self._used) < MAX_CLIENTS else OTHERS

    def _minute_of(self, name: str) -> tuple[int, float]:
        """Amount used in the current minute, and its end. Forgets all minutes that are over."""
        now = time.monotonic()
        while self._used and (oldest := next(iter(self._used.items())))[1][1] <= now:
            del self._used[oldest[0]]
        return self._used.get(name, (0, now + WINDOW_S))


class TokenQuotas:
    """The tokens that each key has used in its current minute; only keys with a limit are counted.

    A request's cost is known only at its end. So a request is admitted while any tokens of the minute are left, and
    charged in full when it ends.
    """

    def __init__(self) -> None:
        self._usage = MinuteUsage()

    def check(self, key: KeyRecord) -> None:
        """Checks that a key has tokens left.

        Raises:
            Busy: the key has used up its quota.
        """
        if (most := key.limits.tokens_per_minute) is not None:
            refusal = f"this API key has used {most} tokens within a minute, its limit (limits.tokens_per_minute)"
            self._usage.check(key.digest, most, refusal, "tokens_per_minute")

    def charge(self, key: KeyRecord, tokens: int) -> None:
        """Charges a request's tokens: its prompt and everything generated for it."""
        if key.limits.tokens_per_minute is not None and tokens:
            self._usage.charge(key.digest, tokens)
