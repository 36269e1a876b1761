"""When a pool of replicas grows or shrinks: by what presses on them, never by how many calls there are.

A call is one branch or 256, and may be speculation. Every replica says how much work that is wanted it has, as a share
of what one replica can do at once (`deployments.replica`): a generator its KV memory and its batch, a reward model its
batch and how long steps wait for their rewards, a controller its places. What waits counts, so the share is above 1
where it is too much for one.
"""

import math
from typing import Any, Protocol

PRESSURE = "pressure"
"""The name under which replicas tell their share."""
FULL = 0.8
"""A pool grows until its replicas have at most this share each."""
SPARE = 0.5
"""It shrinks where those that are left would have at most this."""
ENOUGH = "enough"
"""The name under which Serve keeps for a pool how many it has had since it first had too many, and the most that would
have been enough since then."""


class Pool(Protocol):
    """What Serve tells a policy of a deployment; see ``ray.serve.config.AutoscalingContext``."""

    @property
    def target_num_replicas(self) -> int: ...

    @property
    def aggregated_metrics(self) -> dict[str, dict[Any, float]] | None: ...

    @property
    def policy_state(self) -> dict[str, Any] | None: ...


def by_pressure(pool: Pool) -> tuple[int, dict[str, Any]]:
    """How many replicas a pool should have, and what Serve is to keep of it; Serve applies the bounds and delays of its
    configuration.

    A pool has too many for as long as its ``downscale_delay_s`` before it shrinks. It shrinks to the most that would
    have been enough in that time, not to what is at its end: load comes in waves, and what is let go at the bottom of
    one is wanted, and started again, at the next.
    """
    told = (pool.aggregated_metrics or {}).get(PRESSURE, {})
    now = pool.target_num_replicas
    wanted = replicas_for(sum(told.values()), len(told), now)
    if wanted >= now:
        return wanted, {}
    of, most = (pool.policy_state or {}).get(ENOUGH, (now, wanted))
    most = max(wanted, most) if of == now else wanted
    return most, {ENOUGH: (now, most)}


def replicas_for(pressure: float, telling: int, now: int) -> int:
    """
    Args:
        pressure: of all replicas that tell theirs.
        telling: how many these are; while others are starting or silent, a pool does not shrink.
        now: how many there are to be.
    """
    if (wanted := math.ceil(pressure / FULL)) > now:
        return wanted
    if telling >= now and (enough := max(1, math.ceil(pressure / SPARE))) < now:
        return enough
    return now
