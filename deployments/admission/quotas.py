"""Token quotas per minute, by API key."""

import math
import time

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

from deployments.admission.errors import Busy
from deployments.config import KeyRecord


class TokenQuotas:
    """The tokens that each key has used in its current minute, in this controller; only keys with a limit are counted.

    A request's cost is known only at its end. So a request is admitted while any tokens of the minute are left, and
    charged in full when it ends. The minute begins with the first charge.
    """

    def __init__(self) -> None:
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    async def check(self, key: KeyRecord) -> None:
        """Checks that a key has tokens left.

        Raises:
            Busy: the key has used up its quota.
        """
        most = key.limits.tokens_per_minute
        if most is None:
            return
        item = RateLimitItemPerMinute(most)
        if not await self._limiter.test(item, key.digest):
            window = await self._limiter.get_window_stats(item, key.digest)
            raise Busy(
                f"this API key has used its {most} tokens of the minute (limits.tokens_per_minute)",
                "tokens_per_minute",
                max(1, math.ceil(window.reset_time - time.time())),
            )

    async def charge(self, key: KeyRecord, tokens: int) -> None:
        """Charges a request's tokens: its prompt and everything generated for it."""
        most = key.limits.tokens_per_minute
        if most is not None and tokens:
            await self._limiter.hit(RateLimitItemPerMinute(most), key.digest, cost=tokens)
