"""Token quotas per minute, by API key."""

import math
import time

from deployments.admission.errors import Busy
from deployments.config import KeyRecord

WINDOW_S = 60.0


class TokenQuotas:
    """The tokens that each key has used in its current minute, in this controller; only keys with a limit are counted.

    A request's cost is known only at its end. So a request is admitted while any tokens of the minute are left, and
    charged in full when it ends. The minute begins with the first charge. It is measured by the monotonic clock: when
    the wall clock is set back, no key waits longer.
    """

    def __init__(self) -> None:
        self._used: dict[str, tuple[int, float]] = {}
        """Tokens used and end of the minute, by the digest of the key."""

    def check(self, key: KeyRecord) -> None:
        """Checks that a key has tokens left.

        Raises:
            Busy: the key has used up its quota.
        """
        most = key.limits.tokens_per_minute
        used, until = self._minute_of(key)
        if most is not None and used >= most:
            raise Busy(
                f"this API key has used its {most} tokens of the minute (limits.tokens_per_minute)",
                "tokens_per_minute",
                max(1, math.ceil(until - time.monotonic())),
            )

    def charge(self, key: KeyRecord, tokens: int) -> None:
        """Charges a request's tokens: its prompt and everything generated for it."""
        if key.limits.tokens_per_minute is not None and tokens:
            used, until = self._minute_of(key)
            self._used[key.digest] = used + tokens, until

    def _minute_of(self, key: KeyRecord) -> tuple[int, float]:
        """Tokens used in the key's current minute, and its end. Forgets a minute that is over."""
        now = time.monotonic()
        used, until = self._used.get(key.digest, (0, -math.inf))
        if until > now:
            return used, until
        self._used.pop(key.digest, None)
        return 0, now + WINDOW_S
